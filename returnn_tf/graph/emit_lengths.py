"""Lengths, sizes and masks of dims, as layers see them while their ops are emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.config.errors import DimError
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.ops.frames.shape import expand_at, to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

_KEEP_IN_LOOP = ", or set 'optimize_move_layers_out': False in the rec layer around it"


class Lengths:
    """The lengths that a layer sees: of its sequences, or of its hypotheses.

    :param node: the layer
    """

    def __init__(self, node: Node, lowering: Lowering) -> None:
        self.node = node
        self.lowering = lowering

    @property
    def beam(self) -> int:
        """Return the hypotheses per sequence in the batch axis of the output; 1 without search and within a loop."""
        data = self.node.output if self.node.planned else None
        return 1 if data is None or data.beam is None else data.beam.size

    def lens(self, dim: Dim) -> Any:
        """Return the lengths of a dim: int32 [batch], or a scalar where they don't depend on the sequence."""
        return self.lowering.dims.lens_in_beam(dim, self.beam)

    def size(self, dim: Dim) -> Any:
        """Return the size of the padded axis: int if static, else int32 scalar; of a batch dim, its entries."""
        size = self.lowering.dims.get_size(dim)
        return size * self.beam if dim.is_batch and self.beam > 1 else size

    def shape(self, data: Data) -> list[Any]:
        """Return the sizes of all axes of a template."""
        return [self.size(d) for d in data.dims]

    def define_lens(self, dim: Dim, lens: Any, size: Any = None) -> None:
        """Set the lengths of a dim that this layer defines.

        :param lens: int32 [batch] or scalar; [batch * beam] in a layer after a search
        :param size: of the padded axis; defaults to the largest length
        """
        lens = tf.cast(lens, tf.int32)
        self.lowering.dims.lens[dim] = lens
        if self.beam > 1 and lens.shape.rank != 0:
            self.lowering.dims.beam_dims[dim] = self.beam
        if size is not None:
            self.lowering.dims.sizes[dim] = size

    def define_lens_over(self, dim: Dim, over: Sequence[Dim], lens: Any, size: Any) -> None:
        """Set lengths that vary with the frames of other dims, not only with the sequence.

        :param over: these dims, the batch dim included if they vary with the sequence as well
        :param lens: int32 with an axis for each of ``over``
        :param size: of the padded axis
        """
        self.lowering.dims.lens_over[dim] = tuple(over), lens
        self.lowering.dims.sizes[dim] = size

    def define_running(self, dim: Dim, over: Dim) -> None:
        """Set the lengths of a dim that has the frames of another one up to the current one: t + 1 in frame t."""
        size = self.size(over)
        self.define_lens_over(dim, [over], tf.range(size) + 1, size)
        self.lowering.dims.running[dim] = over

    def define_size(self, dim: Dim, size: Any) -> None:
        """Set the number of entries of a batch dim that this layer defines."""
        self.lowering.dims.sizes[dim] = size

    def has_lens(self, dim: Dim) -> bool:
        """Return whether the lengths of a dynamic dim are known at this point."""
        if dim.size is not None or dim in self.lowering.dims.lens:
            return True
        return dim.expr is not None and all(self.has_lens(a) for a in dim.expr.args if isinstance(a, Dim))

    def mask(self, data: Data, axis: int) -> Any:
        """Return the bool mask of the valid frames of a dynamic axis, with size 1 on all other axes but batch."""
        dim = data.dims[axis]
        if self.differs_by_frame(dim):
            return self._mask_by_frame(data, axis)
        flat = self.seq_mask(dim)
        if flat.shape.rank == 1:
            return expand_at(flat, [i for i in range(data.rank) if i != axis])
        batch = data.batch_axis
        if batch is None:
            raise DimError(
                "the source %s has no batch axis, but each sequence has its own length in %s. First combine it with a "
                "source that has one." % (data, dim)
            )
        if batch > axis:
            flat = tf.transpose(flat)
        return expand_at(flat, [i for i in range(data.rank) if i not in (axis, batch)])

    def differs_by_frame(self, dim: Dim) -> bool:
        """Return whether the lengths vary with the frames of other dims here, see `define_lens_over`."""
        return any(not d.is_batch for d in self._frames_of(dim))

    def _frames_of(self, dim: Dim) -> tuple[Dim, ...]:
        return self.lowering.dims.lens_by_frame(dim)[0] if dim in self.lowering.dims.lens_over else ()

    def knows_mask(self, data: Data, axes: Sequence[int]) -> bool:
        """Return whether `mask` is defined for these axes: whether they include those that the lengths vary with."""
        over = [d for axis in axes for d in self._frames_of(data.dims[axis]) if not d.is_batch]
        return all(d in data.dims for d in over)

    def _mask_by_frame(self, data: Data, axis: int) -> Any:
        dim = data.dims[axis]
        over, lens = self.lowering.dims.lens_by_frame(dim)
        for frames in over:
            if frames not in data.dims and not (frames.is_batch and data.batch_axis is not None):
                raise DimError(
                    "the lengths of the axis %s vary with the frames of the axis %s, which %s lacks. Combine it with "
                    "that axis first, e.g. by dot with a query%s."
                    % (dim, frames, data, _KEEP_IN_LOOP if frames.is_loop else "")
                )
        if self.beam > 1 and dim not in self.lowering.dims.beam_dims:
            for i in [i for i, d in enumerate(over) if d.is_batch]:
                lens = tf.repeat(lens, self.beam, axis=i)
        targets = [data.batch_axis if d.is_batch else data.dims.index(d) for d in over]
        return to_layout(tf.sequence_mask(lens, self.size(dim)), Data((*over, dim), "bool"), data, [*targets, axis])

    def seq_mask(self, dim: Dim) -> Any:
        """Return the bool mask [batch, size] of the valid frames, or [size] if all sequences have the same length."""
        cache = self.lowering.dims.masks
        if (dim, self.beam) not in cache:
            cache[dim, self.beam] = tf.sequence_mask(self.lens(dim), self.size(dim))
        return cache[dim, self.beam]

    def seq_mask_by_batch(self, data: Data, axis: int) -> Any:
        """Return the bool mask [batch, size] of the valid frames of a dynamic axis, even if all lengths are equal."""
        flat = self.seq_mask(data.dims[axis])
        if flat.shape.rank == 2 or data.batch_axis is None:
            return flat
        return tf.broadcast_to(flat, [self.size(data.dims[data.batch_axis]), tf.shape(flat)[0]])

    def masks(self, data: Data, axes: Sequence[int]) -> Any:
        """Return `mask` of all dynamic axes among these, combined; None if no axis is dynamic."""
        result = None
        for axis in axes:
            if data.dims[axis].is_dynamic:
                mask = self.mask(data, axis)
                result = mask if result is None else tf.logical_and(result, mask)
        return result
