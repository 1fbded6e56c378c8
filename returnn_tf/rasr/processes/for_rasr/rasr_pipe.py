"""Messages between the Python inside of RASR and the program that has started RASR.

Both ends use this module; inside of RASR it is imported by its plain name, see `rasr_side`.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
from typing import Any

import numpy as np

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
    return np.ndarray, (array.shape, array.dtype.str, array.tobytes(order), 0, None, order)


def write_message(file: Any, message: Any) -> None:
    """Write a message: its size as int32, little endian, and its pickle."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PICKLE_PROTOCOL)
    pickler.dispatch_table = dict(copyreg.dispatch_table)
    pickler.dispatch_table[np.ndarray] = _reduce_array
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


def text_of(value: Any) -> Any:
    """Return text that RASR gave as bytes or as str; None stays."""
    return value.decode("utf8") if isinstance(value, bytes) else value
