"""``from returnn.pretrain import WrapEpochValue`` (once Pretrain): values which depend on the epoch."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config.epoch_value import WrapEpochValue

register_compat(__name__, "returnn.pretrain", "Pretrain")

__all__ = ["WrapEpochValue"]
