"""Forks the processes that load data, two for most trainings, from the process of the tests.

A fresh one takes 0.6 seconds of computing until it has imported numpy, h5py and the package, a forked one 0.05. What it
is sent is pickled all the same. Tests with the marker ``own_process`` start fresh ones, as users do.
"""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any

from returnn_tf.datasets.processes import process

_START_FRESH = process._start_fresh


def _fork(content: bytes) -> tuple[Any, Connection]:
    return process._start_forked(pickle.loads(content))


def fork_loading(forked: bool = True) -> None:
    """Let processes that load data be forked from now on, or be fresh."""
    process._start_fresh = _fork if forked else _START_FRESH
