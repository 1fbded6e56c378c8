"""Support of layer classes by target, as found by exporting an example of each class (``layers.json``)."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from returnn_tf.export.exporters import EXPORTERS

#: Written by ``python -m tests.export.fill_table``.
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layers.json")


def columns() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the columns of the table: how the target is chosen on the command line -> (its name, options)."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, cls in EXPORTERS.items():
        if not cls.__module__.startswith("returnn_tf."):
            continue  # of a plug-in
        for words, options in cls.forms.items():
            found[("%s %s" % (name, words)).strip()] = name, dict(options)
    return found


@functools.lru_cache(maxsize=1)
def layer_table() -> Mapping[str, Mapping[str, str]]:
    """Return layer class -> column -> the reason why the target can't express the example of the class, or ""."""
    with open(PATH, encoding="utf8") as file:
        content: dict[str, dict[str, str]] = json.load(file)
    return content


def other_targets(classes: Iterable[str], target: str) -> list[str]:
    """Return the columns of other targets which can express all of some layer classes.

    :param classes: names of layer classes; one that the table lacks, as of a plug-in, says nothing
    :param target: name of the exporter that can't
    """
    rows = [row for name, row in layer_table().items() if name in set(classes)]
    others = [column for column, (name, _) in columns().items() if name != target]
    return [column for column in others if all(row.get(column) == "" for row in rows)]


def choose_another(classes: Iterable[str], target: str) -> str:
    """Return advice for an error: "Choose another target (--to saved_model, --to frozen)."; or ""."""
    others = other_targets(classes, target)
    return "Choose another target (%s)." % ", ".join("--to " + column for column in others) if others else ""
