"""`StreamingModel`: a network as a function of a block of frames and the state after the blocks before."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import SOURCES, STATE, TensorInfo, graph_name
from returnn_tf.graph.carried_state import LAST_BLOCK, CarriedState, KeptSpec
from returnn_tf.graph.layer import Node
from returnn_tf.loops.frame import loop_of
from returnn_tf.util.lazy_tf import tf

#: What is appended to the name of a state for its value after the block.
NEXT = "_next"


class StreamingModel(InferenceModel):
    """As `InferenceModel`, with the states of all recurrences as further inputs ``state_...`` and outputs ``..._next``.

    A state of zeros stands for the beginning of a sequence. The state of a sequence that has no frames in a block, or
    fewer than others, is that after its own last frame.

    Of a search, the values are those of the hypotheses after the block, for the frames of the block. Another output,
    ``<layer>_sources``, int32 [batch, beam], tells the hypothesis before the block that each one continues.

    :param outputs: paths of layers; default: the outputs of the network
    :param further: see `InferenceModel`
    :raises ConfigError: a layer can't go on from block to block; names it
    """

    def __init__(
        self,
        net: Network,
        outputs: Sequence[str] = (),
        *,
        further: Optional[Callable[[Lowered], dict[str, Any]]] = None,
    ) -> None:
        super().__init__(net, outputs, further=further)
        for node in self.nodes:
            if node.output.beam is not None:
                name, shape = sources_name(node), (None, node.output.beam.size)
                self.outputs[name] = TensorInfo(name, SOURCES, node.path, ("B", "beam"), shape, "int32")
        self._state_names: dict[str, str] = {}  # name of the input -> name of the state
        loops = {node.path for node in self.net.plan.needed(self.nodes) if loop_of(node) is not None}
        #: The states of a search itself, rather than of its hypotheses, and of layers that know the end of a sequence.
        self._search_names: set[str] = set()
        self._end_names: set[str] = set()
        for name, spec in self._find_states().items():
            base = "state_" + graph_name(re.sub("/state(/|$)", r"\1", name))
            if base in self._state_names or base in self.input_infos or base + NEXT in self.outputs:
                raise ExportError("Export with state: two inputs would be called %r. Rename a layer." % base)
            self._state_names[base] = name
            owner = self.net.plan.layers.get(spec.layer_path)
            if spec.layer_path in loops or (owner is not None and owner.layer.needs_last_step):
                self._search_names.add(base)
            if name.endswith("/" + LAST_BLOCK):
                self._end_names.add(base)
            self.input_infos[base] = _state_info(base, spec)
            self.outputs[base + NEXT] = _state_info(base + NEXT, spec)

    @property
    def states(self) -> dict[str, str]:
        """Return the name of the output that is fed next for each input that is a state."""
        return {base: base + NEXT for base in self._state_names}

    @property
    def has_search(self) -> bool:
        """Return whether there are hypotheses among the outputs."""
        return any(node.output.beam is not None for node in self.nodes)

    def tensors_of(self, graph: Lowered, node: Node) -> dict[str, Any]:
        """Return the tensors of an output by their names: value, lengths, scores and sources."""
        found = super().tensors_of(graph, node)
        if node.output.beam is not None:
            found[sources_name(node)] = graph.lowering.search.sources[node.output.beam.of]
        return found

    def begun_anew(self, states: Mapping[str, Any], best: Any) -> dict[str, Any]:
        """Return the states from which a search begins anew, as if its best hypothesis were all that was said before.

        :param states: after a block
        :param best: int32 [batch]: the hypothesis of each sequence
        """
        found = dict(states)
        for base in self._state_names:
            info = self.input_infos[base]
            if base in self._search_names:
                found[base] = tf.zeros_like(states[base])
            elif info.beam is not None:
                axis = info.axes.index("B")
                index = tf.repeat(best + info.beam * tf.range(tf.size(best)), info.beam)
                found[base] = tf.gather(states[base], index, axis=axis)
        return found

    @property
    def waits_for_end(self) -> bool:
        """Return whether a layer has to know which block is the last one, see `at_end`."""
        return bool(self._end_names)

    def at_end(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states before a block with which all sequences end.

        :param states: after the block before
        """
        return {name: np.ones_like(value) if name in self._end_names else value for name, value in states.items()}

    def _find_states(self) -> dict[str, KeptSpec]:
        """Emit the graph once to see which states it reads."""
        found = FedStates()

        def emit(**inputs: Any) -> Any:
            return super(StreamingModel, self).emit(inputs, states=found)

        tf.function(emit, autograph=False).get_concrete_function(**self.inputs)
        for name in found.specs:
            assert name in found.next, "the state %r is read but not written" % name
        return found.specs

    def emit(
        self,
        inputs: Mapping[str, Any],
        variables: Optional[Mapping[str, Any]] = None,
        states: Optional[CarriedState] = None,
    ) -> dict[str, Any]:
        """Emit the ops, see `InferenceModel.emit`; the states are among inputs and outputs."""
        assert states is None, "the states are inputs"
        fed = FedStates({name: inputs[base] for base, name in self._state_names.items()})
        found = super().emit(inputs, variables, fed)
        for base, name in self._state_names.items():
            value = tf.ensure_shape(fed.next[name], fed.specs[name].shape)
            found[base + NEXT] = tf.identity(value, name=base + NEXT)
        return found

    def zero_states(self, batch: int) -> dict[str, NDArray[Any]]:
        """Return the states of a number of sequences before the first block."""
        return {base: self._array(base, batch, 0) for base in self._state_names}

    def sample(self, seed: int = 1, *, batch: int = 3, frames: int = 13) -> dict[str, NDArray[Any]]:
        """Return a block of random frames with random states; those of integers are zero."""
        return {**super().sample(seed, batch=batch, frames=frames), **self.sample_states(batch, seed)}

    def sample_states(self, batch: int, seed: int = 1) -> dict[str, NDArray[Any]]:
        """Return random states."""
        rng = np.random.RandomState(seed)
        states = {}
        for base in self._state_names:
            state = self._array(base, batch, 2)
            if state.dtype.kind == "f":
                state = rng.normal(0, 0.3, state.shape).astype(state.dtype)
            states[base] = state
        return states

    def _array(self, base: str, batch: int, grown: int) -> NDArray[Any]:
        """Return zeros for a state; an axis that grows has the size ``grown``."""
        info = self.input_infos[base]
        batch *= info.beam or 1
        shape = [batch if kind == "B" else grown if size is None else size for kind, size in zip(info.axes, info.shape)]
        return np.zeros(shape, info.dtype)


