"""A choice in a single step of a loop: a search outside of the graph gets its scores, and decides on its labels."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.errors import ConfigError, SearchError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.layers.search.choice_scores import log_probs_of

#: Values of ``input_type`` whose scores a search outside can use, as they are logarithms of probabilities or become so.
_INPUT_TYPES = ("prob", "log_prob")


def choice_of(node: Node) -> ChoiceLayer:
    """Return the layer of a node that is a choice."""
    assert isinstance(node.layer, ChoiceLayer)
    return node.layer


def check_choice(node: Node) -> None:
    """Check that a choice can be left to a search outside of the graph.

    :raises ConfigError: it has no scores of labels, or follows the target
    """
    layer = choice_of(node)
    if layer.input_type not in _INPUT_TYPES:
        raise _error(
            node,
            "input_type %r has no scores that are log probabilities. Use 'prob' or 'log_prob'" % layer.input_type,
        )
    if not layer.searches:
        raise _error(node, "it follows its target and has no scores of its own. Remove its option 'search'")
    if len(node.sources) != 1:
        raise _error(
            node, "it has %d sources, but one variable of scores. Use a choice for each source" % len(node.sources)
        )


def gives_scores(node: Node) -> bool:
    """Return whether a search outside gets the scores of a choice."""
    return choice_of(node).score_dependent


def scores_for_search(ctx: EmitContext) -> Any:
    """Return the log probabilities of a choice, [batch, labels]; scales and length normalisation are left out."""
    layer = choice_of(ctx.node)
    return log_probs_of(ctx, layer.source, layer.input_type)


def _error(node: Node, text: str) -> ConfigError:
    return SearchError(
        "Layer %r (class 'choice') can't be left to a search outside of the graph: %s." % (node.path, text)
    )
