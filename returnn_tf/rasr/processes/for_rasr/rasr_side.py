"""The module that RASR imports: it sends what RASR computes to the program that has started RASR.

It runs in the interpreter inside of RASR, which can be of another version, so it needs only numpy and the standard
library, and it writes nothing but errors to the standard streams. RASR calls the functions and methods here by
keywords; further ones of newer versions are ignored.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

if __package__:
    from returnn_tf.rasr.processes.for_rasr.rasr_pipe import parse_config, text_of, write_message
    from returnn_tf.rasr.processes.for_rasr.rasr_server import Server
else:  # RASR knows only the folder
    from rasr_pipe import parse_config, text_of, write_message  # type: ignore[no-redef]
    from rasr_server import Server  # type: ignore[no-redef]


class Sequences:
    """Sends sequences: "init" with the dims, "data" for each, "exit" at the end.

    Its methods are what RASR calls with its action python-control and the loop type iterate-corpus.
    """

    num_segments: Optional[int] = None  # known from getSegmentList

    def __init__(self, options: dict[str, str]) -> None:
        self._file = os.fdopen(int(options["c2p_fd"]), "wb")
        self._started = False
        self._count = 0

    def send(self, *message: Any) -> None:
        """Send a message; the other side being gone ends RASR, too."""
        write_message(self._file, message)

    def init_processing(self, input_dim: int, output_dim: int, **_: Any) -> None:
        """Send the dims, once."""
        if not self._started:
            self._started = True
            self.send("init", (int(input_dim), int(output_dim), Sequences.num_segments))

    def process_segment(
        self,
        name: Optional[str] = None,
        orthography: Any = None,
        speaker_name: Any = None,
        features: Any = None,
        alignment: Any = None,
        soft_alignment: Any = None,
        **_: Any,
    ) -> None:
        """Send a sequence: features [dim, time], and what else there is of it."""
        if not self._started:
            self.init_processing(-1 if features is None else features.shape[0], -1)
        targets = {"classes": alignment, "orth": text_of(orthography), "speaker_name": text_of(speaker_name)}
        if soft_alignment is not None:
            for number, value in enumerate(soft_alignment):
                targets["classes[sparse:coo:2:%d]" % number] = value
        tag = "segment-%d" % self._count if name is None else name
        self._count += 1
        self.send("data", (tag, features, {key: value for key, value in targets.items() if value is not None}))

    def init_segment(self, **_: Any) -> None:
        """Ignore the begin of a segment."""

    def notify_segment_loss(self, **_: Any) -> None:
        """Ignore a loss."""

    def run_control_loop(self, **_: Any) -> None:
        """Refuse: RASR gives no sequences in this mode."""
        raise RuntimeError("--*.python-control-loop-type must be iterate-corpus to get sequences from RASR")

    def exit(self, **_: Any) -> None:
        """Send the end."""
        self.send("exit", None)
        self._file.close()


# ---- what RASR calls

_parts: dict[str, Any] = {}


def _server(config: dict[str, str]) -> Server:
    """Return the server of this process: the order of segments and the control are asked for apart."""
    if "server" not in _parts:
        _parts["server"] = Server(config)
    server: Server = _parts["server"]
    return server


def _sequences() -> Sequences:
    if "sequences" not in _parts:
        raise RuntimeError("RASR has not called init")
    sequences: Sequences = _parts["sequences"]
    return sequences


def getSegmentList(segmentList: Iterable[str] = (), config: str = "", **_: Any) -> Iterable[str]:
    """Return the segments in the order in which RASR is to process them."""
    options = parse_config(config)
    if "c2p_fd" in options:
        return _server(options).segments()
    segments = list(segmentList)
    Sequences.num_segments = len(segments)
    return segments


def init(name: Optional[str] = None, config: str = "", **arguments: Any) -> Any:
    """Begin: as Python control (with a name) or as trainer."""
    options = parse_config(config)
    if options.get("action") != "ExternSprintDataset":
        return _server(options).init(**arguments)
    sequences = _parts["sequences"] = Sequences(options)
    if name is None:
        sequences.init_processing(arguments["inputDim"], arguments["outputDim"])
    return sequences


def exit(**_: Any) -> None:
    """End the training; without a single sequence RASR has not called `init`."""
    if "sequences" in _parts:
        _sequences().exit()


def feedInputAndTarget(
    features: Any = None,
    segmentName: Any = None,
    alignment: Any = None,
    orthography: Any = None,
    **_: Any,
) -> None:
    """Send a sequence with the targets it has."""
    _sequences().process_segment(segmentName, orthography, None, features, alignment)


def feedInputAndTargetAlignment(
    features: Any = None,
    targetAlignment: Any = None,
    segmentName: Any = None,
    **_: Any,
) -> None:
    """Send a sequence with an alignment."""
    _sequences().process_segment(segmentName, None, None, features, targetAlignment)


def feedInputAndTargetSegmentOrth(
    features: Any = None,
    targetSegmentOrth: Any = None,
    segmentName: Any = None,
    **_: Any,
) -> None:
    """Send a sequence with a transcription."""
    _sequences().process_segment(segmentName, targetSegmentOrth, None, features)


def feedInputUnsupervised(features: Any = None, segmentName: Any = None, **_: Any) -> None:
    """Send a sequence without targets."""
    _sequences().process_segment(segmentName, None, None, features)


def _refuse(name: str, **_: Any) -> None:
    raise RuntimeError("RASR calls %s, but it has to deliver sequences: use --*.target-mode=target-generic" % name)


feedInputForwarding = functools.partial(_refuse, "feedInputForwarding")
feedInput = functools.partial(_refuse, "feedInput")


class SprintNnPythonLayer:
    """A layer of RASR's network: its output are the posteriors of the command, its error signal is the answer."""

    def __init__(self, config: str = "", **_: Any) -> None:
        self._size = 0

    def finalize(self, **_: Any) -> None:
        """Do nothing; nor in the methods below: the layer has no parameters, and does not use its inputs."""

    setInputDimension = initializeNetworkParameters = loadNetworkParameters = saveNetworkParameters = finalize

    def setOutputDimension(self, size: int, **_: Any) -> None:
        """Keep the size of the output."""
        self._size = size

    def isTrainable(self, **_: Any) -> bool:
        """Return True, so that RASR computes the error signal."""
        return True

    def getNumberOfFreeParameters(self, **_: Any) -> int:
        """Return 0."""
        return 0

    def forward(self, input: Any = (), **_: Any) -> Any:
        """Return the posteriors [size, time] of the segment, as they were sent."""
        segment, posteriors = _parts["server"].pending
        if self._size and posteriors.shape[1] != self._size:
            raise RuntimeError(
                "the network has %d outputs for segment %r, but the layer in RASR %d"
                % (posteriors.shape[1], segment, self._size)
            )
        self._inputs = [matrix.shape for matrix in input]
        return np.asfortranarray(posteriors.T)

    def backpropagate(self, errorSignalIn: Any, **_: Any) -> Any:
        """Keep the error signal [size, time]; the inputs get no error signal."""
        _parts["server"].keep_error(errorSignalIn)
        return tuple(np.zeros(shape, "float32", "F") for shape in self._inputs)
