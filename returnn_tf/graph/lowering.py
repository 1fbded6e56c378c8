"""The values of one lowering: what the layers have emitted so far, and the lengths of their dims."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, TypeVar

from returnn_tf.config.errors import DimError
from returnn_tf.config.settings.training import DEFAULT_SEED
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.carried_state import CarriedState, NoCarriedState
from returnn_tf.graph.layer import Node
from returnn_tf.graph.semantics import Semantics
from returnn_tf.ops.frames.skipped_padding import FramePacking
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf

T = TypeVar("T")


@dataclasses.dataclass
class Lowering:
    """All values of one graph while it is emitted.

    :param variables: parameter name -> variable
    :param train: whether this is a training graph
    :param step: the global train step, int64 scalar
    """

    variables: dict[str, Any]
    train: bool
    search: bool
    semantics: Semantics
    step: Any = None
    seed: int = DEFAULT_SEED
    #: Of a distributed training: other than 0 in all processes but the first, for random numbers of their own.
    process_offset: int = 0
    #: Which outputs are checked for NaN, see `returnn_tf.graph.check_numerics`.
    check_numerics: str = ""
    #: What holds the states that layers carry from run to run.
    carried: CarriedState = NoCarriedState()
    #: Whether the losses are wanted.
    with_losses: bool = True
    #: Whether gradients are differentiated again, which ops that compute their own gradient do not support.
    second_derivatives: bool = False
    #: How many layers and losses of others use the value of a layer; those without any are not in it.
    readers: Mapping[Node, int] = dataclasses.field(default_factory=Counter)
    #: The layers by whose values other layers may take derivatives.
    differentiated: frozenset[Node] = frozenset()
    batch_size: Any = None
    #: Whether the ops are those of a loop or a branch; see `child`.
    is_child: bool = False
    values: dict[Node, Any] = dataclasses.field(default_factory=dict)
    sub_values: dict[tuple[Node, str], Any] = dataclasses.field(default_factory=dict)
    #: Auxiliary values by node, see `returnn_tf.graph.aux_values`; changed by `set_aux` alone.
    aux: dict[Node, dict[Aux[Any], Any]] = dataclasses.field(default_factory=dict)
    lens: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    derived_lens: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    sizes: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    #: Dims whose lengths vary with the frames of other dims: dim -> (those dims, batch included; their lengths).
    lens_over: dict[Dim, tuple[tuple[Dim, ...], Any]] = dataclasses.field(default_factory=dict)
    #: Of these, dims with t + 1 frames in frame t of the one dim: dim -> this one.
    running: dict[Dim, Dim] = dataclasses.field(default_factory=dict)
    #: Layers that are computed for packed frames, the native ops for that, the packing of each time dim, and the packed
    #: values of these layers and their sources.
    packed_nodes: frozenset[Node] = frozenset()
    pack_ops: Any = None
    packings: dict[Dim, FramePacking] = dataclasses.field(default_factory=dict)
    packed_frames: dict[Node, Any] = dataclasses.field(default_factory=dict)
    #: Parameters read so far, by what provides them; those with dropout or noise by the layer that has it.
    params: dict[Any, Any] = dataclasses.field(default_factory=dict)
    noisy_params: dict[tuple[Node, str], Any] = dataclasses.field(default_factory=dict)
    updates: list[Callable[[], Any]] = dataclasses.field(default_factory=list)
    #: Losses on the gradient at a layer, see `returnn_tf.graph.after_step.meta_loss`.
    meta_losses: list[MetaLoss] = dataclasses.field(default_factory=list)
    #: Of layers with ``has_sink``: path -> values to pass on after the step.
    sinks: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    masks: dict[Any, Any] = dataclasses.field(default_factory=dict)
    #: In the step of a loop: the values that the loop passes in, the new values of states, and the step index.
    loop_inputs: dict[Any, Any] = dataclasses.field(default_factory=dict)
    next_states: dict[Any, Any] = dataclasses.field(default_factory=dict)
    loop_index: Any = None
    #: In the step of a loop: the step index by step axis, enclosing loops included.
    loop_indices: dict[Dim, Any] = dataclasses.field(default_factory=dict)
    #: In the step of a loop: by node of ``prev:``, the layer whose hidden state of the step before it stands for.
    owners_of_state: dict[Node, Node] = dataclasses.field(default_factory=dict)
    #: In the step of a searching loop: scores and flags of the hypotheses, see `returnn_tf.loops.hypotheses`.
    hypotheses: Any = None
    #: In a searching loop: whether layers may keep `InPlace` states, see `returnn_tf.loops.hypotheses`.
    in_place: bool = False
    #: In a searching loop: matrices that are packed once, by what provides them; see `returnn_tf.loops.packed`.
    packed: dict[Any, Any] = dataclasses.field(default_factory=dict)
    #: In the step of a loop: whether the loop goes on where the last block of frames ended, see `CarriedValues`.
    continues_in_step: bool = False
    #: In the step of any other loop: bool [batch], the sequences that ended before this step; None if none can end.
    ended: Any = None
    #: Final scores [batch, beam] by path of the loop, and the dims whose lengths differ among the hypotheses of a beam.
    beam_scores: dict[str, Any] = dataclasses.field(default_factory=dict)
    beam_dims: dict[Dim, int] = dataclasses.field(default_factory=dict)
    #: By path of a searching loop: the number of sequences whose best hypothesis had not ended when the loop did.
    not_ended: dict[str, Any] = dataclasses.field(default_factory=dict)

    def child(self) -> Lowering:
        """Return a lowering for the body of a loop: it sees everything, and what is added to it stays inside."""
        copies: dict[str, Any] = {"updates": [], "is_child": True, "continues_in_step": False}
        for field in dataclasses.fields(self):
            if field.default_factory is dict:
                copies[field.name] = dict(getattr(self, field.name))
        return dataclasses.replace(self, **copies)

    def packing_of(self, node: Node) -> Optional[FramePacking]:
        """Return how the frames of a layer are packed; None if it is computed for all frames."""
        if node not in self.packed_nodes:
            return None
        dim = node.output.dims[1]
        if dim not in self.packings:
            lens, batch = self.get_lens(dim), self.get_size(node.output.dims[0])
            lens = tf.broadcast_to(lens, [batch])
            self.packings[dim] = FramePacking(self.pack_ops, lens, tf.convert_to_tensor(self.get_size(dim)))
        return self.packings[dim]

    def packed_value(self, node: Node, packing: FramePacking) -> Any:
        """Return the value of a node for packed frames."""
        if node not in self.packed_frames:
            self.packed_frames[node] = packing.pack(self.values[node])
        return self.packed_frames[node]

    def set_aux(self, node: Node, aux: Aux[T], value: T) -> None:
        """Store an auxiliary value of a node."""
        self.aux[node] = {**self.aux.get(node, {}), aux: value}  # a new dict, as children share the old one

    def change_aux(self, nodes: Iterable[Node], func: Callable[[Any, int], Any]) -> None:
        """Keep the auxiliary values of nodes in line with outputs whose batch entries were changed.

        :param func: (tensor, batch axis) -> tensor
        """
        for node in nodes:
            for aux, value in self.aux.get(node, {}).items():
                axis = aux.batch_axis(node)
                if axis is not None:
                    self.set_aux(node, aux, aux.each(functools.partial(_at, func, axis), value))

    def get_lens(self, dim: Dim) -> Any:
        """Return the lengths of a dim: int32 [batch] or a scalar where they don't depend on the sequence."""
        if dim.size is not None:
            return tf.constant(dim.size, tf.int32)
        if dim in self.lens:
            return self.lens[dim]
        if dim in self.lens_over:
            return self._lens_without_frames(dim)
        if dim not in self.derived_lens:
            assert dim.expr is not None, "no lengths were set for %r" % dim
            self.derived_lens[dim] = dim.expr.evaluate(self.get_lens, tf.maximum)
        return self.derived_lens[dim]

    def lens_by_frame(self, dim: Dim) -> tuple[tuple[Dim, ...], Any]:
        """Return (the dims that lengths vary with, the lengths); in the step of a loop those of this step."""
        over, lens = self.lens_over[dim]
        for step in [d for d in over if d in self.loop_indices]:
            lens = tf.gather(lens, self.loop_indices[step], axis=over.index(step))
            over = tuple(d for d in over if d is not step)
        return over, lens

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
        if dim.is_batch:
            assert dim.expr is None, "the size of %r was not set" % dim
            return self.batch_size
        if dim.expr is not None and dim not in self.lens and (dim.is_batch or dim.expr.grows):
            self.sizes[dim] = dim.expr.evaluate(self.get_size, tf.maximum)
        else:
            self.sizes[dim] = tf.reduce_max(tf.concat([tf.reshape(self.get_lens(dim), [-1]), [0]], axis=0))
        return self.sizes[dim]


def _at(func: Callable[[Any, int], Any], axis: int, x: Any) -> Any:
    return func(x, axis)