def _state_info(name: str, spec: KeptSpec) -> TensorInfo:
    data = spec.data
    beam = None if data.beam is None else data.beam.size
    return TensorInfo(name, STATE, spec.layer_path, data.axis_kinds, spec.shape, data.dtype, beam=beam)


def sources_name(node: Node) -> str:
    """Return the name of the output that tells which hypotheses before the block those of a layer continue."""
    return graph_name(node.path) + "_sources"


class FedStates(CarriedState):
    """States are inputs and outputs of the graph, one emission each.

    Zeros (false, empty where an axis grows) stand for the state before the first frame of a sequence, whatever that is:
    where it is not zero, its difference from the state is what goes in and out.

    :param given: tensors by name of the state; None: only find out which states there are
    """

    resumes = True

    def __init__(self, given: Optional[Mapping[str, Any]] = None) -> None:
        self._given = given
        self._firsts: dict[str, Any] = {}
        #: The states that the graph has read, by name.
        self.specs: dict[str, KeptSpec] = {}
        #: The tensors to feed next, by name.
        self.next: dict[str, Any] = {}

    def read(self, spec: KeptSpec, first: Any) -> Any:
        """Return the state as fed.

        :raises ConfigError: another state has this name
        """
        if self.specs.setdefault(spec.name, spec) is not spec:
            raise ExportError("Export with state: two states are called %r. Rename a layer." % spec.name)
        self._firsts[spec.name] = first = tf.convert_to_tensor(first)
        if self._given is None:
            return first
        fed = self._given[spec.name]
        if _is_zero(first):
            return fed
        return tf.not_equal(fed, first) if first.dtype.is_bool else fed + first

    def write(self, spec: KeptSpec, value: Any) -> None:
        """Make a state an output."""
        first = self._firsts.get(spec.name)
        if first is not None and not _is_zero(first):
            value = tf.not_equal(value, first) if first.dtype.is_bool else value - first
        self.next[spec.name] = value


def _is_zero(value: Any) -> bool:
    """Return whether a tensor is known to be zero (false) while the graph is made."""
    while value.op.type in ("BroadcastTo", "Identity", "Reshape", "Tile", "Cast", "ZerosLike", "Fill"):
        if value.op.type == "ZerosLike":
            return True
        value = value.op.inputs[1 if value.op.type == "Fill" else 0]
    constant = tf.get_static_value(value)
    return constant is not None and not constant.any()
