"""Which form of the MDLSTM runs: the native op where it can be used, else plain TensorFlow."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional

from returnn_tf.native import mdlstm_ops, native_mdlstm
from returnn_tf.ops.dense.mdlstm import mdlstm

Form = Callable[..., List[Any]]
"""Parameters and result as of `returnn_tf.ops.dense.mdlstm.mdlstm`."""


def native_mdlstm_or_none() -> Optional[Form]:
    """The native op, if it can be used."""
    ops = mdlstm_ops()
    return None if ops is None else functools.partial(native_mdlstm, ops)


def run_mdlstm(*args: Any, **options: Any) -> List[Any]:
    """All directions, see `returnn_tf.ops.dense.mdlstm.mdlstm`."""
    return (native_mdlstm_or_none() or mdlstm)(*args, **options)
