"""The document of ``returnn-tf check --json``. Its form is a promise, see `docs/check-json.md`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional, TextIO

from returnn_tf._version import __version__
from returnn_tf.cli.check.diagnostics import (
    ERROR,
    NOTE,
    WARNING,
    Diagnostic,
    diagnostic,
    locator_of,
    of_exception,
    of_migration,
)
from returnn_tf.cli.check.memory import Memory
from returnn_tf.cli.check.migration import MigrationNote
from returnn_tf.cli.check.whole_config import ConfigCheck, Fault
from returnn_tf.cli.shared.locator import Locator
from returnn_tf.compiler.network_record import network_record
from returnn_tf.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.pretrain.checks import Stage, stages
from returnn_tf.engine.support.fingerprint import plain

#: Of the document. It becomes 2 when something that a reader may rely on is removed, renamed or means something else.
SCHEMA_VERSION = 1


def document(
    check: ConfigCheck,
    warned: Sequence[str],
    migration: Sequence[MigrationNote] = (),
    memory: Optional[Memory] = None,
    *,
    strict: bool = False,
) -> dict[str, Any]:
    """Return what a check found.

    :param warned: the warnings that are not in the check
    :param memory: with ``--memory``
    :param strict: whether each line of the migration is an error
    """
    locator = locator_of(check)
    found = [
        *((ERROR, fault) for fault in check.faults),
        *((WARNING, Fault(text)) for text in warned),
        *((WARNING, fault) for fault in check.notes),
        *((NOTE, Fault(text)) for text in check.remarks),
        *((NOTE, Fault(text)) for text in (check.plan.mistakes if check.plan is not None else ())),
    ]
    diagnostics = [diagnostic(severity, fault, locator) for severity, fault in found]
    diagnostics += [of_migration(note, strict=strict) for note in migration]
    several = check.schedule is not None and check.planned is not None and len(check.planned) > 1
    return {
        **_head(diagnostics),
        "config": _config(check.config),
        "epoch": None if check.plan is None else check.shown_epoch,
        "network": None if check.plan is None else network_record(check.plan),
        "stages": _stages(check) if several else [],
        "memory": None if memory is None else memory.record(),
    }


def failure(exc: Exception, warned: Sequence[str]) -> dict[str, Any]:
    """Return the document for a config that can't be loaded, or another error that ends the check."""
    warnings = [diagnostic(WARNING, Fault(text), Locator()) for text in warned]
    return {
        **_head([of_exception(exc), *warnings]),
        "config": None,
        "epoch": None,
        "network": None,
        "stages": [],
        "memory": None,
    }


def _head(diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "program": {"name": "returnn_tf", "version": __version__},
        "ok": all(each.severity != ERROR for each in diagnostics),
        "diagnostics": [each.record() for each in diagnostics],
    }


def _config(config: Config) -> dict[str, Any]:
    return {
        "files": list(config.files),
        "task": TaskSettings(config).task,
        "behavior_version": NetworkSettings(config).behavior_version,
    }


def _stages(check: ConfigCheck) -> list[dict[str, Any]]:
    assert check.schedule is not None and check.planned is not None
    return [_stage(stage) for stage in stages(check.schedule, check.planned, 1, check.last_epoch)]


def _stage(stage: Stage) -> dict[str, Any]:
    transfer = stage.transfer
    return {
        "first_epoch": stage.first,
        "last_epoch": stage.last,
        "name": stage.entry.name,
        "pretraining": stage.entry.pretrain,
        "trained": stage.entry.trainable,
        "settings": {key: plain(value) for key, value in stage.entry.settings.items()},
        "transfer": None
        if transfer is None
        else {
            "copied": list(transfer.copied),
            "grown": list(transfer.grown),
            "new": list(transfer.fresh),
            "reinitialised": list(transfer.reset),
            "dropped": list(transfer.dropped),
        },
        "network": network_record(stage.plan),
    }


@contextlib.contextmanager
def stdout_for_json() -> Iterator[TextIO]:
    """Keep the standard output for what is written to the file given here; all else goes to the standard error.

    That is the log, what code of the config prints, and what programs print that it calls.
    """
    stream = sys.stdout
    number = _descriptor(stream)
    with contextlib.redirect_stdout(sys.stderr):
        if number is None:
            yield stream
            return
        stream.flush()
        saved = os.dup(number)
        os.dup2(2, number)
        try:
            with os.fdopen(os.dup(saved), "w", encoding="utf8") as file:
                yield file
        finally:
            os.dup2(saved, number)
            os.close(saved)


def _descriptor(stream: TextIO) -> Optional[int]:
    """Return 1 if a stream is the standard output of the process; None if it is another one, as in notebooks."""
    try:
        return 1 if stream.fileno() == 1 else None
    except (OSError, io.UnsupportedOperation):
        return None
