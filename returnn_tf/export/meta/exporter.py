"""`MetaExporter`: the graph as ``compile_tf_graph.py`` of RETURNN makes it, with its checkpoint and libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from returnn_tf.config.options import option
from returnn_tf.engine.checkpoints.params import save_checkpoint
from returnn_tf.export.exporters import RoundingExporter, register_exporter
from returnn_tf.export.graph_ops import check_ops
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.meta import names
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.export.meta.graph_files import graph_content, lines
from returnn_tf.export.meta.names import named
from returnn_tf.export.native_libraries import PORTABLE, copy_libraries
from returnn_tf.export.saved_model.run import run_in_process

#: Prefix of the checkpoint, and of the graph: ``graph.meta``, ``graph.index``, ``graph.data-00000-of-00001``.
PREFIX = "graph"
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "process.py")


@register_exporter("meta")
class MetaExporter(RoundingExporter):
    """A meta graph with a checkpoint: names and collections as decoders such as RASR know them from RETURNN."""

    portable: bool = option(False, help=PORTABLE)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write graph, checkpoint, the libraries of native ops, and lists of the parameters and state variables."""
        builder = GraphBuilder(model.net.plan, model.net.config, portable=self.portable)
        builder.emit_network()
        self.input_tensors, self.output_tensors = input_tensors(builder, model), _outputs(builder, model)
        graph_def = builder.graph_def()
        check_ops(graph_def, self.class_name)
        self.facts["native"] = copy_libraries(graph_def, folder)
        self.facts["meta_graph"], self.facts["checkpoint"] = PREFIX + ".meta", PREFIX
        self.facts["layers"] = builder.outputs
        self.facts["parameters"] = [names.op_name(name) for name in builder.variables.stored]
        self.facts["states"] = builder.state_names()
        self.facts["fed"] = builder.states.fed()
        contents = {
            PREFIX + ".meta": graph_content(builder, ".meta"),
            "parameters.txt": lines(self.facts["parameters"]),
            "states.txt": lines(self.facts["states"]),
        }
        for name, content in contents.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        save_checkpoint(model.net, os.path.join(folder, PREFIX))

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph in a session of a new process, which loads it as RASR does."""
        return run_in_process(folder, feed, program=_PROGRAM)


def _outputs(builder: GraphBuilder, model: InferenceModel) -> dict[str, str]:
    """Add an op ``outputs/<name>`` for each output of the model; return the names of the tensors."""
    lowered = builder.lowered
    assert lowered is not None
    with builder.emitting():
        found = {name: x for node in model.nodes for name, x in model.tensors_of(lowered, node).items()}
        return {name: named(found[name], "outputs/" + name).name for name in model.outputs}


def input_tensors(builder: GraphBuilder, model: InferenceModel) -> dict[str, str]:
    """Return the name of the tensor of each input."""
    feed = model.feed_names({name: name for name in model.input_infos})
    return {name: builder.inputs.feed[key].name for key, name in feed.items()}
