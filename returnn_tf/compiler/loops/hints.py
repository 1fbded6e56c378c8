"""Warnings about loops that can be computed, but are hardly intended."""

from __future__ import annotations

import functools

from returnn_tf.compiler.loops.step_layers import StepLayers
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.config import nearest_name
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.logging.log import log


def warn_of_loop(path: str, layers: StepLayers) -> None:
    """Warn where a search takes its length from the reference, and where training searches for want of a target.

    :param path: of the `rec` layer
    :param layers: of its step network
    """
    choices = [spec for spec in layers.specs.values() if issubclass(spec.cls, ChoiceLayer)]
    if layers.length_of_target and any(not spec.options.get("cheating") for spec in choices if _searches(layers, spec)):
        _warn(
            "Layer %r: the loop has no layer 'end', so the search outputs as many labels as the reference %r has. "
            "Let it find the end, e.g. 'end': {'class': 'compare', 'from': 'output', 'value': 0}."
            % (path, layers.target)
            + _misspelt_end(layers)
        )
    for spec in choices:
        if not layers.search and "target" not in spec.options and spec.options.get("search") is None:
            _warn(
                "%s: has no target, so it searches in training too. Name the labels to follow, e.g. 'target': "
                "'classes', or write 'target': None if this is meant." % spec.where
            )


def _misspelt_end(layers: StepLayers) -> str:
    near = nearest_name("end", list(layers.specs), cutoff=0.6)
    return " Did you mean 'end' by %r?" % near if near else ""


def _searches(layers: StepLayers, spec: LayerSpec) -> bool:
    return layers.search and not layers.follows_target(spec)


@functools.cache
def _warn(text: str) -> None:
    """Warn once, though a network is planned several times."""
    log.warn(text)
