"""``.<model>.status.json``: state of a run, for users and tools which look at its folder during the run or later.

A few facts as JSON, replaced atomically every few seconds by the process that writes files. Nothing depends on it:
if it can't be written, training continues. Readers treat it as untrusted data: `read_status`.
Its name begins with a dot, as that of the lock: job managers take files ``<model>.*`` for those of an epoch.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Optional

from returnn_tf.config.errors import DataError, SettingDataError
from returnn_tf.engine.support.atomic_files import read_json
from returnn_tf.logging.log import log
from returnn_tf.util.temporary import Temporary

SUFFIX = ".status.json"
MAX_BYTES = 1 << 20
#: How a run ended that a second signal has not let save.
ABORTED = "ended at once by a signal, without saving"
_INTERVAL = 5.0

#: fact -> its types, for those which programs rely on; others may have any type
_TYPES = {
    "host": str,
    "pid": int,
    "started": (int, float),
    "updated": (int, float),
    "command": list,
    "learning_rate_file": str,
    "epoch": int,
    "num_epochs": int,
    "step": int,
    "global_step": int,
    "complete": (int, float),
    "seconds_per_step": (int, float),
    "signal": dict,
    "ended": dict,
    "ranks": list,
    "hosts": list,
}


def path_of(model: str) -> str:
    """Return the path of the file beside the checkpoints with a path prefix."""
    folder, name = os.path.split(model)
    return os.path.join(folder, ".%s%s" % (name, SUFFIX))


def model_of(path: str) -> Optional[str]:
    """Return the path prefix of the checkpoints beside a status file; None if the name is not that of one."""
    folder, name = os.path.split(path)
    is_one = name.startswith(".") and name.endswith(SUFFIX)
    return os.path.join(folder, name[1 : -len(SUFFIX)]) if is_one else None


class StatusFile:
    """Writes the file. A fact stays until it is replaced; None removes it.

    :param model: path prefix of the checkpoints; empty: nothing is written
    :param enabled: False in processes which write no files
    :param interval: minimum number of seconds between two writes
    """

    def __init__(self, model: str, *, enabled: bool = True, interval: float = _INTERVAL) -> None:
        self.path = path_of(model) if model and enabled else ""
        self._interval = interval
        self._due = 0.0
        self._facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
            "command": sys.argv,
        }

    def note(self, **facts: Any) -> None:
        """Store facts, to be written at the next update."""
        self._facts.update(facts)

    def update(self, now: bool = False, **facts: Any) -> None:
        """Store facts, and write the file if it is due; otherwise costs next to nothing.

        :param now: write at once, e.g. at a signal or at the end of an epoch
        :param facts: JSON values: epoch, num_epochs, step (of the epoch), global_step, complete (0 - 1),
            seconds_per_step, frames_per_second, loss, learning_rate_file, world_size, ranks (a dict per rank)
        """
        self.note(**facts)
        if self.path and (now or time.monotonic() >= self._due):
            self._write()

    def signal(self, name: str) -> None:
        """Record that a signal came, e.g. SIGUSR1."""
        self.update(now=True, signal={"name": name, "time": time.time()})

    def ended(self, reason: str, exit_code: Optional[int] = None) -> None:
        """Record an orderly end of the run; only the first reason counts.

        :param reason: ``finished``, ``stopped by SIGTERM``, or the message of an error
        """
        if "ended" not in self._facts:
            self.update(now=True, ended={"reason": reason, "exit_code": exit_code, "time": time.time()})

    def _write(self) -> None:
        self._facts["updated"] = time.time()
        facts = {key: value for key, value in self._facts.items() if value is not None}
        try:
            text = json.dumps(facts, indent=1, default=float) + "\n"  # numbers of numpy
            with Temporary(self.path, clean=False) as temporary:  # after a kill, the next run removes it
                temporary.write(text.encode("utf8"), sync=False)
                temporary.publish()
        except (OSError, TypeError, ValueError) as exc:
            log.warn("%s can't be written, so returnn-tf status will not see this run: %s" % (self.path, exc))
            self.path = ""
        self._due = time.monotonic() + self._interval


def end_for_another(model: str, reason: str, exit_code: int) -> None:
    """Write how a run ended that was killed before it could itself; no-op if its file has an end or is missing."""
    try:
        facts = read_status(path_of(model))
    except DataError:
        return
    if "ended" not in facts:
        file = StatusFile(model)
        file.note(**facts)
        file.update(now=True, ended={"reason": reason, "exit_code": exit_code, "time": time.time()})


def read_status(path: str) -> dict[str, Any]:
    """Return the facts of a status file.

    :raises DataError: it is missing, too large, or not a status file
    """
    try:
        facts = read_json(path, MAX_BYTES)
    except OSError as exc:
        raise SettingDataError("%s can't be read: %s" % (path, exc.strerror or exc)) from None
    except (ValueError, RecursionError) as exc:
        raise SettingDataError("%s is not a complete status file: %s" % (path, exc)) from None
    if not isinstance(facts, dict):
        raise SettingDataError("%s is not a status file: expected {...}" % path)
    for key, value in facts.items():
        kind: Any = _TYPES.get(key, object)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not object):
            raise SettingDataError("%s: %r has a wrong value, %.80r" % (path, key, value))
    return facts


def models_in(folder: str) -> set[str]:
    """Return the path prefixes of checkpoints beside which a folder has a status file; may be empty."""
    found = (model_of(os.path.join(folder, name)) for name in os.listdir(folder))
    return {model for model in found if model is not None}
