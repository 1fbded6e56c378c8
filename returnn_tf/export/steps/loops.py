"""The loop of which a graph computes single steps."""

from __future__ import annotations

from typing import cast

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError, did_you_mean
from returnn_tf.export.meta.names import op_name
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.outer_search import check_choice
from returnn_tf.loops.frame import LoopRunLayer, loop_of
from returnn_tf.loops.plan import LoopPlan


def plan_for_steps(config: Config, layer: str) -> Plan:
    """Plan the network of a config for single steps of a loop: as for search, with all layers of the loop inside.

    :param layer: path of the `rec` layer
    :raises ConfigError: there is no such loop, or a mistake in the network
    """
    plan = plan_from_config(config, search=True, whole_loops=[layer])
    StepLoop(plan, layer)
    return plan


class StepLoop:
    """A loop of a plan made by `plan_for_steps`.

    :param layer: path of the `rec` layer
    :raises ConfigError: there is no such loop, or its choices can't be left to a search outside
    """

    def __init__(self, plan: Plan, layer: str) -> None:
        self.plan, self.path = plan, layer
        self.rec = self._find_rec()
        self._check_choices()
        #: The node that runs the loop; its ``inner`` are the layers of a step in the order of their computation.
        self.run = self._find_run()
        self.loop: LoopPlan = cast(LoopRunLayer, self.run.layer).loop
        #: The labels that the search outside decides on, in the order of a step.
        self.choices: list[Node] = [node for node in self.run.inner if node.layer.chooses_labels]
        self._check_states()

    def _find_rec(self) -> Node:
        by_path = self.plan.by_path()
        node = by_path.get(self.path)
        if node is None:
            inside = [n.path for n in self.plan.all_nodes() if n.path == self.path]
            loops = [n.path for n in self.plan.nodes if n.exits]
            if inside:
                text = "it runs in a step of another loop. Name the outer one."
            else:
                text = "there is no such layer. %s" % did_you_mean(self.path, loops)
            raise ExportError("Single steps of layer %r: %s" % (self.path, text))
        if not node.exits:
            raise ExportError(
                "Single steps of layer %r (class %r): it is not a 'rec' layer with a network as unit. Name one that is."
                % (self.path, node.layer.class_name)
            )
        return node

    def _find_run(self) -> Node:
        node = self.plan.by_path().get(self.path + "/loop")
        if node is None or loop_of(node) is None:
            raise ExportError(
                "Single steps of layer %r: its unit has no layer that runs step by step. Plan the network by "
                "plan_for_steps." % self.path
            )
        return node

    def _check_choices(self) -> None:
        prefix = self.path + "/"
        choices = [n for n in self.plan.all_nodes() if n.layer.chooses_labels and n.path.startswith(prefix)]
        for node in choices:
            check_choice(node)
        if not choices:
            raise ExportError(
                "Single steps of layer %r: its unit has no layer of class 'choice', so there are no labels to search "
                "for." % self.path
            )

    def _check_states(self) -> None:
        for node in self.run.inner:
            if node.kept:
                raise ExportError(
                    "Single steps of layer %r: layer %r keeps its state from batch to batch, while the states here "
                    "start over with each batch. Set its initial_state to 'zeros'." % (self.path, node.path)
                )

    def name_of(self, node: Node) -> str:
        """Return the name of a layer of the loop, relative to it, as in names of ops."""
        prefix = self.path + "/"
        return op_name(node.path[len(prefix) :] if node.path.startswith(prefix) else node.path)
