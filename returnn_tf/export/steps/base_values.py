"""Values that a step reads from outside of its loop, kept from the run of the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Optional

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.config.errors import ExportError
from returnn_tf.export.meta.names import op_name
from returnn_tf.export.steps.values import StepValues
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.loops.nodes import EnterLayer
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


class BaseValues:
    """The values of outer layers and the lengths of their axes, batch-major, once per sequence.

    :param dims: further axes with lengths
    :param where: how errors begin
    """

    def __init__(self, nodes: Sequence[Node], dims: Sequence[Dim], where: str) -> None:
        self.nodes = list(nodes)
        self._where = where
        self._names: dict[Node, str] = {}
        self._sizes: dict[Dim, str] = {}
        for node in self.nodes:
            if node.output.beam is not None:
                raise ExportError(
                    "%s: layer %r has the hypotheses of another search, %r. Only one search can be left to a decoder; "
                    "take its best hypothesis by a layer of class 'decide'." % (where, node.path, node.output.beam.of)
                )
            self._names[node] = self._unique("base_value_" + _layer_name(node), self._names.values())
            self._add_sizes(node.output.dims)
        self._add_sizes(dim for dim in dims if self.size_name(dim) is None)

    def _add_sizes(self, dims: Iterable[Dim]) -> None:
        for dim in dims:
            if dim.is_dynamic() and dim not in self._sizes:
                name = op_name("base_size_" + (dim.description or "time").replace("/", "_").replace(":", "_"))
                self._sizes[dim] = self._unique(name, self._sizes.values())

    def _unique(self, name: str, known: Any) -> str:
        taken = set(known)
        return next(n for n in [name, *("%s_%d" % (name, i) for i in range(1, len(taken) + 1))] if n not in taken)

    def size_name(self, steps: Dim) -> Optional[str]:
        """Return the name of the lengths of the axis of the steps of a loop; None if no value has it."""
        found = [name for dim, name in self._sizes.items() if dim is steps or dim.as_kind(DimKind.LOOP) is steps]
        return found[0] if found else None

    def make(self, values: StepValues, outer: Lowering) -> None:
        """Make the values in the run of the encoder, from a lowering that has them."""
        for dim, name in self._sizes.items():
            if outer.dims.is_by_frame(dim):
                raise ExportError(
                    "%s: the lengths of the axis %s vary with the frames of other axes, which a graph for single steps "
                    "can't keep." % (self._where, dim)
                )
            lens = outer.dims.get_lens(dim)
            values.make(name, (None,) if lens.shape.rank else (), "int32", lens)
        for node, name in self._names.items():
            data = node.output
            value = transpose(outer.values.outputs[node], batch_major_order(data))
            values.make(name, batch_major_shape(data), data.dtype, value)

    def enter(self, lowering: Lowering, values: StepValues, entries: Any) -> None:
        """Set the values of outer layers in a lowering, once per entry of the batch of the step.

        :param entries: number of these, a multiple of the number of sequences: those of a sequence are side by side
        """
        for dim, name in self._sizes.items():
            lowering.dims.lens[dim] = self.lens(name, values, entries)
        for node, name in self._names.items():
            data, value = node.output, values.value(name)
            if data.batch_axis is not None:
                value = self._repeated(value, entries)
            value = from_batch_major(value, data)
            lowering.values.outputs[node] = value
            for axis, dim in enumerate(data.dims):
                if dim.is_dynamic():
                    lowering.dims.sizes.setdefault(dim, tf.shape(value)[axis])

    def lens(self, name: str, values: StepValues, entries: Any) -> Any:
        """Return the lengths of an axis, once per entry of the batch of the step; a scalar if all have the same.

        :param name: see `size_name`
        :param entries: number of these
        """
        lens = values.value(name)
        return self._repeated(lens, entries) if lens.shape.rank else lens

    def _repeated(self, value: Any, entries: Any) -> Any:
        seqs = tf.shape(value)[0]
        times = entries // tf.maximum(seqs, 1)
        text = "%s: the states have entries for hypotheses, which must be a multiple of the sequences:" % self._where
        check = tf.debugging.Assert(tf.equal(times * seqs, entries), [text, entries, seqs])
        with tf.control_dependencies([check]):
            times = tf.identity(times)
        # Copies nothing in the usual case of one sequence and one hypothesis.
        result = tf.cond(tf.equal(times, 1), lambda: value, lambda: tf.repeat(value, times, axis=0))
        result.set_shape(value.shape)
        return result


def _layer_name(node: Node) -> str:
    """Return the name of a layer in those of variables: of a source of the loop, that of its layer."""
    while isinstance(node.layer, EnterLayer):
        node = node.sources[0]
    if node.extern_key is not None:
        return "data" if node.extern_key == "data" else "data__" + op_name(node.extern_key)
    return op_name(node.path)


def batch_major_shape(data: Data) -> tuple[Any, ...]:
    """Return the sizes of the batch-major axes of a template, None where they are unknown."""
    return tuple(data.dims[axis].size for axis in batch_major_order(data))


def from_batch_major(value: Any, data: Data) -> Any:
    """Return a batch-major tensor in the layout of a template."""
    order = batch_major_order(data)
    value = transpose(value, [order.index(axis) for axis in range(data.rank)])
    value.set_shape(data.static_shape)
    return value
