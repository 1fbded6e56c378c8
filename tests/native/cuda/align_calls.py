"""Calls the kernels of the alignments through their C interface, on the CPU, in the emulator and on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

import numpy as np

from tests.native.cuda.calls import ALONE
from tests.native.cuda.memory import HostMemory

#: Names of ``align/*_cuda.cu``.
KERNELS = ("chain", "viterbi", "acceptor", "acceptor_best", "transducer")
_I64, _I32, _PTR = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p


def _struct(name: str, **fields: Any) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Scores = _struct("Scores", frames=_I64, batch=_I64, classes=_I64, values=_PTR, lengths=_PTR)
Chains = _struct("Chains", states=_I64, classes=_PTR, num_states=_PTR, loop=_PTR, skip=_PTR, optional_ends=ctypes.c_int)
Ctc = _struct(
    "Ctc", max_labels=_I64, labels=_PTR, label_lengths=_PTR, blank=_I32, label_loop=ctypes.c_int,
    normalized=ctypes.c_int, softmax_without_alignment=ctypes.c_int,
)  # fmt: skip
Acceptors = _struct("Acceptors", edges=_I64, states=_I64, arcs=_PTR, costs=_PTR, num_states=_PTR)
Transducer = _struct(
    "Transducer", batch=_I64, frames=_I64, max_labels=_I64, classes=_I64, values=_PTR, lengths=_PTR, labels=_PTR,
    label_lengths=_PTR, blank=_I32, label_takes_frame=ctypes.c_int, normalized=ctypes.c_int,
)  # fmt: skip


class Calls:
    """The functions of ``align.h``, or those of ``align_cuda.h``.

    After a call, `again` launches the same once more, on the same arrays, and does not wait for its end.

    :param libraries: what exports them
    :param memory: where floats and results are
    :param cuda: which of both
    """

    def __init__(self, *libraries: ctypes.CDLL, memory: Any = None, cuda: bool = True) -> None:
        self._libraries, self.memory, self._cuda = libraries, memory or HostMemory(), cuda
        self.again: Callable[[], None] = lambda: None

    def ctc(self, scores: Any, lens: Any, labels: Any, label_lens: Any, **options: Any) -> tuple[Any, Any]:
        """Return (loss, gradient); options: the fields of `Ctc`."""
        given, keep = self._scores(scores, lens)
        labels, counts = _ints(labels), _ints(label_lens)
        ctc = Ctc(labels.shape[1], labels.ctypes.data, counts.ctypes.data, **options)
        out = self.memory.empty((given.batch,)), self.memory.empty(np.shape(scores))
        keep = (keep, labels, counts)
        return self._run("rtf_ctc", "rtf_chain", given, ctc, out, keep, states=2 * labels.shape[1] + 1)

    def chains(self, scores: Any, lens: Any, chain: dict[str, Any], best: bool) -> tuple[Any, Any]:
        """Return (posteriors or path, total); chain: the fields of `Chains`."""
        given, keep = self._scores(scores, lens)
        classes, counts = _ints(chain["classes"]), _ints(chain["num_states"])
        arrays = [classes, counts, *(np.array(chain[name], "uint8") for name in ("loop", "skip"))]
        chains = Chains(classes.shape[1], *(x.ctypes.data for x in arrays), chain["optional_ends"])
        name = "rtf_chain_best" if best else "rtf_chain_soft"
        sizes = "rtf_chain_best" if best else "rtf_chain"
        out = self._aligned(scores, best)
        return self._run(name, sizes, given, chains, out, (keep, arrays), states=classes.shape[1])

    def acceptors(self, scores: Any, lens: Any, arcs: Any, costs: Any, num_states: Any, best: bool) -> tuple[Any, Any]:
        """Return (posteriors or path, total)."""
        given, keep = self._scores(scores, lens)
        arcs, counts, costs = _ints(arcs), _ints(num_states), self.memory.upload(costs)
        states, pointer = int(max([1, *counts])), self.memory.pointer(costs)
        acceptors = Acceptors(arcs.shape[1], states, arcs.ctypes.data, pointer, counts.ctypes.data)
        name = "rtf_acceptor_best" if best else "rtf_acceptor_soft"
        sizes = "rtf_acceptor_best" if best else "rtf_acceptor"
        return self._run(name, sizes, given, acceptors, self._aligned(scores, best), (keep, arcs, counts, costs))

    def transducer(self, scores: Any, lens: Any, labels: Any, label_lens: Any, **options: Any) -> tuple[Any, Any]:
        """Return (loss, gradient); options: the last fields of `Transducer`."""
        values, ints = self.memory.upload(scores), [_ints(x) for x in (lens, labels, label_lens)]
        batch, frames, rows, classes = np.shape(scores)
        pointers = [self.memory.pointer(values), *(x.ctypes.data for x in ints)]
        given = Transducer(batch, frames, rows - 1, classes, *pointers, **options)
        out = self.memory.empty((batch,)), self.memory.empty((batch, frames, rows, classes))
        return self._run("rtf_transducer", "rtf_transducer", given, None, out, (values, ints))

    def _scores(self, scores: Any, lens: Any) -> tuple[Any, Any]:
        values, lens = self.memory.upload(scores), _ints(lens)
        given = Scores(*np.shape(scores), self.memory.pointer(values), lens.ctypes.data)
        return given, (values, lens)

    def _aligned(self, scores: Any, best: bool) -> tuple[Any, Any]:
        shape = np.shape(scores)
        first = self.memory.empty(shape[:2], "int32") if best else self.memory.empty(shape)
        return first, self.memory.empty(shape[1:2])

    def _run(
        self, name: str, sizes: str, given: Any, more: Any, out: Any, keep: Any, states: Optional[int] = None
    ) -> tuple[Any, Any]:
        inputs = [ctypes.byref(x) for x in (given, more) if x is not None]
        arguments = [*inputs, *(_PTR(self.memory.pointer(x)) for x in out)]
        if self._cuda:
            space = self.memory.empty((self._workspace(sizes, inputs, states) + 256,), "uint8")
            aligned = (self.memory.pointer(space) + 255) // 256 * 256
            function = self._function(name + "_cuda_f32", ctypes.c_char_p)
            rest = [_PTR(aligned), _PTR(self.memory.stream)]
        else:
            space = self.memory.empty((self._scratch(sizes, given, inputs, states),))
            function = self._function(name + "_f32", None)
            rest = [_PTR(self.memory.pointer(space)), ctypes.byref(ALONE)]

        def launch(_alive: Any = (keep, space, out)) -> None:
            error = function(*arguments, *rest)
            assert error is None, error

        self.again = launch
        launch()
        self.memory.finish()
        first, second = (self.memory.download(x) for x in out)
        return first, second

    def _scratch(self, sizes: str, given: Any, inputs: Any, states: Optional[int]) -> int:
        function = self._function(sizes.replace("chain_best", "chain") + "_scratch_size", _I64)
        if states is not None:
            return function(_I64(given.frames), _I64(states), 1)
        return function(_I64(given.frames), inputs[1], 1) if len(inputs) > 1 else function(inputs[0], 1)

    def _workspace(self, sizes: str, inputs: Any, states: Optional[int]) -> int:
        function = self._function(sizes + "_cuda_workspace", _I64)
        return function(inputs[0], _I64(states)) if states is not None else function(*inputs)

    def _function(self, name: str, result: Any) -> Any:
        for library in self._libraries:
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = result
                return function
        raise AttributeError(name)


def _ints(x: Any) -> np.ndarray:
    return np.ascontiguousarray(x, "int32")
