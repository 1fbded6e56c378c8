"""Contexts in which native ops take their form in plain TensorFlow: `portable_ops`, `twice_differentiable_ops`."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, Optional


@dataclasses.dataclass(frozen=True)
class GraphOps:
    """Which ops a graph may have.

    :param native: those of native libraries
    :param only_xla: none but those that XLA compiles; sizes of arrays follow from the shapes of the feed
    :param lstm: the op for whole LSTMs, a `returnn_tf.ops.cells.fused_lstm.FusedForm`; None: loops, or native ops
    :param twice_differentiable: none but those whose gradient has a gradient
    """

    native: bool = True
    only_xla: bool = False
    lstm: Optional[Any] = None
    twice_differentiable: bool = False


_ALL = GraphOps()
_OPS: contextvars.ContextVar[GraphOps] = contextvars.ContextVar("graph_ops", default=_ALL)


@contextlib.contextmanager
def portable_ops(*, for_xla: bool = False, lstm: Optional[Any] = None) -> Iterator[None]:
    """Emit plain TensorFlow ops only, in this thread, while the context is open.

    Graphs traced in it need no library. It does not change graphs that exist.

    :param for_xla: emit only ops that XLA compiles
    :param lstm: see `GraphOps`
    """
    outer = _OPS.get()
    lstm = outer.lstm if lstm is None else lstm
    with _using(dataclasses.replace(outer, native=False, only_xla=for_xla or outer.only_xla, lstm=lstm)):
        yield


@contextlib.contextmanager
def twice_differentiable_ops(wanted: bool = True) -> Iterator[None]:
    """Emit ops whose gradients can be differentiated again, in this thread, while the context is open.

    Gradients that are to be differentiated are emitted in it, too, as those of some ops have native ops.

    :param wanted: False: change nothing
    """
    outer = _OPS.get()
    with _using(dataclasses.replace(outer, twice_differentiable=wanted or outer.twice_differentiable)):
        yield


@contextlib.contextmanager
def _using(ops: GraphOps) -> Iterator[None]:
    token = _OPS.set(ops)
    try:
        yield
    finally:
        _OPS.reset(token)


def graph_ops() -> GraphOps:
    """Return the kinds of ops that may be emitted here."""
    return _OPS.get()


def in_portable_ops() -> bool:
    """Return whether native ops must not be emitted."""
    return not _OPS.get().native
