"""The beam search of a loop, by the choices among the layers of its step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, cast

from returnn_tf.config.errors import LoopError
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.loops.plan import Ending, LoopSearch


def loop_search(nodes: Sequence[Node], ending: Ending) -> Optional[LoopSearch]:
    """Return the search of a loop, None without one.

    :param nodes: the layers of a step
    :raises ConfigError: the options of the choices don't fit together or to the end of the loop
    """
    choices = tuple(node for node in nodes if node.layer.searches)
    if not choices:
        return None
    layers = [cast(ChoiceLayer, node.layer) for node in choices]
    _check_kept_beams(choices)
    _check_early_stop(choices, ending)
    last = layers[-1]
    return LoopSearch(
        choices,
        beam_size=last.beam_size,
        keeps_beam=all(layer.beam_size == last.beam_size for layer in layers),
        independent_of_batch=last.independent_of_batch,
        stops_early=last.early_stop,
    )


def _check_kept_beams(choices: Sequence[Node]) -> None:
    """Check that choices which keep all hypotheses can continue each of them by the same number of labels.

    The first one continues the hypotheses of the last one.
    """
    for before, node in zip([choices[-1], *choices], choices):
        layer, count = cast(ChoiceLayer, node.layer), cast(ChoiceLayer, before.layer).beam_size
        if not layer.keep_beams:
            continue
        if layer.beam_size % count:
            raise LoopError(
                "Layer %r: keep_beams continues each of the %d hypotheses of %r by the same number of labels, so "
                "beam_size must be a multiple of %d, it is %d."
                % (node.path, count, before.path, count, layer.beam_size)
            )
        labels = [source.output.dim for source in layer.sources]
        if len(labels) == 1 and labels[0] is not None and layer.beam_size // count > labels[0]:
            raise LoopError(
                "Layer %r: keep_beams continues each of the %d hypotheses by %d labels, but there are only %d. "
                "Reduce beam_size to at most %d."
                % (node.path, count, layer.beam_size // count, labels[0], count * labels[0])
            )


def _check_early_stop(choices: Sequence[Node], ending: Ending) -> None:
    """Check that a loop whose choice has the option ``early_stop`` can end early."""
    for choice in choices:
        if not cast(ChoiceLayer, choice.layer).early_stop:
            continue
        if len(choices) > 1:
            raise LoopError(
                "Layer %r: early_stop is for the only choice of a loop, but there are %d. Remove the option."
                % (choice.path, len(choices))
            )
        if ending.end is None:
            raise LoopError(
                "Layer %r: early_stop needs a loop that finds its end itself, but its number of steps is known. Remove "
                "the option, or give the loop a layer 'end'." % choice.path
            )
