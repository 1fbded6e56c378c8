"""Removes layers that were planned, but which no output and no loss needs, e.g. those which only told an n_out."""

from __future__ import annotations

import dataclasses

from returnn_tf.network.planning.plan import Plan


def remove_dead_layers(plan: Plan) -> Plan:
    """The plan without dead layers."""
    alive = plan.needed(plan.roots(), plan.losses)
    return dataclasses.replace(
        plan,
        nodes=[node for node in plan.nodes if node in alive],
        extern={key: node for key, node in plan.extern.items() if node in alive},
    )
