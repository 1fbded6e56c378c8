"""Steps through exported models by onnxruntime, as a decoder does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.export.onnx.session import Session
from returnn_tf.export.onnx.stateful.models import (
    ENCODER_SIZES,
    ENCODER_STATES,
    INITIALIZER,
    SCORER,
    SCORES,
    TOKEN,
    UPDATER,
)

Arrays = dict[str, NDArray[Any]]


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
        """Return the states after a label of each hypothesis.

        :param tokens: int32 [batch]
        """
        feed = {**_inputs(self._updater, states), **encoder, TOKEN: np.asarray(tokens, "int32")}
        return _states(self._updater, self._updater.run(feed))


def _inputs(session: Session, states: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the states by the names of the inputs of a model."""
    return {tensor: states[state] for tensor, state in session.metadata.items() if tensor in session.inputs}


def _states(session: Session, outputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the outputs of a model by the names of states."""
    return {state: outputs[tensor] for tensor, state in session.metadata.items() if tensor in outputs}


__all__ = ["ENCODER_SIZES", "ENCODER_STATES", "OnnxSteps"]
