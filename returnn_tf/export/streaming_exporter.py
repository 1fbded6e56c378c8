"""Options of the targets that can write a network as a function of a block of frames and a state."""

from __future__ import annotations

import dataclasses

from returnn_tf.compiler.network import Network
from returnn_tf.config.options import at_least, option
from returnn_tf.export.exporters import Exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.stream_check import check_stream
from returnn_tf.export.streaming import StreamingModel


@dataclasses.dataclass(eq=False, repr=False)
class StreamingExporter(Exporter):
    """A target with the option ``state``."""

    state: bool = option(
        False,
        help="the state of recurrent layers is input and output, so that sequences are computed block by block",
    )
    block: int = option(1, check=at_least(1), help="with state: number of frames that blocks are multiples of")

    def model(self, net: Network) -> InferenceModel:
        """Return the model; with state, it is checked to compute block by block what it does for whole sequences."""
        if not self.state:
            return super().model(net)
        model = StreamingModel(net, self.outputs)
        check_stream(model, self.block)
        return model
