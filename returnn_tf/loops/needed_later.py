"""What the rest of a step, and the next one, need after a choice."""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.graph.node import Node
from returnn_tf.loops.hypotheses import Hypotheses
from returnn_tf.loops.plan import LoopPlan


def needed_after(
    loop: LoopPlan, nodes: Sequence[Node], deps: Sequence[Node], position: int, hyps: Hypotheses
) -> list[Node]:
    """Return the nodes of the step, and its inputs, used after a choice; all, if the beam size changes.

    The order is the same in each run, since the ops are created in it.

    :param nodes: the layers of the step
    :param deps: what they need from outside
    :param position: of the choice
    """
    later = [*(of for _, of, _ in loop.prevs), *loop.collected]
    if loop.ending.end is not None:
        later.append(loop.ending.end)
    for node in nodes[position + 1 :]:
        later += [node, *node.deps]
    assert hyps.scores is not None
    if hyps.scores.shape[1] != hyps.beam:
        return list(dict.fromkeys([*later, *deps]))
    same = {*deps, *(inner for _, inner in loop.slices if inner not in nodes[: position + 1])}
    return [node for node in dict.fromkeys(later) if node not in same]
