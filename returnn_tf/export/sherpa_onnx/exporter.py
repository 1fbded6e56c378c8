"""`SherpaOnnxExporter`: a model that sherpa-onnx loads and feeds with features of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.options import at_least, option
from returnn_tf.export.exporters import Exporter, register_exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.exporter import OPSETS
from returnn_tf.export.onnx.packages import packages
from returnn_tf.export.sherpa_onnx.ctc import ServedCtc, ServedStreamingCtc
from returnn_tf.export.sherpa_onnx.served import Served
from returnn_tf.export.sherpa_onnx.transducer import ServedStreamingTransducer, ServedTransducer


@register_exporter("sherpa-onnx")
class SherpaOnnxExporter(Exporter):
    """sherpa-onnx: CTC or a transducer with tokens.txt, for its servers and apps, also for streams."""

    forms = {}

    opset: int = option(17, help="version of the operators: %d to %d" % (OPSETS[0], OPSETS[-1]), choices=OPSETS)
    transducer: Optional[str] = option(
        None, help="path of a 'rec' layer with a 'choice', which gives a label or a blank for each frame; default: CTC"
    )
    streaming: Optional[int] = option(
        None,
        check=at_least(1),
        help="for streams, in blocks of so many frames of the output; default: whole recordings",
    )

    @property
    def searches(self) -> bool:
        """Return whether the network is exported as it searches."""
        return self.transducer is not None

    @property
    def outputs_of_search(self) -> bool:
        """Return whether the outputs are by default those of task ``search``."""
        return self.transducer is not None

    def model(self, net: Network) -> InferenceModel:
        """Return the model, with posteriors of CTC, or what a transducer finds, as its output.

        :raises ConfigError: the network is no such model; names the layer that differs
        """
        self._served = self._serve(net)
        return self._served.model

    def _serve(self, net: Network) -> Served:
        if self.transducer is None:
            if self.streaming is None:
                return ServedCtc(net, self.outputs)
            return ServedStreamingCtc(net, self.outputs, self.streaming)
        if self.streaming is None:
            return ServedTransducer(net, self.outputs, self.transducer)
        return ServedStreamingTransducer(net, self.outputs, self.transducer, self.streaming)

    def write(self, model: InferenceModel, folder: str) -> None:
        """Write the models and the symbols."""
        packages()
        self.facts.update(self._served.write(folder, self.opset))
        self.input_tensors, self.output_tensors = self._served.input_tensors, self._served.output_tensors

    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run what was written by onnxruntime on inputs of the network; return values as it computes them."""
        return self._served.run(folder, feed)

    def check(self, model: InferenceModel, folder: str) -> None:
        """Compare the files with the network, and what sherpa-onnx recognises in audio with the labels of the network.

        :raises DataError: they differ
        """
        self._served.check_numbers(folder)
        self._served.check_audio(folder)
