"""The module that RASR imports: it sends what RASR computes to the program that has started RASR.

It runs in the interpreter inside of RASR, which can be of another version, so it needs only numpy and the standard
library, and it writes nothing but errors to the standard streams. RASR calls the functions and methods here by
keywords; further ones of newer versions are ignored. Both ends of the pipe use `write_message` and `read_message`.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy

PICKLE_PROTOCOL = 4  # not the highest: the Python inside of RASR may be older
#: version of the messages about losses and automata
VERSION = 1
SERVER_NAME = "SprintSubprocessInstance"
_HEADER = struct.Struct("<i")

LOSS = "get_loss_and_error_signal"
AUTOMATON = "export_allophone_state_fsa_by_segment_name"


def _reduce_array(array: Any) -> Any:
    """Pickle an array as a call of its public constructor, which every version of numpy has."""
    order = "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
    return numpy.ndarray, (array.shape, array.dtype.str, array.tobytes(order), 0, None, order)


def write_message(file: Any, message: Any) -> None:
    """Write a message: its size as int32, little endian, and its pickle."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PICKLE_PROTOCOL)
    pickler.dispatch_table = dict(copyreg.dispatch_table)
    pickler.dispatch_table[numpy.ndarray] = _reduce_array
    pickler.dump(message)
    content = buffer.getvalue()
    file.write(_HEADER.pack(len(content)))
    file.write(content)
    file.flush()


