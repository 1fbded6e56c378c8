"""Calls the kernels of updates through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tests.native.cuda.calls import ALONE, IN_STREAM, empty, pointer

#: In the order of RtfRule.
RULES = (
    "sgd", "momentum", "keras_sgd", "adam", "amsgrad", "nadam_keras", "rmsprop", "rmsprop_centered", "adagrad",
    "adadelta", "radam", "lion", "schedule_free", "average", "lamb", "scaled_adam", "adafactor",
)  # fmt: skip
#: Of no entries, of one, of a block, of two blocks.
SIZES = [(0, 2), (), (37, 3), (4500,)]
#: One row, blocks of rows, none, columns beyond the threads of a block.
MATRICES = [(1, 5), (70, 33), (0, 2), (7, 0), (3, 300)]
#: More than there are in a launch.
MANY = [(1 + i % 2, 2) for i in range(43)]
FACTOR = 0.7
NUMBERS = [0.1, 0.5, 0.6, 0.9, 0.99, 1e-3, 1.0, 0.5]


class Parameter(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int64), ("columns", ctypes.c_int64), ("value", ctypes.c_void_p)]
    _fields_ += [("gradient", ctypes.c_void_p), ("slots", ctypes.c_void_p * 4)]


class Parameters:
    """Arrays of parameters: value, gradient and four slots of each."""

    def __init__(self, rule: str, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        rng = np.random.RandomState(1)
        self.arrays: list[list[np.ndarray]] = []
        parameters = []
        for shape in shapes or (MATRICES if rule == "adafactor" else SIZES):
            value, gradient = (rng.normal(0, 1, shape).astype("float32") for _ in range(2))
            slots = [(1 + np.abs(rng.normal(0, 1, shape))).astype("float32").ravel() for _ in range(4)]
            if rule == "adafactor":
                slots = [rng.uniform(1, 2, size).astype("float32") for size in (*shape, 0, 0)]
            if rule == "scaled_adam":
                slots[2:] = rng.uniform(1, 2, (2, 1)).astype("float32")
            self.arrays.append([value, gradient, *slots])
            places = [x.ctypes.data for x in self.arrays[-1]]
            columns = shape[-1] if shape else 1
            parameters.append(Parameter(value.size, columns, *places[:2], (ctypes.c_void_p * 4)(*places[2:])))
        self.table = (Parameter * len(parameters))(*parameters)
        self.count = ctypes.c_int64(len(parameters))


def updated(
    library: ctypes.CDLL, rule: str, numbers: Sequence[float], shapes: Sequence[tuple[int, ...]] = ()
) -> list[np.ndarray]:
    """Return all arrays after an update by the kernels that the library has.

    :param shapes: of parameters; default: those that the rule is for
    """
    parameters, number = Parameters(rule, shapes), RULES.index(rule)
    given, factor = np.array(numbers, "float32"), np.array([FACTOR], "float32")
    arguments = (parameters.table, parameters.count)
    if hasattr(library, "rtf_update_cuda_f32"):
        library.rtf_update_cuda_scratch_size.restype = ctypes.c_int64
        library.rtf_update_cuda_f32.restype = ctypes.c_char_p
        room = empty(library.rtf_update_cuda_scratch_size(number, *arguments))
        assert (
            library.rtf_update_cuda_f32(number, pointer(given), pointer(factor), *arguments, pointer(room), IN_STREAM)
            is None
        )
    else:
        library.rtf_update_f32(number, pointer(given), pointer(factor), *arguments, ctypes.byref(ALONE))
    return [x for of_one in parameters.arrays for x in of_one]
