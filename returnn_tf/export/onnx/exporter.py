"""`OnnxExporter`: a file for onnxruntime and other programs that run ONNX."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.config.options import at_least, option
from returnn_tf.export.exporters import register_exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.names import file_names
from returnn_tf.export.onnx.packages import packages
from returnn_tf.export.onnx.quantization import QUANTIZED_TOLERANCE, quantize_matrices
from returnn_tf.export.onnx.session import Session
from returnn_tf.export.onnx.stateful.model import StatefulModel
from returnn_tf.export.onnx.write import write_network
from returnn_tf.export.side_file import read_side_file
from returnn_tf.export.streaming_exporter import StreamingExporter

FILE = "model.onnx"
#: The versions of ONNX's operators that tf2onnx writes right for our graphs.
OPSETS = tuple(range(14, 19))


@register_exporter("onnx")
class OnnxExporter(StreamingExporter):
    """ONNX: one file for onnxruntime and other programs, also for RASR's ``onnx-forward``."""

    opset: int = option(17, help="version of the operators: %d to %d" % (OPSETS[0], OPSETS[-1]), choices=OPSETS)
    batch: Optional[int] = option(None, help="fixed number of sequences in a run; default: any", check=at_least(1))
    rasr: bool = option(
        False, help="RASR's names: features, features-size, output and output-size for a single input and output"
    )
    names: dict[str, str] = option({}, help="other names in the file, e.g. \"{'data': 'x', 'data_size0': 'n'}\"")

    int64: bool = option(False, help="lengths and labels are int64 instead of int32, as many other programs want them")
    metadata: dict[str, Any] = option({}, help="metadata_props of the file, e.g. \"{'model_type': 'zipformer2_ctc'}\"")

    stateful: Optional[str] = option(
        None,
        help="path of a 'rec' layer: three models for single steps of it and one for what it reads from outside, for a "
        "search outside, as by RASR's stateful-onnx",
    )

    quantize: Optional[str] = option(
        None, help="store matrices as int8, by onnxruntime's dynamic quantization", choices=(None, "int8")
    )
    exclude: list[str] = option([], help="with quantize: layers or patterns that stay float32")

    @property
    def fixed_batch(self) -> Optional[int]:
        """Return the option ``batch``."""
        return self.batch

    @property
    def searches(self) -> bool:
        """Return whether the network is exported as it searches."""
        return self.stateful is not None

    def model(self, net: Network) -> InferenceModel:
        """Return the model to export of a network.

        :raises ConfigError: an output does not exist, or the loop can't be computed step by step
        """
        if self.exclude and self.quantize is None:
            raise ExportError("export to onnx: exclude has a meaning with quantize alone. Add it.")
        if self.stateful is None:
            model = super().model(net)
            if self.int64:
                model.widen_integers()
            return model
        options = ("outputs", "batch", "state", "int64", "metadata", "quantize")
        without = [name for name in options if getattr(self, name)]
        if without:
            raise ExportError("export to onnx: %s has no meaning with stateful. Remove one of them." % without[0])
        return StatefulModel(net, self.stateful)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write the files, checked by onnx."""
        packages()  # what is not installed, before any work
        if isinstance(model, StatefulModel):
            model.write(folder, self.opset, rasr=self.rasr, names=self.names)
            self.facts.update(opset=self.opset, **model.facts)
            self.input_tensors = model.input_tensors
            return
        names = file_names(model, self.names, rasr=self.rasr)
        write_network(
            model, os.path.join(folder, FILE), opset=self.opset, names=names, batch=self.batch, metadata=self.metadata
        )
        if self.quantize is not None:
            self.facts["int8"] = quantize_matrices(os.path.join(folder, FILE), model.net.plan, self.exclude)
        self.facts.update(graph=FILE, opset=self.opset, batch=self.batch)
        self.input_tensors = {name: names[name] for name in model.input_infos}
        self.output_tensors = {name: names[name] for name in model.outputs}

    def check(self, model: InferenceModel, folder: str) -> None:
        """Compare what was written with the network.

        :raises DataError: they differ
        """
        if isinstance(model, StatefulModel):
            model.check(folder, rasr=self.rasr, most=self.tolerance)
        elif self.quantize is not None and model.net.search:
            for sample in self.samples(model):
                self.run(folder, sample)  # its labels may be others, as the numbers of a random batch tell nothing
        else:
            super().check(model, folder)

    def largest_difference(self) -> float:
        """Return the tolerance: larger with int8."""
        return self.tolerance if self.quantize is None else QUANTIZED_TOLERANCE

    def samples(self, model: InferenceModel) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield inputs of two sizes, as a converter may take a size of the first for a constant."""
        yield model.sample(batch=self.batch or 3)
        yield model.sample(seed=2, batch=self.batch or 2, frames=21)

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the file by onnxruntime."""
        facts = read_side_file(folder)
        session = Session(os.path.join(folder, facts["graph"]))
        got = session.run({entry["tensor"]: feed[name] for name, entry in facts["inputs"].items()})
        return {name: got[entry["tensor"]] for name, entry in facts["outputs"].items()}
