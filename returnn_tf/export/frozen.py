"""`FrozenExporter`: one file with the graph and its parameters, for sessions of TensorFlow in Python, C and C++."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from returnn_tf.config.options import option
from returnn_tf.export.exporters import RoundingExporter, register_exporter
from returnn_tf.export.graph_ops import add_outputs, check_ops
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.layers_of_ops import check_assignments
from returnn_tf.export.native_libraries import PORTABLE, copy_libraries, maybe_portable
from returnn_tf.export.saved_model.run import run_in_process
from returnn_tf.export.streaming_exporter import StreamingExporter
from returnn_tf.util.lazy_tf import tf

FILE = "model.pb"


@register_exporter("frozen")
class FrozenExporter(RoundingExporter, StreamingExporter):
    """A frozen GraphDef: one file with parameters as constants, without functions, for sessions of TensorFlow."""

    portable: bool = option(False, help=PORTABLE)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write the graph and the libraries of native ops.

        Inputs are placeholders and outputs are nodes with the names of `InferenceModel`.
        """
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        with maybe_portable(self.portable):
            function = tf.function(lambda **inputs: model.emit(inputs), autograph=False)
            graph = function.get_concrete_function(**model.inputs)
        check_ops(graph.graph.as_graph_def(), self.class_name)
        check_assignments(model.net.plan, graph.graph.as_graph_def(), self.class_name)
        frozen = convert_variables_to_constants_v2(graph)  # loops become Switch, Merge, ... as in TensorFlow 1
        graph_def = frozen.graph.as_graph_def()
        outputs = dict(zip(sorted(model.outputs), (tensor.name for tensor in frozen.outputs)))
        self.facts["graph"] = FILE
        self.input_tensors = {name: name + ":0" for name in model.input_infos}
        self.output_tensors = add_outputs(graph_def, outputs, list(model.input_infos))
        self.facts["native"] = copy_libraries(graph_def, folder)
        with open(os.path.join(folder, FILE), "wb") as file:
            file.write(graph_def.SerializeToString(deterministic=True))

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph in a session of a new process, in which no library is loaded but those of the export."""
        return run_in_process(folder, feed)
