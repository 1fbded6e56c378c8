"""`SavedModelExporter`: TensorFlow's SavedModel, for TensorFlow in Python, C and C++."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from returnn_tf.config.options import option
from returnn_tf.export.exporters import RoundingExporter, register_exporter
from returnn_tf.export.graph_ops import check_ops
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.native_libraries import PORTABLE, copy_libraries, maybe_portable
from returnn_tf.export.saved_model.run import run_in_process
from returnn_tf.export.streaming_exporter import StreamingExporter
from returnn_tf.util.lazy_tf import tf

SIGNATURE = "serving_default"


@register_exporter("saved_model")
class SavedModelExporter(RoundingExporter, StreamingExporter):
    """TensorFlow's SavedModel: one signature of named, batch-major tensors, for TensorFlow in Python, C and C++."""

    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}, "--portable": {"portable": True}}

    portable: bool = option(False, help=PORTABLE)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write the SavedModel and the libraries of native ops."""
        with maybe_portable(self.portable):
            graph = model.trace()
        check_ops(graph.graph.as_graph_def(), "saved_model")
        save(graph, folder)
        self.facts["signature"] = SIGNATURE
        self.input_tensors, self.output_tensors = tensor_names(folder)
        self.facts["native"] = copy_libraries(graph.graph.as_graph_def(), folder)

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the signature in a new process, in which no library is loaded but those of the export."""
        return run_in_process(folder, feed)


def save(graph: Any, folder: str) -> None:
    """Write a traced function as the signature of a SavedModel.

    :param graph: concrete function of named tensors, with a dict of outputs
    """
    module = tf.Module()
    module.params = list(graph.variables)
    # without custom gradients, of which those of loops can't be saved; nobody trains this graph
    saving = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, folder, signatures={SIGNATURE: graph}, options=saving)


def tensor_names(folder: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names in the graph of the inputs and outputs of the signature, for programs that read no protobuf.

    :param folder: of a SavedModel
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        saved = SavedModel.FromString(file.read())
    signature = saved.meta_graphs[0].signature_def[SIGNATURE]
    inputs = {name: info.name for name, info in signature.inputs.items()}
    return inputs, {name: info.name for name, info in signature.outputs.items()}
