"""The part of `rasr_side` that asks RASR for losses and automata."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

if __package__:
    from returnn_tf.rasr.processes.for_rasr.rasr_pipe import (
        AUTOMATON,
        LOSS,
        SERVER_NAME,
        VERSION,
        read_message,
        text_of,
        write_message,
    )
else:  # RASR knows only the folder
    from rasr_pipe import (  # type: ignore[no-redef]
        AUTOMATON,
        LOSS,
        SERVER_NAME,
        VERSION,
        read_message,
        text_of,
        write_message,
    )


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
        """Store the callback into RASR; reject a RASR that is too old."""
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
            edges = np.asarray(edges, "uint32").reshape(-1)
            self.answer("ok", int(num_states), int(num_edges), edges, np.asarray(weights, "float32"))

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
                self._answer_loss(float("inf"), np.zeros_like(log_posteriors))

    def _answer_loss(self, loss: Any, error: Any) -> None:
        self.pending = None
        self.answer("ok", float(loss), np.ascontiguousarray(error, "float32"))

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
        options = {} if orthography is None else {"orthography": text_of(orthography)}
        try:
            loss, error = self._callback(
                "calculate_criterion",
                posteriors=np.asfortranarray(posteriors.T),
                output_error_type="error-signal",
                segment_name=name,
                **options,
            )
        except Exception as exc:
            self.pending = None
            self.answer("exception", "segment %r: %s: %s" % (name, type(exc).__name__, exc))
            return
        if loss is None or error is None:  # discarded by RASR
            self._answer_loss(float("inf"), np.zeros_like(posteriors))
        else:
            self._answer_loss(loss, np.asarray(error).T)

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
            self._error = np.asarray(error).T
            self._answer_if_complete()

    def _answer_if_complete(self) -> None:
        if self._loss is not None and self._error is not None:
            self._answer_loss(self._loss, self._error)

    def exit(self, **_: Any) -> None:
        """Do nothing: the program that asks sees the end of RASR."""
