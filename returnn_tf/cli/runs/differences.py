"""Differences of the settings and networks of runs, as rows of a table with a column for each run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from returnn_tf.config.settings import all_settings
from returnn_tf.config.settings.logging import LoggingSettings

ABSENT = "-"

#: Settings that say where a run writes and what it prints, not what it computes; also all of `LoggingSettings`.
_PLACES = ("learning_rate_file", "model", "task")

Row = tuple[str, list[str]]


def differing_settings(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the settings that are not the same in all runs; of dicts, the entries that differ.

    :param found: settings by name of each run, in types of JSON
    :return: (name, text of each run), those without an effect on what is computed left out
    """
    outputs = {name for name, info in all_settings().items() if info.topic is LoggingSettings} | set(_PLACES)
    return _differing([{k: v for k, v in settings.items() if k not in outputs} for settings in found], "")


def _differing(values: Sequence[Any], name: str) -> list[Row]:
    """Return the rows of a value, or of its entries if it is a dict in more than one run."""
    if all(same(value, values[0]) for value in values):
        return []
    dicts = [value for value in values if isinstance(value, dict)]
    if len(dicts) < 2 and name:
        return [(name, [shown(value) for value in values])]
    if len(dicts) < len(values) and name:
        if any(value is not None and not isinstance(value, dict) for value in values):
            return [(name, [shown(value) for value in values])]
    rows: list[Row] = []
    for key in dict.fromkeys(key for each in dicts for key in each):
        inner = [value.get(key) if isinstance(value, dict) else None for value in values]
        rows += _differing(inner, "%s.%s" % (name, key) if name else key)
    return sorted(rows) if not name else rows


def folder_of_config(facts: Mapping[str, Any]) -> str:
    """Return the folder of the config of a run; "" if it is unknown.

    :param facts: see `run_settings.facts_of`
    """
    files = facts.get("files")
    return os.path.dirname(str(files[0])) if isinstance(files, list) and files else ""


def without_folders(rows: Sequence[Row], folders: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Separate the rows which differ only since the configs lie in different folders, as copies of a project do.

    :param rows: (name, text of each run)
    :param folders: that of the config of each run; "" if unknown
    :return: the other rows, and the names of these
    """
    inside = [re.compile(r"(?<![\w/.-])%s(?=/|$|')" % re.escape(folder)) if folder else None for folder in folders]
    moved: list[str] = []
    rest: list[Row] = []
    for name, texts in rows:
        relative = {text if p is None else p.sub(".", text) for text, p in zip(texts, inside)}
        if len(relative) == 1:
            moved.append(name)
        else:
            rest.append((name, list(texts)))
    return rest, moved


def differing_layers(networks: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the layers that some runs lack, with their classes, and the options that differ in those of all.

    :param networks: network dict of each run, in types of JSON
    """
    flat = [dict(_layers(network, "")) for network in networks]
    rows: list[Row] = []
    for path in dict.fromkeys(path for layers in flat for path in layers):
        options = [layers.get(path) for layers in flat]
        there = [each for each in options if each is not None]
        if len(there) < len(options):
            rows.append((path, [ABSENT if each is None else _class_of(each) for each in options]))
        for name in dict.fromkeys(name for each in there for name in each):
            values = [each.get(name) for each in there]
            if not all(same(value, values[0]) for value in values):
                rows.append(("%s: %s" % (path, name), [shown((each or {}).get(name)) for each in options]))
    return rows


def _layers(network: Mapping[str, Any], prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (path, options) of all layers; networks within options are flattened, too."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name, layer in network.items():
        if not isinstance(layer, dict):
            found.append((prefix + name, {"": layer}))
            continue
        inner = {key: value for key, value in layer.items() if _is_network(value)}
        found.append((prefix + name, {key: value for key, value in layer.items() if key not in inner}))
        for value in inner.values():
            found += _layers(value, prefix + name + "/")
    return found


def _is_network(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(layer, dict) and "class" in layer for layer in value.values())


def _class_of(options: Mapping[str, Any]) -> str:
    parts = [str(options.get("class", "?"))]
    parts += ["%s=%s" % (name, shown(options[name])) for name in ("unit", "n_out") if name in options]
    return " ".join(parts)


def same(a: Any, b: Any) -> bool:
    """Return whether two values of JSON are the same; 1 and 1.0 are, 1 and True are not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def shown(value: Any) -> str:
    """Return a value as in a config; what is not set as "-"."""
    return ABSENT if value is None else repr(value) if not isinstance(value, str) or not value else value
