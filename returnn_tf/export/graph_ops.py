"""The ops of a traced graph, functions included."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from returnn_tf.config.errors import ExportError

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
            raise ExportError(
                "export to %s: the op %r calls a Python function, which no other program can. Export layers that do "
                "not need it (outputs), or replace its layer." % (target, op.name)
            )


def add_outputs(graph_def: Any, outputs: Mapping[str, str], inputs: Collection[str]) -> dict[str, str]:
    """Add an Identity node for each output, with its name; other nodes that have this name get another one.

    :param graph_def: without functions; changed in place
    :param outputs: name -> tensor, e.g. "Identity_1:0"
    :param inputs: names of nodes that keep their name: an output of the same name is called ``<name>_output``
    :return: name -> tensor of the new node
    """
    nodes = {name: name + "_output" if name in inputs else name for name in outputs}
    taken = {node.name for node in graph_def.node}
    new_names = {name: _free_name(name, taken) for name in nodes.values() if name in taken}
    for node in graph_def.node:
        node.name = new_names.get(node.name, node.name)
        for i, source in enumerate(node.input):
            node.input[i] = _renamed(source, new_names)
    types = {node.name: node for node in graph_def.node}
    for name, tensor in outputs.items():
        source = _renamed(tensor, new_names)
        node = graph_def.node.add(
            name=nodes[name], op="Identity", input=[source[:-2] if source.endswith(":0") else source]
        )
        node.attr["T"].CopyFrom(types[source.partition(":")[0]].attr["T"])
    return {name: node + ":0" for name, node in nodes.items()}


def _free_name(name: str, taken: set[str]) -> str:
    free = next("%s_%d" % (name, i) for i in range(1, len(taken) + 2) if "%s_%d" % (name, i) not in taken)
    taken.add(free)
    return free


def _renamed(tensor: str, names: Mapping[str, str]) -> str:
    """Return the name of a tensor or control dependency once nodes have other names."""
    control, name = ("^", tensor[1:]) if tensor.startswith("^") else ("", tensor)
    node, colon, index = name.partition(":")
    return control + names.get(node, node) + colon + index
