"""The state of one graph while its ops are emitted: options of the caller, values, lengths, states of loops."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Callable, Optional, TypeVar

from returnn_tf.config.settings.training import DEFAULT_SEED
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.carried_state import CarriedState, NoCarriedState
from returnn_tf.graph.dim_lengths import DimLengths
from returnn_tf.graph.layer import Node
from returnn_tf.graph.postponed import PostponedValues
from returnn_tf.graph.semantics import Semantics
from returnn_tf.ops.frames.skipped_padding import LEAST_SHARE, FramePacking
from returnn_tf.ops.rounded import RoundedMatrix
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class LoweringOptions:
    """The options of the caller.

    :param train: whether this is a training graph
    :param process_offset: in distributed training: other than 0 in all processes but the first, for random numbers of
        their own
    :param check_numerics: which outputs are checked for NaN, see `returnn_tf.graph.check_numerics`
    :param print_outputs: whether every output is printed when it is computed
    :param with_losses: whether the losses are wanted
    :param second_derivatives: whether gradients by all parameters are differentiated again, which losses and products
        that compute their own gradient do not support
    :param readers: how many layers and losses of others use the value of a layer; those without any are not in it
    :param differentiated: the layers by whose values other layers may take derivatives
    :param scales: scalars in place of the numbers of options, by layer path and option
    """

    train: bool
    search: bool
    semantics: Semantics
    seed: int = DEFAULT_SEED
    process_offset: int = 0
    check_numerics: str = ""
    print_outputs: bool = False
    with_losses: bool = True
    second_derivatives: bool = False
    readers: Mapping[Node, int] = dataclasses.field(default_factory=Counter)
    differentiated: frozenset[Node] = frozenset()
    scales: Mapping[tuple[str, str], Any] = dataclasses.field(default_factory=dict)

    @property
    def looks_at_outputs(self) -> bool:
        """Return whether outputs are checked or printed, so that all of them have to be computed, by layer."""
        return bool(self.check_numerics) or self.print_outputs


@dataclasses.dataclass
class ParamValues:
    """The parameters.

    :param variables: parameter name -> variable
    :param read: the values read so far, by what provides them
    :param rounded: those stored as smaller numbers that were read so far, by what provides them
    :param noisy: those with dropout or noise, by the layer that has it and the name there
    """

    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    read: dict[Any, Any] = dataclasses.field(default_factory=dict)
    rounded: dict[Any, RoundedMatrix] = dataclasses.field(default_factory=dict)
    noisy: dict[tuple[Node, str], Any] = dataclasses.field(default_factory=dict)

    def child(self) -> ParamValues:
        """Return those of the body of a loop: the same variables, and a copy of what was read."""
        return dataclasses.replace(self, read=dict(self.read), rounded=dict(self.rounded), noisy=dict(self.noisy))


@dataclasses.dataclass
class NodeValues:
    """The values that layers have emitted so far.

    :param outputs: by node, in the layout of its template
    :param sub_outputs: further outputs, by node and name
    :param aux: auxiliary values by node, see `returnn_tf.graph.aux_values`; changed by `set_aux` alone
    """

    outputs: MutableMapping[Node, Any] = dataclasses.field(default_factory=PostponedValues)
    sub_outputs: dict[tuple[Node, str], Any] = dataclasses.field(default_factory=dict)
    aux: dict[Node, Mapping[Aux[Any], Any]] = dataclasses.field(default_factory=dict)

    def child(self) -> NodeValues:
        """Return a copy for the body of a loop."""
        return dataclasses.replace(
            self, outputs=PostponedValues(self.outputs), sub_outputs=dict(self.sub_outputs), aux=dict(self.aux)
        )

    def set_aux(self, node: Node, aux: Aux[T], value: T) -> None:
        """Store an auxiliary value of a node, which may be `Postponed`."""
        values = PostponedValues(self.aux.get(node, {}))  # a copy, as children share the old one
        values[aux] = value
        self.aux[node] = values

    def change_aux(self, nodes: Iterable[Node], func: Callable[[Any, int], Any]) -> None:
        """Keep the auxiliary values of nodes in line with outputs whose batch entries were changed.

        :param func: (tensor, batch axis) -> tensor
        """
        for node in nodes:
            for aux, value in self.aux.get(node, {}).items():
                axis = aux.batch_axis(node)
                if axis is not None:
                    self.set_aux(node, aux, aux.each(functools.partial(_at, func, axis), value))


def _at(func: Callable[[Any, int], Any], axis: int, x: Any) -> Any:
    return func(x, axis)


@dataclasses.dataclass
class FramePackings:
    """Which layers are computed for packed frames, and their values.

    :param nodes: these layers
    :param ops: the native ops for that
    :param least_share: of padding in a batch, with which its frames are packed
    :param by_dim: the packing of each time dim
    :param frames: the packed values of these layers and of their sources
    """

    nodes: frozenset[Node] = frozenset()
    ops: Any = None
    least_share: float = LEAST_SHARE
    by_dim: dict[Dim, FramePacking] = dataclasses.field(default_factory=dict)
    frames: dict[Node, Any] = dataclasses.field(default_factory=dict)

    def child(self) -> FramePackings:
        """Return a copy for the body of a loop."""
        return dataclasses.replace(self, by_dim=dict(self.by_dim), frames=dict(self.frames))

    def of(self, node: Node, dims: DimLengths) -> Optional[FramePacking]:
        """Return the packing of the frames of a layer; None if it is computed for all frames."""
        if node not in self.nodes:
            return None
        dim = node.output.dims[1]
        if dim not in self.by_dim:
            lens, batch = dims.get_lens(dim), dims.get_size(node.output.dims[0])
            lens = tf.broadcast_to(lens, [batch])
            self.by_dim[dim] = FramePacking(self.ops, lens, tf.convert_to_tensor(dims.get_size(dim)), self.least_share)
        return self.by_dim[dim]

    def value(self, node: Node, packing: FramePacking, values: NodeValues) -> Any:
        """Return the value of a node for packed frames."""
        if node not in self.frames:
            self.frames[node] = packing.pack(values.outputs[node])
        return self.frames[node]


@dataclasses.dataclass
class LoopStep:
    """The step of a loop.

    :param index: the step index, int32 scalar
    :param inputs: what the loop passes in
    :param next_states: the new values of states
    :param owners_of_state: by node of ``prev:``, the layer whose hidden state of the step before it stands for
    :param continues: whether the loop resumes where the last block of frames ended, see `CarriedValues`
    :param lens: the number of steps of each sequence, int32 [batch * beam] or scalar; None if it is not known yet. In a
        stream that of this block, with ``is_last_block``
    :param is_last_block: bool [batch * beam], the sequences of a stream that end with this block; None: there is no
        stream, or nothing needs to know
    :param ended: without a search: bool [batch], the sequences that ended before this step; None if none can end
    :param steps: in training: how many steps there are, int32 scalar, if gradients of what they share are computed
        after all of them, see `returnn_tf.loops.over_steps`; None: in each step
    """

    index: Any = None
    inputs: dict[Any, Any] = dataclasses.field(default_factory=dict)
    next_states: dict[Any, Any] = dataclasses.field(default_factory=dict)
    owners_of_state: dict[Node, Node] = dataclasses.field(default_factory=dict)
    continues: bool = False
    lens: Any = None
    is_last_block: Any = None
    ended: Any = None
    steps: Any = None

    def child(self) -> LoopStep:
        """Return a copy for the body of a loop or a branch, which does not continue a block unless it says so."""
        return dataclasses.replace(
            self,
            inputs=dict(self.inputs),
            next_states=dict(self.next_states),
            owners_of_state=dict(self.owners_of_state),
            continues=False,
        )


@dataclasses.dataclass
class SearchValues:
    """The state of a searching loop, and its results.

    :param hypotheses: in the step of the loop: scores and flags, see `returnn_tf.loops.hypotheses`
    :param in_place: whether layers may keep `InPlace` states, see `returnn_tf.loops.hypotheses`
    :param packed: matrices that are packed once, by what provides them; see `returnn_tf.loops.packed`
    :param beam_scores: final scores [batch, beam] by path of the loop
    :param sources: in a block of a stream: by path of the loop, the hypothesis before the block that each one after it
        continues, int32 [batch, beam]
    :param scores_before: likewise the score of that hypothesis, [batch, beam]
    :param not_ended: by path of the loop: the number of sequences whose best hypothesis had not ended when the loop did
    """

    hypotheses: Any = None
    in_place: bool = False
    packed: dict[Any, Any] = dataclasses.field(default_factory=dict)
    beam_scores: dict[str, Any] = dataclasses.field(default_factory=dict)
    sources: dict[str, Any] = dataclasses.field(default_factory=dict)
    scores_before: dict[str, Any] = dataclasses.field(default_factory=dict)
    not_ended: dict[str, Any] = dataclasses.field(default_factory=dict)

    def child(self) -> SearchValues:
        """Return a copy for the body of a loop, with the same hypotheses."""
        return dataclasses.replace(
            self,
            packed=dict(self.packed),
            beam_scores=dict(self.beam_scores),
            sources=dict(self.sources),
            scores_before=dict(self.scores_before),
            not_ended=dict(self.not_ended),
        )


@dataclasses.dataclass
class AfterStep:
    """The tasks that remain after the values of a step are computed.

    :param updates: emit assignments to variables
    :param meta_losses: losses on the gradient at a layer, see `returnn_tf.graph.after_step.meta_loss`
    :param sink_values: of layers with ``has_sink``: path -> values to pass on after the step
    """

    updates: list[Callable[[], Any]] = dataclasses.field(default_factory=list)
    meta_losses: list[MetaLoss] = dataclasses.field(default_factory=list)
    sink_values: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def child(self) -> AfterStep:
        """Return the record for the body of a loop: losses are shared; the loop must handle its updates."""
        return dataclasses.replace(self, updates=[], sink_values=dict(self.sink_values))


@dataclasses.dataclass
class Lowering:
    """All values of one graph while it is emitted, by topic.

    :param step: the global train step, int64 scalar
    :param carried: holds the states that layers carry from run to run
    :param is_child: whether the ops are those of a loop or a branch; see `child`
    """

    options: LoweringOptions
    params: ParamValues = dataclasses.field(default_factory=ParamValues)
    step: Any = None
    carried: CarriedState = NoCarriedState()
    is_child: bool = False
    values: NodeValues = dataclasses.field(default_factory=NodeValues)
    dims: DimLengths = dataclasses.field(default_factory=DimLengths)
    packing: FramePackings = dataclasses.field(default_factory=FramePackings)
    loop: LoopStep = dataclasses.field(default_factory=LoopStep)
    search: SearchValues = dataclasses.field(default_factory=SearchValues)
    after_step: AfterStep = dataclasses.field(default_factory=AfterStep)

    def child(self) -> Lowering:
        """Return a lowering for the body of a loop: it sees everything, and what is added to it stays inside."""
        return dataclasses.replace(
            self,
            params=self.params.child(),
            is_child=True,
            values=self.values.child(),
            dims=self.dims.child(),
            packing=self.packing.child(),
            loop=self.loop.child(),
            search=self.search.child(),
            after_step=self.after_step.child(),
        )
