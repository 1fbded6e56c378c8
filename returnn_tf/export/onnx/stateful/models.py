"""The ONNX models for single steps of a loop: encoder, state initialiser, state updater, scorer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.conversion import check_model, convert, remove_unused_inputs, write_model
from returnn_tf.export.onnx.stateful.emission import StepFunctions
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.cells.fused_lstm import CUDNN_LSTM
from returnn_tf.util.lazy_tf import tf

#: RASR's names.
ENCODER_STATES, ENCODER_SIZES, TOKEN, SCORES = "encoder-states", "encoder-states-size", "token", "scores"
#: Names of the files.
ENCODER, INITIALIZER, UPDATER, SCORER = (
    "encoder.onnx",
    "state_initializer.onnx",
    "state_updater.onnx",
    "scorer.onnx",
)
#: What the updater calls its inputs; its outputs are called as the states are.
_BEFORE = "before/"


class StatefulModels:
    """Makes the models, and says which states they have.

    :param model: its network is planned by `plan_for_steps`, its nodes are what the step reads from outside
    :param functions: the steps
    :param opset: version of the operators
    :param costs: whether scores are negative logs, as RASR adds them up
    """

    def __init__(self, model: InferenceModel, functions: StepFunctions, opset: int, *, costs: bool) -> None:
        self._model, self._functions, self._opset, self._costs = model, functions, opset, costs
        self._has_encoder = bool(functions.packing.nodes)
        packed = tf.TensorSpec([None, None, functions.packing.width], tf.float32, name=ENCODER_STATES)
        sizes = tf.TensorSpec([None], tf.int32, name=ENCODER_SIZES)
        self._encoder_specs = [packed, sizes] if self._has_encoder else []
        self._unused: dict[str, Any] = {}
        #: The `tf.TensorSpec` of each state by name.
        self.states: dict[str, Any] = self._find_states()

    def _encoder_inputs(self, given: Any) -> tuple[Any, Any]:
        return (given[0], given[1]) if self._has_encoder else (None, None)

    def _specs_of(self, states: Mapping[str, Any], prefix: str = "") -> list[Any]:
        return [tf.TensorSpec(spec.shape, spec.dtype, name=prefix + name) for name, spec in states.items()]

    def _find_states(self) -> dict[str, Any]:
        """Return the states that scores, now or later, depend on."""
        functions = self._functions

        all_states = functions.specs
        names = list(all_states)

        def go_on(token: Any, *given: Any) -> tuple[Any, dict[str, Any]]:
            states, encoder = dict(zip(names, given)), given[len(names) :]
            return functions.scores(states), functions.after(token, states, *self._encoder_inputs(encoder))

        specs = [tf.TensorSpec([None], tf.int32), *all_states.values(), *self._encoder_specs]
        with portable_ops():
            graph = tf.function(go_on, autograph=False).get_concrete_function(*specs)
        scores, after = graph.structured_outputs
        inputs = graph.inputs[1 : 1 + len(names)]
        needed: set[str] = set()
        roots = [scores]
        while True:
            found = {names[index] for index in used_inputs(graph.graph, roots, inputs)}
            if found <= needed:
                self._unused = {name: all_states[name] for name in names if name not in needed}
                return {name: all_states[name] for name in names if name in needed}
            needed |= found
            roots = [scores, *(after[name] for name in needed)]

    def write(self, folder: str, names: Mapping[str, str]) -> None:
        """Write the files.

        :param names: the names of the encoder's inputs and outputs in its file
        """
        states = {name: name for name in self.states}
        before = {_BEFORE + name: name for name in self.states}
        if self._has_encoder:
            specs = [tf.TensorSpec(x.shape, x.dtype, name=names[name]) for name, x in self._model.inputs.items()]
            self._write(folder, ENCODER, lambda *given: self._renamed(self.encoder(*given), names), specs, {})
        self._write(folder, INITIALIZER, self.initializer, self._encoder_specs, states)
        token = tf.TensorSpec([None], tf.int32, name=TOKEN)
        inputs = [token, *self._specs_of(self.states, _BEFORE), *self._encoder_specs]
        self._write(folder, UPDATER, self.updater, inputs, {**before, **states})
        self._write(folder, SCORER, self.scorer, self._specs_of(self.states), states)

    def _renamed(self, values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
        return {names[name]: value for name, value in values.items()}

    def _write(
        self, folder: str, file: str, function: Callable[..., Any], specs: list[Any], metadata: Mapping[str, str]
    ) -> None:
        """Write a file with a function as model, and the states of tensors as metadata."""

        def emit(*given: Any) -> Any:
            with portable_ops(lstm=CUDNN_LSTM):
                return function(*given)

        plan = self._model.net.plan
        proto = convert(tf.function(emit, input_signature=specs, autograph=False), specs, plan, self._opset)
        remove_unused_inputs(proto)
        tensors = {x.name for x in (*proto.graph.input, *proto.graph.output)}
        for tensor, state in metadata.items():
            if tensor in tensors:
                proto.metadata_props.add(key=tensor, value=state)
        check_model(proto, plan)
        write_model(proto, os.path.join(folder, file))

    # --- the functions of the models ---

    def encoder(self, *given: Any) -> dict[str, Any]:
        """Run the encoder on the inputs of the network."""
        graph = self._model.lowering(dict(zip(self._model.input_infos, given)))
        return dict(zip((ENCODER_STATES, ENCODER_SIZES), self._functions.encode(graph)))

    def initializer(self, *given: Any) -> dict[str, Any]:
        """Return the states of the first step, given the results of the encoder."""
        states = self._functions.initial(*self._encoder_inputs(given))
        return {name: states[name] for name in self.states}

    def updater(self, token: Any, *given: Any) -> dict[str, Any]:
        """Return the states after a label.

        :param token: int32 [batch]
        :param given: the states, then what the encoder returned
        """
        names = list(self.states)
        states, encoder = dict(zip(names, given)), given[len(names) :]
        for name, spec in self._unused.items():  # nothing that remains depends on their values
            states[name] = tf.zeros([tf.shape(token)[0], *(size or 1 for size in spec.shape[1:])], spec.dtype)
        after = self._functions.after(token, states, *self._encoder_inputs(encoder))
        return {name: after[name] for name in names}

    def scorer(self, *given: Any) -> dict[str, Any]:
        """Return the scores of all labels, given the states."""
        scores = self._functions.scores(dict(zip(self.states, given)))
        return {SCORES: -scores if self._costs else scores}


def used_inputs(graph: Any, outputs: Iterable[Any], inputs: Sequence[Any]) -> set[int]:
    """Return the indices of the inputs that tensors depend on.

    :param graph: a `tf.Graph`
    :param outputs: tensors of the graph
    :param inputs: tensors of the graph, placeholders
    """
    todo, seen = [tensor.op for tensor in outputs], set()
    while todo:
        op = todo.pop()
        if op in seen:
            continue
        seen.add(op)
        todo += [source.op for source in op.inputs]
    return {index for index, tensor in enumerate(inputs) if tensor.op in seen}
