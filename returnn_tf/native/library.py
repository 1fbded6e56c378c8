"""Loads native ops on first use, with one warning if an op cannot be used."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from returnn_tf.logging.log import log
from returnn_tf.native.at_once import built, is_postponed
from returnn_tf.native.cache import note_tested, was_tested
from returnn_tf.native.comparison import exact_products
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import card_in_use
from returnn_tf.native.gpu.gpu_test import passes_on_gpus
from returnn_tf.native.portable import graph_ops, in_portable_ops
from returnn_tf.native.sources import OPS, SelfTest
from returnn_tf.util.lazy_tf import tf

SWITCH = "RETURNN_TF_NATIVE"

# one for each op: the test of an op may need another one
_locks: dict[str, threading.Lock] = {}
_lock_of_locks = threading.Lock()
_loaded: dict[str, Optional[Any]] = {}


def native_op(name: str, self_test: SelfTest) -> Optional[Any]:
    """Return the TensorFlow ops of a native op, compiled if necessary.

    :param name: key in `sources.OPS`
    :param self_test: run until it has passed once for the compiled file
    :return: a module with the ops as functions; None if they cannot be used here (the first time, a warning is logged),
        within `portable_ops`, within `twice_differentiable_ops` if they are not, or if they are being compiled and the
        graph will be traced again (`with_ops_at_once`)
    """
    if in_portable_ops() or (graph_ops().twice_differentiable and not OPS[name].twice_differentiable):
        return None
    with _lock_of_locks:
        lock = _locks.setdefault(name, threading.Lock())
    with lock:
        if name not in _loaded:
            if _is_wanted(name) and is_postponed(name):
                return None
            _loaded[name] = _load_or_warn(name, self_test)
        return _loaded[name]


def needed_op(name: str, self_test: SelfTest) -> Any:
    """Return the TensorFlow ops of a native op that has no other form.

    :raises NativeOpError: see `load`
    """
    with _lock_of_locks:
        lock = _locks.setdefault(name, threading.Lock())
    with lock:
        return _loaded.get(name) or load(name, self_test)


def switched_off() -> bool:
    """Return whether the user wants no native ops."""
    return os.environ.get(SWITCH, "1") == "0"


def _is_wanted(name: str) -> bool:
    return not switched_off() and _has_kernels(name)


def _load_or_warn(name: str, self_test: SelfTest) -> Optional[Any]:
    if not _is_wanted(name):
        return None
    try:
        return load(name, self_test)
    except NativeOpError as exc:
        log.warn(
            "The native op %s cannot be used; falling back to plain TensorFlow, which is slower: %s." % (name, exc)
        )
        return None


def _has_kernels(name: str) -> bool:
    """Return whether the op can run where its data is: with a GPU, a CPU-only op would copy it back and forth."""
    return not tf.config.get_visible_devices("GPU") or bool(OPS[name].cuda and tf.test.is_built_with_cuda())


def runs_on_gpu(name: str) -> bool:
    """Return whether the op, if usable, runs on a GPU here; the CPU supports float32 only."""
    return bool(tf.config.get_visible_devices("GPU")) and _has_kernels(name)


def has_type(name: str, dtype: tf.DType) -> bool:
    """Return whether a recurrence has kernels for a type here: float32; on a GPU also bfloat16 and float16."""
    return dtype == tf.float32 or (dtype in (tf.bfloat16, tf.float16) and runs_on_gpu(name))


def check_type(name: str, dtype: tf.DType) -> None:
    """Check a type for callers that have not asked `has_type`: TensorFlow's own error only lists kernels.

    :raises NativeOpError: there are no kernels for the type
    """
    if not has_type(name, tf.as_dtype(dtype)):
        there = "float32, bfloat16 and float16" if runs_on_gpu(name) else "float32; on a GPU also bfloat16 and float16"
        raise NativeOpError(
            "the native op %s has no kernel for %s here (it has: %s); cast its input, or take the form in plain "
            "TensorFlow" % (name, tf.as_dtype(dtype).name, there)
        )


def devices(name: str) -> list[str]:
    """Return the devices on which the op runs here: "CPU:0", and each GPU if it has kernels for it."""
    gpus = tf.config.list_logical_devices("GPU") if OPS[name].cuda and tf.test.is_built_with_cuda() else []
    return ["CPU:0", *("GPU:%d" % index for index in range(len(gpus)))]


def load(name: str, self_test: SelfTest) -> Any:
    """Load a native op like `native_op`, but raise errors.

    :raises NativeOpError: the op cannot be compiled or loaded, or gives wrong results
    """
    path = built(name)
    ops = load_library(path)
    cpu, *gpus = devices(name)
    card = card_in_use() if gpus else ""
    # Not only if this process compiled it: a process that failed the test, or was killed before it, left the file.
    if not was_tested(path, card):
        # In a separate thread: the first use is during tracing, possibly with a stopped gradient tape.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run_test_on, cpu, ops, self_test).result()
            if gpus and not passes_on_gpus(name, path, [gpu.name for gpu in tf.config.get_visible_devices("GPU")]):
                log.write(3, "Another process cannot use the GPU: the native op %s is tested in this one." % name)
                for gpu in gpus:
                    thread.submit(run_test_on, gpu, ops, self_test).result()
        note_tested(path, card)
    _loaded[name] = ops
    return ops


def examine(name: str) -> str:
    """Test an op on all devices; return an error as one line, or "" if it works."""
    try:
        self_test = OPS[name].self_test
        assert self_test is not None
        ops = load(name, self_test)
        for device in devices(name):
            run_test_on(device, ops, self_test)
    except NativeOpError as exc:
        return str(exc)
    return ""


def used_ops() -> dict[str, bool]:
    """Return the native ops with kernels for this machine that this process has asked for; whether each can be used."""
    return {name: module is not None for name, module in sorted(_loaded.items()) if _has_kernels(name)}


def libraries_with(op_types: Iterable[str]) -> dict[str, str]:
    """Return the loaded libraries that have some of these ops: name of the native op -> path.

    :param op_types: types of nodes of a graph, e.g. "RtfLstm"
    """
    wanted = set(op_types)
    loaded = {name: module for name, module in _loaded.items() if module is not None}
    return {name: module.__file__ for name, module in loaded.items() if not wanted.isdisjoint(_op_types(module))}


def _op_types(ops: Any) -> set[str]:
    """Return the types of the ops of a library.

    :param ops: the module that TensorFlow makes for it, which has a function for each type; it also imports names such
        as Any, which is the type of another op
    """
    return {name for name, value in vars(ops).items() if getattr(value, "__module__", None) == ops.__name__}


def library_path(name: str) -> str:
    """Return the file of an op that `load` or `native_op` has loaded."""
    ops: Any = _loaded[name]
    return str(ops.__file__)


def c_library(name: str) -> ctypes.CDLL:
    """Return the C interface of an op that `load` or `native_op` has loaded."""
    return ctypes.CDLL(library_path(name))


def c_functions(ops: Any) -> ctypes.CDLL:
    """Return the C interface of the library of these ops, for self-tests, which also test libraries of other machines.

    :param ops: what `load_library` returned
    """
    return ctypes.CDLL(ops.__file__)


def load_library(path: str) -> Any:
    """Return the TensorFlow ops of a library, as a module with its path as ``__file__``.

    :raises NativeOpError: it is not a library of ops, or does not fit this TensorFlow
    """
    try:
        ops = tf.load_op_library(path)
    except (tf.errors.OpError, OSError) as exc:
        raise NativeOpError("%s cannot be loaded: %s" % (path, str(exc).splitlines()[0])) from exc
    ops.__file__ = os.path.abspath(path)
    return ops


def run_test_on(device: str, ops: Any, self_test: SelfTest) -> None:
    """Run the test on a device.

    :raises NativeOpError: the test fails; the text names the device unless it is the CPU
    """
    try:
        with exact_products(), tf.device(device):
            self_test(ops)
    except (NativeOpError, tf.errors.OpError) as exc:
        where = "" if device.startswith("CPU") else "on %s: " % device
        raise NativeOpError(where + str(exc).splitlines()[0]) from exc
