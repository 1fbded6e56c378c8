"""The diagnostics of ``returnn-tf check --json``: severity, message, topics, place and fix.

The messages of this program begin with their place, in the words that the functions for settings and layers share:
``config key 'x' (my.config:3)``, ``Layer 'a/b' (class 'c')``, ``option 'x'``. Here these words become fields again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.cli.check.migration import MISTAKE, UNSUPPORTED, MigrationNote, layer_dicts
from returnn_tf.cli.check.places import ConfigPlaces
from returnn_tf.cli.check.whole_config import ConfigCheck, Fault
from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, ConfigFileError, DataError, UserError
from returnn_tf.config.settings import all_settings
from returnn_tf.config.user_code import error_in_config

ERROR, WARNING, NOTE = "error", "warning", "note"
_LAYER = re.compile(r"\b[Ll]ayers? '([^'\n]+)'")
_OPTION = re.compile(r"\boption '([^'\n]+)'")
_OPTION_AT_END = re.compile(r"(?:layer|dataset) '.*': (?:loss_opts: )?(\w+)$")
_SETTING = re.compile(r"\bconfig key '([^'\n]+)'(?: \(([^()\n]+)\))?")
_BEGIN = re.compile(r"(?:setting without effect: )?(\w+)\b(?=:| \()")
_FILE = re.compile(r"(.+?):(\d+)(?=: |$)")
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
    layer: Optional[str] = None
    option: Optional[str] = None
    setting: Optional[str] = None
    file: Optional[str] = None
    line: Optional[int] = None
    fix: Optional[str] = None

    def record(self) -> dict[str, Any]:
        """Return it for JSON."""
        place = {name: getattr(self, name) for name in ("layer", "option", "setting", "file", "line")}
        return {
            "severity": self.severity,
            "kind": self.kind,
            "message": self.message,
            "topics": self.topic.split(),
            "place": place,
            "fix": self.fix,
        }


class Locator:
    """Finds the places of messages.

    :param check: a finished check; None: the config could not be loaded
    """

    def __init__(self, check: Optional[ConfigCheck] = None) -> None:
        self._config: Optional[Config] = None if check is None else check.config
        self._places: dict[str, ConfigPlaces] = {}
        self._layers: dict[str, list[Mapping[str, Any]]] = {}
        if check is not None:
            self._places = {path: ConfigPlaces(_text(path)) for path in check.config.files}
            for path, options in _layers(check):
                self._layers.setdefault(path, []).append(options)

    def diagnostic(self, severity: str, fault: Fault) -> Diagnostic:
        """Return a fault with its place."""
        text = fault.text
        first = text.partition("\n")[0]
        layer, option, key = _LAYER.search(first), _OPTION.search(first), _SETTING.search(first)
        setting = key.group(1) if key else None
        begin = _BEGIN.match(first)
        if setting is None and layer is None and begin is not None and begin.group(1) in all_settings():
            setting = begin.group(1)
        place = key.group(2) if key else None
        if place is None and setting is not None and self._config is not None:
            place = self._config.place_of(setting)
        found = _FILE.match(place or first)
        file, line = (found.group(1), int(found.group(2))) if found else (None, None)
        if layer is not None and found is None:
            file, line = self._layer(layer.group(1), option.group(1) if option else "")
        fix = _FIX.search(text)
        return Diagnostic(
            severity,
            "data" if fault.is_data else "config",
            text,
            fault.topic,
            layer.group(1) if layer else None,
            option.group(1) if option else None,
            setting,
            file,
            line,
            (fix.group(1) or fix.group(2)) if fix else None,
        )

    def _layer(self, path: str, option: str) -> tuple[Optional[str], Optional[int]]:
        """Return file and line of a layer or its option, where they are certain."""
        for options in self._layers.get(path, ()):
            for file, places in self._places.items():
                line = places.layer(path, options, option)
                if line is not None:
                    return file, line
        return None, None


def of_exception(exc: Exception) -> Diagnostic:
    """Return what stopped the check, such as a config that can't be loaded."""
    if isinstance(exc, UserError):
        kind = "data" if isinstance(exc, DataError) else "config"
        found = Locator().diagnostic(ERROR, Fault(str(exc), exc.topic))
        if isinstance(exc, ConfigFileError) and exc.file is not None:
            found = dataclasses.replace(found, file=exc.file, line=exc.line)
        return dataclasses.replace(found, kind=kind)
    place = error_in_config(exc)
    if place is not None:
        return Locator().diagnostic(ERROR, Fault(place, "code-in-configs"))
    if isinstance(exc, OSError) and exc.filename is not None:
        text = "%s: %s" % (exc.filename, exc.strerror or exc)
        return Diagnostic(ERROR, "data", text, "data-files", file=str(exc.filename))
    return Diagnostic(ERROR, "program", "%s: %s" % (type(exc).__name__, exc))


def of_migration(note: MigrationNote, *, strict: bool) -> Diagnostic:
    """Return a line of ``--migrate``: what has no effect or is only old is a note.

    :param strict: whether each line is an error
    """
    path, _, line = note.place.rpartition(":")
    layer = _LAYER.search(note.what)
    option = _OPTION_AT_END.match(note.what)
    severity = ERROR if strict else WARNING if note.kind in (UNSUPPORTED, MISTAKE) else NOTE
    return Diagnostic(
        severity,
        "migration",
        "%s: %s: %s" % (note.kind, note.what, note.text),
        layer=layer.group(1) if layer else None,
        option=option.group(1) if option else None,
        setting=note.what if note.what in all_settings() else None,
        file=(path if line.isdigit() else note.place) or None,
        line=int(line) if line.isdigit() else None,
        fix=note.write or None,
    )


def _layers(check: ConfigCheck) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and options of the layers of all networks."""
    if check.schedule is None:
        return
    try:
        entries = check.schedule.distinct(1, check.last_epoch)
    except (ConfigError, DataError):
        return  # a diagnostic of its own
    except Exception as exc:
        if error_in_config(exc) is None:
            raise
        return
    for entry in entries:
        yield from layer_dicts(entry.layers)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
