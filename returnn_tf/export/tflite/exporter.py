"""`TFLiteExporter`: a file for TFLite's interpreter."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import DataError, ExportDataError, ExportError
from returnn_tf.config.options import at_least, option
from returnn_tf.export.dataset_inputs import dataset_inputs
from returnn_tf.export.exporters import register_exporter
from returnn_tf.export.graph_ops import check_ops, op_types
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.layers_of_ops import check_assignments, layers_of_ops
from returnn_tf.export.saved_model.exporter import save
from returnn_tf.export.streaming_exporter import StreamingExporter
from returnn_tf.export.tensor_info import TensorInfo
from returnn_tf.export.tflite.conversion import QUANTIZE, ConversionError, convert, no_form, ops_of_kernel, refused
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.cells.fused_lstm import TFLITE_LSTM
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.quiet import stderr_to_log

FILE = "model.tflite"
#: Largest difference with quantised weights, relative to the largest value of an output (at least 1).
_QUANTIZED_TOLERANCE = {"float16": 1e-2, "dynamic_range": 1e-1, "int8": 1e-1}


@register_exporter("tflite")
class TFLiteExporter(StreamingExporter):
    """TFLite: one file for the interpreter on phones and boards; by default one sequence at a time, of any length."""

    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "": {},
        "--batch 0 --select-tf-ops": {"batch": 0, "select_tf_ops": True},
    }

    batch: int = option(1, help="number of sequences in a run; 0: any number", check=at_least(0))
    frames: Optional[int] = option(
        None,
        help="size of all time axes of the inputs, to which shorter sequences are padded; default: any",
        check=at_least(1),
    )
    select_tf_ops: bool = option(
        False, help="allow ops that TFLite lacks and TensorFlow has: programs then have to link TFLite's Flex delegate"
    )
    quantize: str = option("none", help="how weights are stored; computation is less exact then", choices=QUANTIZE)

    calibrate: str = option("", help="with quantize int8: the dataset whose sequences tell the ranges of activations")
    calibrate_seqs: int = option(100, help="number of sequences for calibrate", check=at_least(1))

    def __post_init__(self) -> None:
        super().__post_init__()
        self._calibration: list[dict[str, NDArray[Any]]] = []

    def model(self, net: Network) -> InferenceModel:
        """Return the model.

        :raises ConfigError: int8 without a dataset, a dataset without int8
        """
        if bool(self.calibrate) != (self.quantize == "int8"):
            raise ExportError(
                "export to tflite: quantize int8 needs calibrate, a dataset of the config such as 'train', and only "
                "int8 needs it. Give both or neither."
            )
        return super().model(net)

    @property
    def fixed_batch(self) -> Optional[int]:
        """Return the option ``batch``."""
        return self.batch or None

    @property
    def fixed_frames(self) -> Optional[int]:
        """Return the option ``frames``."""
        return self.frames

    def largest_difference(self) -> float:
        """Return the tolerance: larger for quantised weights."""
        return _QUANTIZED_TOLERANCE.get(self.quantize, self.tolerance)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write the file."""
        specs = {
            name: tf.TensorSpec(self._fixed_shape(info), info.dtype, name=name)
            for name, info in model.input_infos.items()
        }
        with portable_ops(lstm=None if self.quantize == "float16" else TFLITE_LSTM):
            graph = tf.function(lambda **inputs: model.emit(inputs), autograph=False).get_concrete_function(**specs)
        graph_def = graph.graph.as_graph_def()
        check_ops(graph_def, self.class_name)
        check_assignments(model.net.plan, graph_def, self.class_name)
        if self.calibrate:
            self._calibration = list(self._calibration_inputs(model))
        try:
            with tempfile.TemporaryDirectory() as temp:
                save(graph, temp)
                content, tf_ops = convert(
                    temp,
                    select_tf_ops=self.select_tf_ops,
                    quantize=self.quantize,
                    calibration=self._calibration,
                )
        except ConversionError as exc:
            layers = layers_of_ops(model.net.plan, graph_def, exc.ops)
            raise ExportError(no_form(exc, layers, batch=self.batch, select_tf_ops=self.select_tf_ops)) from exc
        path = os.path.join(folder, FILE)
        with open(path, "wb") as file:
            file.write(content)
        self._try(model, path, graph_def)
        self.input_tensors, self.output_tensors = tensor_names(path)
        self.facts["graph"] = FILE
        self.facts["batch"], self.facts["frames"] = self.batch or None, self.frames
        self.facts["quantize"], self.facts["tolerance"] = self.quantize, self.largest_difference()
        self.facts["tf_ops"] = tf_ops

    def _calibration_inputs(self, model: InferenceModel) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield inputs of the dataset for calibration."""
        options: dict[str, Any] = {"batch": self.fixed_batch, "frames": self.fixed_frames, "where": "--calibrate"}
        for feed, _ in dataset_inputs(model, self.calibrate, count=self.calibrate_seqs, most=1, **options):
            yield feed

    def _try(self, model: InferenceModel, path: str, graph_def: Any) -> None:
        """Run the file once.

        :raises ConfigError: the interpreter refuses an op for its options, e.g. a Fourier transform of a certain size
        """
        try:
            run_model(path, next(self.samples(model)))
        except DataError as exc:
            types = ops_of_kernel(str(exc), op_types(graph_def))
            raise ExportError(refused(exc, layers_of_ops(model.net.plan, graph_def, types))) from exc

    def _fixed_shape(self, info: TensorInfo) -> list[Optional[int]]:
        fixed = {"B": self.batch or None, "T": self.frames}
        return [fixed.get(axis) if size is None else size for axis, size in zip(info.axes, info.shape)]

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the file by TFLite's interpreter in Python."""
        return run_model(os.path.join(folder, FILE), feed)

    def samples(self, model: InferenceModel) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield inputs of the sizes that the file has, with padding; with int8 some of those for calibration."""
        if self._calibration:
            yield from self._calibration[:3]
            return
        if not self.batch and not self.frames:
            yield from super().samples(model)
            return
        count = self.batch or 3
        sample = model.sample(batch=3 * count, frames=self.frames or 13)
        for first in range(0, 3 * count, count):
            yield {
                name: self._cut(model.input_infos[name], value, slice(first, first + count))
                for name, value in sample.items()
            }

    def _cut(self, info: TensorInfo, value: NDArray[Any], rows: slice) -> NDArray[Any]:
        """Return some sequences of an input, padded to the fixed number of frames."""
        if "B" in info.axes:
            value = value[(slice(None),) * info.axes.index("B") + (rows,)]
        more = [(self.frames or size) - size if axis == "T" else 0 for axis, size in zip(info.axes, value.shape)]
        return np.pad(value, [(0, max(n, 0)) for n in more])


def run_model(path: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run the signature of a TFLite file.

    :param feed: arrays by input name; inputs that the file does not have are ignored
    :return: arrays by output name
    :raises DataError: the interpreter can't run the file, e.g. as it has no Flex delegate
    """
    try:
        with stderr_to_log():
            runner = tf.lite.Interpreter(model_path=path).get_signature_runner()
            return dict(runner(**{name: feed[name] for name in runner.get_input_details()}))
    except (RuntimeError, ValueError) as exc:
        reason = str(exc).strip().splitlines()[0]
        raise ExportDataError("TFLite's interpreter can't run %s: %s" % (os.path.basename(path), reason)) from exc


def tensor_names(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of the tensors in a TFLite file by the names of its inputs and outputs."""
    with stderr_to_log():
        runner = tf.lite.Interpreter(model_path=path).get_signature_runner()
    parts = (runner.get_input_details(), runner.get_output_details())
    inputs, outputs = ({name: info["name"] for name, info in details.items()} for details in parts)
    return inputs, outputs
