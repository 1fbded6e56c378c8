"""The ops of a traced graph, functions included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from returnn_tf.config import ConfigError

#: Types of ops that call Python functions of this process.
_PYTHON = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])


def all_ops(graph_def: Any) -> Iterator[Any]:
    """Yield the nodes of a ``GraphDef``, then those of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def op_types(graph_def: Any) -> set[str]:
    """Return the types of all ops, e.g. "MatMul"."""
    return {op.op for op in all_ops(graph_def)}


def check_ops(graph_def: Any, target: str) -> None:
    """Check that another process can run the ops.

    :param target: name of the exporter
    :raises ConfigError: one of them calls Python code of this process; names the op, which begins with its layer
    """
    for op in all_ops(graph_def):
        if op.op in _PYTHON:
            raise ConfigError(
                "export to %s: the op %r calls a Python function, which no other program can. Export layers that do "
                "not need it (outputs), or replace its layer." % (target, op.name)
            )
