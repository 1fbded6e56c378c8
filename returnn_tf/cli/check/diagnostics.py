"""The diagnostics of ``returnn-tf check --json``: severity, message, topics, place and fix."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Optional

from returnn_tf.cli.check.migration import MISTAKE, UNSUPPORTED, MigrationNote
from returnn_tf.cli.check.whole_config import ConfigCheck, Fault
from returnn_tf.cli.shared.locator import Located, Locator
from returnn_tf.config.errors import ConfigError, ConfigFileError, DataError, UserError
from returnn_tf.config.settings import all_settings
from returnn_tf.config.user_code import error_in_config

ERROR, WARNING, NOTE = "error", "warning", "note"
_LAYER = re.compile(r"\blayer '([^'\n]+)'")
_OPTION_AT_END = re.compile(r"(?:layer|dataset) '.*': (?:loss_opts: )?(\w+)$")
_FIX = re.compile(r"\bDid you mean (?:'([^'\n]+)'|\"([^\"\n]+)\")\?")


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One mistake or remark.

    :param severity: ERROR (ends with an exit code other than 0), WARNING or NOTE
    :param kind: "config", "data" (only a data file or checkpoint is wrong), "migration", or "program"
    """

    severity: str
    kind: str
    message: str
    topic: str = ""
    place: Located = Located()
    fix: Optional[str] = None

    def record(self) -> dict[str, Any]:
        """Return it for JSON."""
        place = {name: getattr(self.place, name) for name in ("layer", "option", "setting", "file", "line")}
        for name in ("column", "end_line", "end_column"):
            place[name] = getattr(self.place.span, name, None)
        return {
            "severity": self.severity,
            "kind": self.kind,
            "message": self.message,
            "topics": self.topic.split(),
            "place": place,
            "fix": self.fix,
        }


def diagnostic(severity: str, fault: Fault, locator: Locator) -> Diagnostic:
    """Return a fault with its place."""
    found = locator.locate(fault.text, fault.network)
    fix = _FIX.search(fault.text)
    return Diagnostic(
        severity,
        "data" if fault.is_data else "config",
        fault.text,
        fault.topic,
        found,
        (fix.group(1) or fix.group(2)) if fix else None,
    )


def locator_of(check: ConfigCheck) -> Locator:
    """Return the finder of places in the config of a check."""
    return Locator(check.given, _networks(check))


def of_exception(exc: Exception) -> Diagnostic:
    """Return what stopped the check, such as a config that can't be loaded."""
    if isinstance(exc, UserError):
        kind = "data" if isinstance(exc, DataError) else "config"
        found = diagnostic(ERROR, Fault(str(exc), exc.topic), Locator())
        if isinstance(exc, ConfigFileError) and exc.file is not None:
            found = dataclasses.replace(found, place=dataclasses.replace(found.place, file=exc.file, line=exc.line))
        return dataclasses.replace(found, kind=kind)
    place = error_in_config(exc)
    if place is not None:
        return diagnostic(ERROR, Fault(place, "code-in-configs"), Locator())
    if isinstance(exc, OSError) and exc.filename is not None:
        text = "%s: %s" % (exc.filename, exc.strerror or exc)
        return Diagnostic(ERROR, "data", text, "data-files", Located(file=str(exc.filename)))
    return Diagnostic(ERROR, "program", "%s: %s" % (type(exc).__name__, exc))


def of_migration(note: MigrationNote, *, strict: bool) -> Diagnostic:
    """Return a line of ``--migrate``: what has no effect or is only old is a note.

    :param strict: whether each line is an error
    """
    layer = _LAYER.search(note.what)
    option = _OPTION_AT_END.match(note.what)
    severity = ERROR if strict else WARNING if note.kind in (UNSUPPORTED, MISTAKE) else NOTE
    place = dataclasses.replace(
        note.at,
        layer=layer.group(1) if layer else None,
        option=option.group(1) if option else None,
        setting=note.what if note.what in all_settings() else None,
    )
    text = "%s: %s: %s" % (note.kind, note.what, note.text)
    return Diagnostic(severity, "migration", text, place=place, fix=note.write or None)


def _networks(check: ConfigCheck) -> list[Any]:
    """Return the network dicts of all epochs."""
    if check.schedule is None:
        return []
    try:
        return [entry.layers for entry in check.schedule.distinct(1, check.last_epoch)]
    except (ConfigError, DataError):
        return []  # a diagnostic of its own
    except Exception as exc:
        if error_in_config(exc) is None:
            raise
        return []
