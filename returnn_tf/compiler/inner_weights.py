"""Attention weights that layers compute inside, for whoever asks: training, evaluation and graphs do without them."""

from __future__ import annotations

from typing import Any

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import DimError
from returnn_tf.config.user_code import using_config
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.tensor import Data


def inner_weights_template(plan: Plan, node: Node) -> Data:
    """Return the template of the attention weights inside a layer, with the keys as the last axis.

    Its time axis is that of the queries; None if there is one query for all frames.

    :raises ConfigError: why they are not known outside of the layer, without its name
    """
    if node not in plan.nodes:
        raise DimError("it is computed step by step, in a loop or a branch")
    return node.layer.weights_template().replace(beam=node.output.beam)


def emit_inner_weights(config: Config, lowered: Lowered, node: Node) -> Any:
    """Emit the attention weights inside a layer that has been emitted: from its sources, without dropout on them.

    Rows of padding hold anything. It may be called within a branch: nothing that it emits is shared.

    :param config: of the network, for functions defined in it
    :return: float, in the layout of `inner_weights_template`
    """
    with using_config(config):
        return node.layer.emit_weights(EmitContext(node, lowered.lowering.child(), may_reduce=True))
