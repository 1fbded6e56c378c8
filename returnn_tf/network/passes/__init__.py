"""Passes: pure functions from plan to plan, one file each, run in the order of the table."""

from __future__ import annotations

from typing import Callable, List

from returnn_tf.network.passes.dead_layers import remove_dead_layers
from returnn_tf.network.planning.plan import Plan

PASSES: List[Callable[[Plan], Plan]] = [remove_dead_layers]


def run_passes(plan: Plan) -> Plan:
    """All passes, in order."""
    for run in PASSES:
        plan = run(plan)
    return plan
