"""Calls the kernels of the alignments through their C interface, on the CPU, in the emulator and on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Tuple

import numpy

from tests.native.cuda.memory import HostMemory

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
Threads = _struct("Threads", run=_PTR, pool=_PTR, n_threads=ctypes.c_int)


class Calls:
    """The functions of ``align.h``, or those of ``align_cuda.h``.

    :param libraries: what exports them
    :param memory: where floats and results are
    :param cuda: which of both
    """

    def __init__(self, *libraries: ctypes.CDLL, memory: Any = None, cuda: bool = True) -> None:
        self._libraries, self.memory, self._cuda = libraries, memory or HostMemory(), cuda

    def ctc(self, scores: Any, lens: Any, labels: Any, label_lens: Any, **options: Any) -> Tuple[Any, Any]:
        """(loss, gradient); options: the fields of `Ctc`."""
        given, keep = self._scores(scores, lens)
        labels = _ints(labels)
        counts = _ints(label_lens)
        ctc = Ctc(labels.shape[1], labels.ctypes.data, counts.ctypes.data, **options)
        out = self.memory.empty((given.batch,)), self.memory.empty(numpy.shape(scores))
        self._run("rtf_ctc", "rtf_chain", given, ctc, out, states=2 * labels.shape[1] + 1)
        return self._results(out, keep)

    def chains(self, scores: Any, lens: Any, chain: Dict[str, Any], best: bool) -> Tuple[Any, Any]:
        """(posteriors or path, total); chain: the fields of `Chains`."""
        given, keep = self._scores(scores, lens)
        classes, counts = _ints(chain["classes"]), _ints(chain["num_states"])
        flags = [numpy.array(chain[name], "uint8") for name in ("loop", "skip")]
        pointers = [x.ctypes.data for x in (classes, counts, *flags)]
        chains = Chains(classes.shape[1], *pointers, chain["optional_ends"])
        shape = numpy.shape(scores)
        first = self.memory.empty(shape[:2], "int32") if best else self.memory.empty(shape)
        out = first, self.memory.empty((given.batch,))
        name = "rtf_chain_best" if best else "rtf_chain_soft"
        self._run(name, "rtf_chain_best" if best else "rtf_chain", given, chains, out, states=classes.shape[1])
        return self._results(out, keep)

    def acceptors(self, scores: Any, lens: Any, arcs: Any, costs: Any, num_states: Any, best: bool) -> Tuple[Any, Any]:
        """(posteriors or path, total)."""
        given, keep = self._scores(scores, lens)
        arcs, counts, costs = _ints(arcs), _ints(num_states), self.memory.upload(costs)
        states = int(max([1, *counts]))
        given_arcs = Acceptors(arcs.shape[1], states, arcs.ctypes.data, self.memory.pointer(costs), counts.ctypes.data)
        shape = numpy.shape(scores)
        first = self.memory.empty(shape[:2], "int32") if best else self.memory.empty(shape)
        out = first, self.memory.empty((given.batch,))
        name = "rtf_acceptor_best" if best else "rtf_acceptor_soft"
        self._run(name, "rtf_acceptor_best" if best else "rtf_acceptor", given, given_arcs, out)
        return self._results(out, keep, costs)

    def transducer(self, scores: Any, lens: Any, labels: Any, label_lens: Any, **options: Any) -> Tuple[Any, Any]:
        """(loss, gradient); options: the last fields of `Transducer`."""
        values, lens, labels, counts = self.memory.upload(scores), _ints(lens), _ints(labels), _ints(label_lens)
        batch, frames, rows, classes = numpy.shape(scores)
        pointers = [self.memory.pointer(values), *(x.ctypes.data for x in (lens, labels, counts))]
        given = Transducer(batch, frames, rows - 1, classes, *pointers, **options)
        out = self.memory.empty((batch,)), self.memory.empty((batch, frames, rows, classes))
        self._run("rtf_transducer", "rtf_transducer", given, None, out)
        return self._results(out, values)

    def _scores(self, scores: Any, lens: Any) -> Tuple[Any, Any]:
        values, lens = self.memory.upload(scores), _ints(lens)
        given = Scores(*numpy.shape(scores), self.memory.pointer(values), lens.ctypes.data)
        return given, (values, lens)

    def _run(self, name: str, sizes: str, given: Any, more: Any, out: Any, states: Optional[int] = None) -> None:
        inputs = [ctypes.byref(x) for x in (given, more) if x is not None]
        results = [_PTR(self.memory.pointer(x)) for x in out]
        if self._cuda:
            size = self._size(sizes + "_cuda_workspace", inputs, states)
            memory = self.memory.empty((size + 256,), "uint8")
            aligned = (self.memory.pointer(memory) + 255) // 256 * 256
            function = self._function(name + "_cuda_f32")
            function.restype = ctypes.c_char_p
            error = function(*inputs, *results, _PTR(aligned), _PTR(0))
            assert error is None, error
            self.memory.finish()
            return
        threads = Threads(None, None, 1)
        size = self._cpu_scratch(sizes, given, inputs, states)
        scratch = self.memory.empty((size,))
        self._function(name + "_f32")(*inputs, *results, _PTR(self.memory.pointer(scratch)), ctypes.byref(threads))

    def _cpu_scratch(self, sizes: str, given: Any, inputs: Any, states: Optional[int]) -> int:
        sizes = sizes.replace("chain_best", "chain")
        function = self._function(sizes + "_scratch_size")
        function.restype = _I64
        if states is not None:
            return function(_I64(given.frames), _I64(states), 1)
        return function(_I64(given.frames), inputs[1], 1) if len(inputs) > 1 else function(inputs[0], 1)

    def _size(self, name: str, inputs: Any, states: Optional[int]) -> int:
        function = self._function(name)
        function.restype = _I64
        return function(inputs[0], _I64(states)) if states is not None else function(*inputs)

    def _function(self, name: str) -> Any:
        for library in self._libraries:
            if hasattr(library, name):
                return getattr(library, name)
        raise AttributeError(name)

    def _results(self, out: Any, *_keep: Any) -> Tuple[Any, Any]:
        first, second = (self.memory.download(x) for x in out)
        return first, second


def _ints(x: Any) -> numpy.ndarray:
    return numpy.ascontiguousarray(x, "int32")
