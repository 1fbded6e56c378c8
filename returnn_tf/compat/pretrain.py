"""``from returnn.pretrain import WrapEpochValue`` (once Pretrain): values which depend on the epoch."""

from __future__ import annotations

from returnn_tf.config.epoch_value import WrapEpochValue
from returnn_tf.config.foreign_modules import register_foreign

register_foreign(__name__, "returnn.pretrain", "Pretrain")

__all__ = ["WrapEpochValue"]
