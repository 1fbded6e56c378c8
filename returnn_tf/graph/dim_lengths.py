"""The lengths and sizes of dims in one lowering."""

from __future__ import annotations

import dataclasses
from typing import Any

from returnn_tf.config.errors import DimError
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim, batch_dim
from returnn_tf.tensor.match import union_of_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class DimLengths:
    """The lengths of dims, computed once per graph.

    :param batch_size: the size of batch dims that have no entry in ``sizes``
    :param lens: lengths that were set: int32 [batch] or a scalar
    :param derived_lens: those computed from the expressions of dims
    :param sizes: of padded axes
    :param lens_over: dims whose lengths vary with the frames of other dims: dim -> (those dims, batch included; their
        lengths)
    :param running: of these, dims with t + 1 frames in frame t of the one dim: dim -> this one
    :param beam_dims: dims whose lengths differ among the hypotheses of a beam, and their number
    :param masks: the masks of valid frames made so far
    :param made: what layers made of lengths and sizes so far, by the kind and these tensors
    :param step_indices: in the step of a loop: the step index by step axis, enclosing loops included
    """

    batch_size: Any = None
    lens: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    derived_lens: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    sizes: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    lens_over: dict[Dim, tuple[tuple[Dim, ...], Any]] = dataclasses.field(default_factory=dict)
    running: dict[Dim, Dim] = dataclasses.field(default_factory=dict)
    beam_dims: dict[Dim, int] = dataclasses.field(default_factory=dict)
    masks: dict[Any, Any] = dataclasses.field(default_factory=dict)
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)
    step_indices: dict[Dim, Any] = dataclasses.field(default_factory=dict)

    def child(self) -> DimLengths:
        """Return a copy for the body of a loop, where computed lengths and masks are ops inside of it."""
        return dataclasses.replace(
            self,
            lens=dict(self.lens),
            derived_lens=dict(self.derived_lens),
            sizes=dict(self.sizes),
            lens_over=dict(self.lens_over),
            running=dict(self.running),
            beam_dims=dict(self.beam_dims),
            masks=dict(self.masks),
            made=dict(self.made),
            step_indices=dict(self.step_indices),
        )

    def get_lens(self, dim: Dim) -> Any:
        """Return the lengths of a dim: int32 [batch] or a scalar where they don't depend on the sequence."""
        if dim.size is not None:
            return tf.constant(dim.size, tf.int32)
        if dim in self.lens:
            return self.lens[dim]
        if self.is_by_frame(dim):
            return self._lens_without_frames(dim)
        if dim not in self.derived_lens:
            assert dim.expr is not None, "no lengths were set for %r" % dim
            self.derived_lens[dim] = dim.expr.evaluate(self.get_lens, tf.maximum)
        return self.derived_lens[dim]

    def is_by_frame(self, dim: Dim) -> bool:
        """Return whether the lengths, or those that they are computed from, are in ``lens_over``."""
        if dim in self.lens_over:
            return True
        return dim.expr is not None and dim not in self.lens and any(map(self.is_by_frame, dim.expr.args))

    def lens_by_frame(self, dim: Dim) -> tuple[tuple[Dim, ...], Any]:
        """Return (the dims that lengths vary with, the lengths); in the step of a loop those of this step."""
        over, lens = self._all_lens_by_frame(dim)
        for step in [d for d in over if d in self.step_indices]:
            lens = tf.gather(lens, self.step_indices[step], axis=over.index(step))
            over = tuple(d for d in over if d is not step)
        return over, lens

    def _all_lens_by_frame(self, dim: Dim) -> tuple[tuple[Dim, ...], Any]:
        if dim not in self.lens_over:
            assert dim.expr is not None, "no lengths were set for %r" % dim
            operands = {a: self._operand_by_frame(a) for a in dim.expr.args}
            over = Data(union_of_axes([dims for dims, _ in operands.values()]), "int32")
            lens = {a: to_layout(x, Data(dims, "int32"), over) for a, (dims, x) in operands.items()}
            self.lens_over[dim] = over.dims, dim.expr.evaluate(lens.__getitem__, tf.maximum)
        return self.lens_over[dim]

    def _operand_by_frame(self, dim: Dim) -> tuple[tuple[Dim, ...], Any]:
        """Return (the dims that the lengths of any dim vary with, the lengths)."""
        if self.is_by_frame(dim):
            return self._all_lens_by_frame(dim)
        lens = self.get_lens(dim)
        return (batch_dim,) if lens.shape.rank else (), lens

    def _lens_without_frames(self, dim: Dim) -> Any:
        over, lens = self.lens_by_frame(dim)
        frames = [d for d in over if not d.is_batch]
        if frames:
            raise DimError(
                "the lengths of the axis %s vary with the frames of the axis %s; this layer supports only lengths by "
                "sequence. Combine it with the axis %s first, e.g. by dot or softmax_over_spatial."
                % (dim, frames[0], frames[0])
            )
        return lens

    def lens_in_beam(self, dim: Dim, beam: int) -> Any:
        """Return the lengths of a dim for every hypothesis: int32 [batch * beam], or a scalar."""
        lens = self.get_lens(dim)
        if beam == 1 or lens.shape.rank == 0 or self.differs_in_beam(dim):
            return lens
        return tf.repeat(lens, beam)

    def differs_in_beam(self, dim: Dim) -> bool:
        """Return whether the lengths are per hypothesis, not per sequence."""
        if dim in self.beam_dims:
            return True
        return dim.expr is not None and any(self.differs_in_beam(a) for a in dim.expr.args if isinstance(a, Dim))

    def get_size(self, dim: Dim) -> Any:
        """Return the size of the padded axis: an int if static, else an int32 scalar."""
        if dim.size is not None:
            return dim.size
        if dim in self.sizes:
            return self.sizes[dim]
        if dim.is_batch and dim.expr is None:
            return self.batch_size
        if dim.expr is not None and dim not in self.lens and (dim.is_batch or dim.expr.grows):
            self.sizes[dim] = dim.expr.evaluate(self.get_size, tf.maximum)
        else:
            lens = self._all_lens_by_frame(dim)[1] if self.is_by_frame(dim) else self.get_lens(dim)
            self.sizes[dim] = tf.reduce_max(tf.concat([tf.reshape(lens, [-1]), [0]], axis=0))
        return self.sizes[dim]
