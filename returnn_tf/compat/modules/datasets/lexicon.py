"""``from returnn.datasets.lm import Lexicon`` (once LmDataset): names for functions of configs."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets.text.bliss import Lexicon

register_compat(__name__, "returnn.datasets.lm", "LmDataset")

__all__ = ["Lexicon"]
