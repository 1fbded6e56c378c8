"""Whether a native op is used on a GPU: only if it was right and not slower than its form in TensorFlow on this card.

Each op is tried out once for a card, a driver, a compiled library, a width and a type of numbers, in a process of its
own. The verdicts are kept beside the library, in one file for a card and a version of the Python code of both forms;
another library has its own. What has no verdict, since it could not be tried out, is computed by TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.logging.log import log
from returnn_tf.native.cache import ENVIRONMENT, LOCK, note_for
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import card_in_use, cpu_as_card
from returnn_tf.native.gpu.gpu_test import BadKernelError, NoGpuError, lacks_memory, output_of_child
from returnn_tf.native.library import library_path, load_library
from returnn_tf.native.trials.trial import Trial, Verdict, numbers, try_out
from returnn_tf.util.file_lock import lock
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.temporary import Temporary

#: A trial takes seconds; a GPU may be busy, and a kernel may hang.
_SECONDS = 300.0
_VERDICT = "VERDICT "
_TRIALS = ".trials"

# of this process, also where the cache can't be written to: library, card, and trial with width and numbers
_known: dict[tuple[str, str, str], Verdict] = {}
# of this process: what is not used, whatever else happens: a run does not change its forms
_refused: set[str] = set()


class NoMemoryError(NativeOpError):
    """The memory that is left does not suffice for a trial, which says nothing about the op."""


def pays(trial: Trial, width: Optional[int], dtype: tf.DType) -> bool:
    """Return whether the native op of a trial, which is loaded, is used here for this width; always without a GPU.

    The first time for a width and a type it is tried out; then the log says if it is not used.

    :param width: None: unknown while the graph is built; then the op is not used
    """
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return True
    if width is None:
        return False
    kind = "%s, width %d, %s" % (trial.name, width, numbers(dtype.name, "GPU:0"))
    if kind in _refused:
        return False
    try:
        verdict = verdict_on(trial, width, dtype.name, "GPU:0", [gpu.name for gpu in gpus])
    except NativeOpError as exc:
        _refuse(kind, "can't be tried out on this GPU (%s)" % exc, log.warn)
        return False
    if not verdict.is_used:
        _refuse(kind, "is %s on this GPU" % verdict.text, log.warn if verdict.failure else partial(log.write, 3))
    return verdict.is_used


def _refuse(kind: str, outcome: str, write: Callable[[str], None]) -> None:
    _refused.add(kind)
    write("The native op for %s %s: its form in TensorFlow is used." % (kind, outcome))


def verdict_on(
    trial: Trial, width: int, dtype: str, device: str, gpus: list[str], *, with_cpu: bool = False, again: bool = False
) -> Verdict:
    """Return the recorded verdict of a trial, else try the op out and record the verdict.

    :param device: "GPU:0", or "CPU:0": then the CPU takes the place of a GPU
    :param gpus: names of the physical devices that the process of the trial uses
    :param with_cpu: compare with the kernels for the CPU, too
    :param again: try it out even if there is a verdict
    :raises NativeOpError: it can't be tried out: the GPU has no memory left, or there is no process, or another program
        ended it
    """
    library, card = _place(trial, device)
    key = "%s %d %s" % (trial.name, width, numbers(dtype, device))
    known = (library, card, key)
    if not again and known in _known:
        return _known[known]
    with _locked(library):
        verdict = None if again else Verdict.from_json(_read(library, card).get(key))
        if verdict is None:
            verdict = _try_out(trial, library, width, dtype, device, gpus, with_cpu)
            _write(library, card, key, verdict)
    _known[known] = verdict
    return verdict


def forget(trial: Trial, device: str) -> None:
    """Remove what is recorded on the op of a trial, for all widths, if it can be removed.

    :param device: as in `verdict_on`
    """
    library, card = _place(trial, device)
    with _locked(library), contextlib.suppress(OSError):
        os.remove(_record(library, card))


def _place(trial: Trial, device: str) -> tuple[str, str]:
    """Return the library and the card of a trial."""
    return library_path(trial.op), cpu_as_card() if device.startswith("CPU") else card_in_use()


def verdicts(library: str, card: str) -> dict[str, Verdict]:
    """Return what is recorded for a library and a card: "lstm 512 float32" -> verdict."""
    found = {key: Verdict.from_json(value) for key, value in _read(library, card).items()}
    return {key: verdict for key, verdict in sorted(found.items()) if verdict is not None}


def _try_out(
    trial: Trial, library: str, width: int, dtype: str, device: str, gpus: list[str], with_cpu: bool
) -> Verdict:
    """Try an op out in a process of its own, in this one if no other can use the GPU."""
    log.write(3, "Trying out the native op for %s, width %d, %s, on %s ..." % (trial.name, width, dtype, device))
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    code = "from %s import %s as trial; from returnn_tf.native.trials.process import run; run(trial)"
    words = [library, str(width), dtype, device, str(int(with_cpu)), str(int(tf32)), *gpus]
    try:
        output = output_of_child(code % (trial.module, trial.constant), words, _SECONDS)
    except NoGpuError:
        with ThreadPoolExecutor(1) as thread:  # not in the graph that is being built
            ops = load_library(library)
            return thread.submit(verdict_here, trial, ops, width, dtype, device, with_cpu).result()
    except BadKernelError as exc:
        return Verdict(str(exc))
    lines = [line for line in output.splitlines() if line.startswith(_VERDICT)]
    verdict = Verdict.from_json(json.loads(lines[-1][len(_VERDICT) :])) if lines else None
    if verdict is None:
        raise NativeOpError("its process said nothing")
    return verdict


def verdict_here(trial: Trial, ops: Any, width: int, dtype: str, device: str, with_cpu: bool) -> Verdict:
    """Try an op out in this process. Whatever else goes wrong is a verdict, as this may be the process of a training.

    :raises NoMemoryError: for lack of memory
    """
    try:
        return try_out(trial, ops, width, dtype, device, with_cpu=with_cpu)
    except Exception as exc:
        if lacks_memory(exc):
            raise NoMemoryError("the GPU has not enough free memory") from exc
        said = (str(exc) or "no message").splitlines()[0]
        return Verdict(said if isinstance(exc, tf.errors.OpError) else "%s: %s" % (type(exc).__name__, said))


def verdict_line(verdict: Verdict) -> str:
    """Return the line of the process of a trial."""
    return _VERDICT + json.dumps(verdict.as_json())


def _read(library: str, card: str) -> dict[str, Any]:
    try:
        with open(_record(library, card), encoding="utf8") as f:
            found = json.load(f)
    except (OSError, ValueError):
        return {}
    whole = isinstance(found, dict) and found.get("card") == card and isinstance(found.get("trials"), dict)
    return found["trials"] if whole else {}


def _write(library: str, card: str, key: str, verdict: Verdict) -> None:
    """Add a verdict to the record. If that fails, each process tries the op out, and the log says so."""
    trials = {**_read(library, card), key: verdict.as_json()}
    try:
        with Temporary(_record(library, card)) as temporary:
            temporary.write(json.dumps({"card": card, "trials": trials}, indent=1).encode())
            temporary.publish()
    except OSError as exc:
        log.write(
            3,
            "What trials of native ops gave can't be kept in %s (%s): each process tries them out. Another folder: $%s"
            % (os.path.dirname(os.path.dirname(library)), exc.strerror or str(exc), ENVIRONMENT),
            once=True,
        )


def _record(library: str, card: str) -> str:
    """Return the path of the verdicts on a library on a card, for this version of the Python code."""
    return note_for(library, _TRIALS, "%s, %s" % (card, _version_of_forms()))


@functools.cache
def _version_of_forms() -> str:
    """Return a hash of the modules with both forms of all ops and their trials, as the library has the kernels only."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = hashlib.sha256()
    for folder in ("native", "ops"):
        for path in sorted(glob.glob(os.path.join(glob.escape(package), folder, "**", "*.py"), recursive=True)):
            with open(path, "rb") as f:
                found.update(f.read())
    return found.hexdigest()[:16]


@contextlib.contextmanager
def _locked(library: str) -> Iterator[None]:
    """Let one process at a time try out an op, where there are locks: times would disturb each other."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock(
                stack.enter_context(open(os.path.join(os.path.dirname(library), LOCK), "a", encoding="utf8")), wait=True
            )
        yield
