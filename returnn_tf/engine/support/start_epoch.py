"""Whether the config fixes the epoch at which training starts."""

from __future__ import annotations

from returnn_tf.config import Config


def begins_anew(config: Config) -> bool:
    """Whether ``start_epoch`` says where a training begins, whatever there is."""
    return config.opt_typed_value("start_epoch") not in (None, "auto")