def read_message(file: Any) -> Any:
    """Read a message; EOFError at the end of the file."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    return pickle.loads(file.read(_HEADER.unpack(header)[0]))


def parse_config(text: str) -> dict[str, str]:
    """Return the pairs of ``key:value,key:value``."""
    return dict(part.split(":", 1) for part in text.split(",") if ":" in part)


def _text(value: Any) -> Any:
    """Return text that RASR gave as bytes or as str; None stays."""
    return value.decode("utf8") if isinstance(value, bytes) else value


# ---- sequences for training


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
        targets = {"classes": alignment, "orth": _text(orthography), "speaker_name": _text(speaker_name)}
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


# ---- losses and automata


class Server:
    """Answers commands with losses and automata of RASR, in the three modes in which RASR can work.

    * python-control-loop: RASR calls `run_control_loop`.
    * iterate-corpus: `segments` yields the segment of each command for a loss; RASR calls `process_segment` for it.
    * a trainer with a `SprintNnPythonLayer`: the same, but RASR calls the layer, and `notify_segment_loss`.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._out = os.fdopen(int(options["c2p_fd"]), "wb")
        self._in = os.fdopen(int(options["p2c_fd"]), "rb")
        self._least_version = int(options.get("minPythonControlVersion", 0))
        self._verbose = options.get("verbose", "").lower() in ("1", "true", "yes")
        self._callback: Any = None
        #: (segment, log posteriors [time, dim]) of the loss that RASR computes now
        self.pending: Any = None
        self._loss: Optional[float] = None
        self._error: Any = None

    def init(self, callback: Any = None, version_number: int = 0, **_: Any) -> Server:
        """Take the function by which RASR is asked; refuse a RASR that is too old."""
        if version_number < self._least_version:
            text = "RASR has version %s of its Python control, but minPythonControlVersion is %d"
            text %= version_number, self._least_version
            self.answer("exception", text)
            raise RuntimeError(text)
        self._callback = callback
        return self

    def answer(self, *message: Any) -> None:
        """Send an answer."""
        write_message(self._out, message)

    def _command(self) -> Any:
        """Return the next command; answer "init" and those for automata here. None: the end."""
        while True:
            try:
                name, *arguments = read_message(self._in)
            except EOFError:
                return None
            if self._verbose:
                sys.stderr.write("command %s\n" % name)
            if name == "exit":
                return None
            if name == "init":
                self.answer("ok", SERVER_NAME, VERSION)
            elif name == AUTOMATON:
                self._answer_automaton(*arguments)
            elif name == LOSS:
                return arguments
            else:
                self.answer("exception", "unknown command %r" % (name,))

    def _answer_automaton(self, segment: str) -> None:
        try:
            if self._callback is None:
                raise RuntimeError("RASR has not called init of its Python control, so it can't be asked for automata")
            num_states, num_edges, edges, weights = self._callback(AUTOMATON, segment)
        except Exception as exc:  # whatever RASR raises is for the user of the automaton
            self.answer("exception", "%s: %s" % (type(exc).__name__, exc))
        else:
            edges = numpy.asarray(edges, "uint32").reshape(-1)
            self.answer("ok", int(num_states), int(num_edges), edges, numpy.asarray(weights, "float32"))

    def run_control_loop(self, callback: Any = None, **_: Any) -> None:
        """Answer commands until the end."""
        self._callback = callback or self._callback
        while self._command() is not None:
            self.answer(
                "exception",
                "RASR computes no losses with --*.python-control-loop-type=python-control-loop; use iterate-corpus",
            )

    def segments(self) -> Iterator[str]:
        """Yield the segment of each command for a loss; RASR asks for the next one when it is done with it."""
        while True:
            command = self._command()
            if command is None:
                return
            segment, _, log_posteriors = command
            self.pending, self._loss, self._error = (segment, log_posteriors), None, None
            yield segment
            if self.pending is not None:  # RASR has skipped or discarded it
                self._answer_loss(float("inf"), numpy.zeros_like(log_posteriors))

    def _answer_loss(self, loss: Any, error: Any) -> None:
        self.pending = None
        self.answer("ok", float(loss), numpy.ascontiguousarray(error, "float32"))

    def init_processing(self, **_: Any) -> None:
        """Ignore the dims: nothing is extracted."""

    def process_segment(
        self,
        name: Optional[str] = None,
        orthography: Any = None,
        features: Any = None,
        alignment: Any = None,
        soft_alignment: Any = None,
        **_: Any,
    ) -> None:
        """Compute the criterion of the segment."""
        if features is not None or alignment is not None or soft_alignment is not None:
            text = "RASR must not extract anything for a loss: --*.extract-features=false --*.extract-alignments=false"
            self.answer("exception", text)
            raise RuntimeError(text)
        if self.pending is None or self.pending[0] != name:
            return  # not asked for
        posteriors = self.pending[1]
        options = {} if orthography is None else {"orthography": _text(orthography)}
        try:
            loss, error = self._callback(
                "calculate_criterion",
                posteriors=numpy.asfortranarray(posteriors.T),
                output_error_type="error-signal",
                segment_name=name,
                **options,
            )
        except Exception as exc:
            self.pending = None
            self.answer("exception", "segment %r: %s: %s" % (name, type(exc).__name__, exc))
            return
        if loss is None or error is None:  # discarded by RASR
            self._answer_loss(float("inf"), numpy.zeros_like(posteriors))
        else:
            self._answer_loss(loss, numpy.asarray(error).T)

    def init_segment(self, **_: Any) -> None:
        """Ignore the begin of a segment."""

    def notify_segment_loss(self, segment_name: str, loss: float, **_: Any) -> None:
        """Keep the loss of a segment."""
        if self.pending is not None and self.pending[0] == segment_name:
            self._loss = loss
            self._answer_if_complete()

    def keep_error(self, error: Any) -> None:
        """Keep the error signal [dim, time] of the current segment."""
        if self.pending is not None:
            self._error = numpy.asarray(error).T
            self._answer_if_complete()

    def _answer_if_complete(self) -> None:
        if self._loss is not None and self._error is not None:
            self._answer_loss(self._loss, self._error)

    def exit(self, **_: Any) -> None:
        """Do nothing: the program that asks sees the end of RASR."""


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
        return numpy.asfortranarray(posteriors.T)

    def backpropagate(self, errorSignalIn: Any, **_: Any) -> Any:
        """Keep the error signal [size, time]; nothing goes on to the inputs."""
        _parts["server"].keep_error(errorSignalIn)
        return tuple(numpy.zeros(shape, "float32", "F") for shape in self._inputs)
