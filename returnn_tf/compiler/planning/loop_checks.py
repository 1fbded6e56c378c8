"""Checks of loops, and warnings about those that can be computed, but are hardly intended."""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.step_layers import StepLayers
from returnn_tf.config import nearest_name
from returnn_tf.graph.layer import Node
from returnn_tf.logging.log import log


def warn_of_loop(path: str, layers: StepLayers) -> None:
    """Warn where a search takes its length from the reference, and where training searches for want of a target.

    :param path: of the `rec` layer
    :param layers: of its step network
    """
    choices = [spec for spec in layers.specs.values() if spec.cls.chooses_labels]
    if layers.length_of_target and any(not spec.options.get("cheating") for spec in choices if _searches(layers, spec)):
        log.warn(
            "Layer %r: the loop has no layer 'end', so the search outputs as many labels as the reference %r has. "
            "Let it find the end, e.g. 'end': {'class': 'compare', 'from': 'output', 'value': 0}."
            % (path, layers.target)
            + _misspelt_end(layers),
            once=True,
        )
    for spec in choices:
        if not layers.search and "target" not in spec.options and spec.options.get("search") is None:
            log.warn(
                "%s: has no target, so it searches in training too. Name the labels to follow, e.g. 'target': "
                "'classes', or write 'target': None if this is meant." % spec.where,
                once=True,
            )


def _misspelt_end(layers: StepLayers) -> str:
    near = nearest_name("end", list(layers.specs), cutoff=0.6)
    return " Did you mean 'end' by %r?" % near if near else ""


def _searches(layers: StepLayers, spec: LayerSpec) -> bool:
    return layers.search and not layers.follows_target(spec)


def check_kept_states(nodes: Sequence[Node], *, nested: bool) -> None:
    """Check that layers which keep a state from batch to batch do so once in a batch, not in each step.

    :param nodes: of a step
    :param nested: whether the loop is in the step of another one
    """
    for node in nodes:
        if node.kept and (nested or not node.loop_states):
            raise LayerError(
                "Layer %r: a state can't be kept from batch to batch here, as the layer starts over in each step "
                "of a loop. Set its initial_state to 'zeros'." % node.path,
                topic="loops",
            )


def constrained_nodes(nodes: Sequence[Node], *, nested: bool) -> list[tuple[Node, str]]:
    """Return the layers of a step with options that constrain their outputs, and the names of these options.

    :param nested: whether the loop is in the step of another one
    """
    options = ("darc1", "spatial_smoothing")
    found = [(n, name) for n in nodes for name in options if getattr(n.layer, name)]
    if found and nested:
        raise LayerError(
            "Layer %r: %s is not supported in a loop that runs in the step of another loop. Use it on a layer of "
            "the outer loop, or outside." % (found[0][0].path, found[0][1]),
            topic="loops",
        )
    return found
