"""`StepsExporter`: single steps of a loop for decoders, which search on their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Optional

from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.config.options import option
from returnn_tf.engine.checkpoints.params import save_checkpoint
from returnn_tf.export.exporters import RoundingExporter, register_exporter
from returnn_tf.export.graph_ops import check_ops
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.meta.exporter import input_tensors
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.export.meta.graph_files import graph_content, lines
from returnn_tf.export.meta.names import STATE_VARS
from returnn_tf.export.native_libraries import PORTABLE, copy_libraries
from returnn_tf.export.side_file import read_side_file
from returnn_tf.export.steps.check import StepCheck, network_with_params
from returnn_tf.export.steps.client import StepDecoder
from returnn_tf.export.steps.graph import DECODER, GRAPH, StepGraph, add_steps, step_facts
from returnn_tf.export.steps.loops import StepLoop, plan_for_steps
from returnn_tf.export.tensor_info import LENGTHS, graph_name

GRAPH_FILE, CHECKPOINT, DESCRIPTION = "graph.meta", "params", "steps.json"
STATES, PARAMS = "state_vars.txt", "params.txt"


@register_exporter("steps")
class StepsExporter(RoundingExporter):
    """Single steps of a loop, for decoders that search on their own, such as RASR's label scorers: a meta graph."""

    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # not for single layers: a loop with choices is needed

    layer: str = option("output", help="path of the 'rec' layer whose steps are computed")
    counter: Optional[str] = option(
        None,
        help="who counts the steps: graph or decoder; default: the decoder if steps are frames, else the graph",
        choices=(None, GRAPH, DECODER),
    )
    portable: bool = option(False, help=PORTABLE)

    @property
    def searches(self) -> bool:
        """Return whether the network is exported as it searches: always."""
        return True

    def model(self, net: Any) -> InferenceModel:
        """Return the network as it searches.

        :raises ConfigError: there is no such loop, or outputs are named
        """
        if self.outputs:
            raise ExportError("export to steps: outputs can't be named; it has the scores and states of a step.")
        plan_for_steps(net.config, self.layer)
        return InferenceModel(network_with_params(net.config, net), [self.layer])

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write graph, checkpoint, description, lists and the libraries of native ops."""
        plan = plan_for_steps(model.net.config, self.layer)
        lacking = [name for name in plan.params if name not in model.net.stored_params]
        if lacking:
            raise ExportDataError(
                "export to steps: a step needs the parameter %r, which the search lacks." % lacking[0]
            )
        builder = GraphBuilder(plan, model.net.config, portable=self.portable)
        graph = add_steps(builder, self.layer, counter=self.counter)
        graph_def: Any = builder.graph_def()
        check_ops(graph_def, "steps")
        self._write_files(builder, graph, folder)
        save_checkpoint(model.net, os.path.join(folder, CHECKPOINT))
        self.input_tensors = input_tensors(builder, model)
        self.facts.update(
            meta_graph=GRAPH_FILE,
            checkpoint=CHECKPOINT,
            description=DESCRIPTION,
            steps=step_facts(StepLoop(plan, self.layer), graph),
            native=copy_libraries(graph_def, folder),
        )

    def _write_files(self, builder: GraphBuilder, graph: StepGraph, folder: str) -> None:
        states = [variable.op.name for variable in builder.graph.get_collection(STATE_VARS)]
        contents = {
            GRAPH_FILE: graph_content(builder, ".meta"),
            DESCRIPTION: graph.as_json().encode("utf8"),
            STATES: lines(states),
            PARAMS: lines(builder.variables.stored),
        }
        for name, content in contents.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Search by single steps; return the labels of the choice "output", else the last one, lengths and scores."""
        inputs = read_side_file(folder)["inputs"]
        with StepDecoder.open(folder) as decoder:
            found = decoder.search({_feed_name(inputs[name]): value for name, value in feed.items()})
            labels = found.labels[decoder.choices.index("output") if "output" in decoder.choices else -1]
        name = graph_name(self.layer)
        return {
            name: labels.reshape([found.scores.size, labels.shape[-1]]),
            name + "_size0": found.lengths.reshape(-1),
            name + "_scores": found.scores,
        }

    def check(self, model: InferenceModel, folder: str) -> None:
        """Score the hypotheses of a search by single steps.

        :raises DataError: a score differs
        """
        with StepDecoder.open(folder) as decoder:
            check = StepCheck(model.net, self.layer, decoder.choices, decoder.scored)
            check.run(decoder, self.largest_difference())


def _feed_name(entry: Mapping[str, Any]) -> str:
    """Return an input as `StepDecoder` names it: "<key>", or "<key>/size<i>" for lengths.

    :param entry: of the input in the side file
    """
    key: str = entry["layer"].partition(":")[2]
    return "%s/size%d" % (key, entry["axis"]) if entry["kind"] == LENGTHS else key
