"""The graph beside the checkpoints of a training: the content of the files ``.meta``."""

from __future__ import annotations

import os
from typing import Optional

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.engine.checkpoints.meta_graphs import BuildGraph
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.graph.fine_tuning import without_fine_tuning

#: The environment variable that disables the files for all trainings, whatever their configs say.
DISABLING = "RETURNN_TF_META_GRAPH"


def graph_writer() -> Optional[BuildGraph]:
    """Return the function that makes the files; None if they are disabled."""
    return None if os.environ.get(DISABLING) == "0" else meta_graph


def meta_graph(plan: Plan, config: Config) -> bytes:
    """Return the graph of a network as forwarding computes it: inputs, variables, outputs, and a saver.

    It needs no native library, as there is none beside a checkpoint.

    :param plan: as for training
    :param config: that of the plan
    """
    if plan.adapted:  # checkpoints have the sums
        config = without_fine_tuning(config)
        plan = plan_from_config(config, train=True)
    builder = GraphBuilder(plan, config, portable=True)
    builder.emit_network()
    content: bytes = builder.meta_graph().SerializeToString()
    return content
