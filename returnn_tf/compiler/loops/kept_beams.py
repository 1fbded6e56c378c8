"""Check of the option ``keep_beams`` of a choice, which depends on the choice before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.graph.node import Node


def check_kept_beams(choices: Sequence[Node]) -> None:
    """Check that choices which keep all hypotheses can continue each of them by the same number of labels.

    :param choices: of one loop, in the order of a step; the first one continues the hypotheses of the last one
    :raises LayerError: another beam size, or too few labels
    """
    for before, node in zip([choices[-1], *choices], choices):
        layer: Any = node.layer
        if not layer.keep_beams:
            continue
        count = int(before.layer.beam_size)  # type: ignore[attr-defined]
        if layer.beam_size % count:
            raise LayerError(
                "Layer %r: keep_beams continues each of the %d hypotheses of %r by the same number of labels, so "
                "beam_size must be a multiple of %d, it is %d."
                % (node.path, count, before.path, count, layer.beam_size)
            )
        labels = [source.output.dim for source in layer.sources]
        if len(labels) == 1 and labels[0] is not None and layer.beam_size // count > labels[0]:
            raise LayerError(
                "Layer %r: keep_beams continues each of the %d hypotheses by %d labels, but there are only %d. "
                "Reduce beam_size to at most %d."
                % (node.path, count, layer.beam_size // count, labels[0], count * labels[0])
            )
