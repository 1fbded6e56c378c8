"""Runs exported step models by onnxruntime, as a decoder does, and compares them with the steps of the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, ExportDataError
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.session import Session
from returnn_tf.export.onnx.stateful.emission import StepFunctions
from returnn_tf.export.onnx.stateful.models import (
    ENCODER,
    ENCODER_SIZES,
    ENCODER_STATES,
    INITIALIZER,
    SCORER,
    SCORES,
    TOKEN,
    UPDATER,
)
from returnn_tf.util.lazy_tf import tf

Arrays = dict[str, NDArray[Any]]
__all__ = ["ENCODER_SIZES", "ENCODER_STATES", "OnnxSteps", "step_graphs"]
_STEPS, _HYPOTHESES = 4, 3


class OnnxSteps:
    """The state initialiser, the state updater and the scorer of a folder; all names come from their metadata.

    :param folder: of the export
    :raises DataError: a file can't be loaded
    """

    def __init__(self, folder: str) -> None:
        self._initializer, self._updater, self._scorer = (
            Session(os.path.join(folder, file)) for file in (INITIALIZER, UPDATER, SCORER)
        )

    def start(self, encoder: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the states before the first label.

        :param encoder: ``encoder-states`` [batch, time, features] and ``encoder-states-size`` [batch]; or {}
        """
        return _states(self._initializer, self._initializer.run(encoder))

    def scores(self, states: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the scores of all labels, [batch, labels]."""
        return self._scorer.run(_inputs(self._scorer, states))[SCORES]

    def next(
        self, tokens: NDArray[Any], states: Mapping[str, NDArray[Any]], encoder: Mapping[str, NDArray[Any]]
    ) -> Arrays:
        """Return the states after a label of each hypothesis, int32 [batch]."""
        feed = {**_inputs(self._updater, states), **encoder, TOKEN: np.asarray(tokens, "int32")}
        return _states(self._updater, self._updater.run(feed))


def _inputs(session: Session, states: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the states by the names of the inputs of a model."""
    return {tensor: states[state] for tensor, state in session.metadata.items() if tensor in session.inputs}


def _states(session: Session, outputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the outputs of a model by the names of states."""
    return {state: outputs[tensor] for tensor, state in session.metadata.items() if tensor in outputs}


def check_steps(
    model: InferenceModel, functions: StepFunctions, folder: str, names: Mapping[str, str], *, sign: float, most: float
) -> None:
    """Compare encoder and scores of some steps with random labels.

    :param functions: the steps of the network, with scores in their states
    :param names: the names of the encoder's inputs and outputs in its file
    :param sign: of the scores in the models
    :param most: the largest difference of numbers, relative to the largest one or to 1
    :raises DataError: they differ
    """
    rng = np.random.RandomState(1)
    encoder: dict[str, NDArray[Any]] = {}
    if functions.packing.nodes:
        session, encode = Session(os.path.join(folder, ENCODER)), _encoder(model, functions)
        for batch in (3, 1):
            sample = model.sample(batch=batch)
            got = session.run({names[name]: value for name, value in sample.items()})
            encoder = {name: got[names[name]] for name in (ENCODER_STATES, ENCODER_SIZES)}
            expected = [x.numpy() for x in encode({name: tf.constant(value) for name, value in sample.items()})]
            inside = np.arange(expected[0].shape[1]) < expected[1][:, None]
            _compare("the output of the encoder", encoder[ENCODER_STATES][inside], expected[0][inside], most)
            _compare("the lengths of the encoder", encoder[ENCODER_SIZES], expected[1], 0)
    steps, given = OnnxSteps(folder), [tf.constant(value) for value in encoder.values()]
    begin, go_on = step_graphs(functions)
    states, reference = steps.start(encoder), begin(*given)
    for step in range(_STEPS):
        right = sign * functions.scores(reference).numpy()
        _compare("the score of step %d" % step, steps.scores(states), right, most)
        if step == 0:
            states = {name: np.repeat(value, _HYPOTHESES, axis=0) for name, value in states.items()}
            reference = {name: tf.repeat(value, _HYPOTHESES, axis=0) for name, value in reference.items()}
        tokens = rng.randint(0, functions.labels, _HYPOTHESES).astype("int32")
        states = steps.next(tokens, states, encoder)
        reference = go_on(tf.constant(tokens), reference, *given)


def step_graphs(functions: StepFunctions) -> tuple[Any, Any]:
    """Return the first step and the step after a label as graphs for any number of sequences and hypotheses."""
    packed = [tf.TensorSpec([None, None, functions.packing.width], tf.float32), tf.TensorSpec([None], tf.int32)]
    given = packed if functions.packing.nodes else []

    def begin(*encoder: Any) -> Any:
        return functions.initial(*(encoder or (None, None)))

    def go_on(token: Any, states: Any, *encoder: Any) -> Any:
        return functions.after(token, states, *(encoder or (None, None)))

    token = tf.TensorSpec([None], tf.int32)
    return (
        tf.function(begin, input_signature=given, autograph=False),
        tf.function(go_on, input_signature=[token, functions.specs, *given], autograph=False),
    )


def _encoder(model: InferenceModel, functions: StepFunctions) -> Any:
    """Return the encoder as a graph."""

    def run(feed: Any) -> Any:
        return functions.encode(model.lowering(feed))

    return tf.function(run, input_signature=[model.inputs], autograph=False)


def _compare(what: str, got: NDArray[Any], right: NDArray[Any], most: float) -> None:
    if got.shape != right.shape:
        raise _error("%s has the shape %s, but %s is right" % (what, list(got.shape), list(right.shape)))
    off = np.abs(got - right)
    if not (off <= most * max(1.0, float(np.abs(right).max(initial=0.0)))).all():
        place = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
        raise _error("%s is %s at %s, but %s is right" % (what, got[place], [int(i) for i in place], right[place]))


def _error(text: str) -> DataError:
    return ExportDataError(
        "The export to onnx does not compute what the network does, so nothing was written: %s." % text
    )
