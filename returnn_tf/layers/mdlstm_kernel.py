"""Which form of the MDLSTM runs: the native op where it can be used, else plain TensorFlow."""

from __future__ import annotations

from typing import Any, List, Sequence

from returnn_tf.native import mdlstm_ops, native_mdlstm
from returnn_tf.ops.mdlstm import Flips, mdlstm
from returnn_tf.util.lazy_tf import tf


def run_mdlstm(
    z: Sequence[Any],
    left: Sequence[Any],
    up: Sequence[Any],
    heights: Any,
    widths: Any,
    flips: Sequence[Flips],
    *,
    stable: bool = True,
) -> List[Any]:
    """All directions, see `returnn_tf.ops.mdlstm.mdlstm`.

    The native op is for CPU only so far: with a GPU the plain loop stays on the device where its arrays are.
    """
    ops = None if tf.config.list_physical_devices("GPU") or z[0].dtype != tf.float32 else mdlstm_ops()
    if ops is None:
        return mdlstm(z, left, up, heights, widths, flips, stable=stable)
    return native_mdlstm(ops, z, left, up, heights, widths, flips, stable=stable)
