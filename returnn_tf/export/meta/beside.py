"""The graph that lies beside checkpoints, as ``.meta``: for programs that load graph and parameters by one prefix."""

from __future__ import annotations

from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.network.planning.plan import Plan


def graph_of_training(plan: Plan) -> bytes:
    """Return the content of the file ``.meta`` for the network of a training: layers, losses and errors.

    It is a graph for inference with the names of `returnn_tf.export.meta.names`: dropout etc. are off, though the plan
    is one for training. May be called in any thread; takes some seconds.

    :raises ConfigError: a layer can't be in a graph for other programs
    """
    builder = GraphBuilder(plan, losses=True)
    builder.emit_network()
    return bytes(builder.meta_graph().SerializeToString())
