"""Reference docs of layer and loss classes, made from the declared options and the docstrings: `returnn-tf layers`."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any, List, Optional, Tuple, Type

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.options import declared_options, option_rows
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.loss import Loss
from returnn_tf.graph.registry import LAYERS, LOSSES


def list_layers() -> str:
    """All layer classes and losses with the first line of their docs."""
    lines = ["Layer classes (`returnn-tf layers CLASS` shows the options):"]
    lines += _listing(LAYERS.items())
    lines += ["", "Losses:"] + _listing(LOSSES.items())
    return "\n".join(lines)


def _listing(items: List[Tuple[str, Type[Any]]]) -> List[str]:
    width = max([len(name) for name, _ in items], default=0)
    return ["  %s  %s" % (name.ljust(width), summary(cls)) for name, cls in items]


def summary(cls: Type[Any]) -> str:
    """The first sentence of the docstring."""
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    text = text.replace("``", "").replace("`", "")
    for match in re.finditer(r"(?<!et al)(?<!e\.g)(?<!i\.e)\.(?=\s|$)", text):
        sentence = text[: match.end()]
        if sentence.count("(") == sentence.count(")"):
            return sentence
    return text.rstrip(":")


def describe_layer(name: str) -> str:
    """Docstring and options (type, default, help) of one layer class or loss.

    :raises ConfigError: unknown name, with the nearest known one
    """
    base: Type[Any]
    if name in LAYERS.names():
        registry, base, what = LAYERS, Layer, "layer class"
    elif name in LOSSES.names():
        registry, base, what = LOSSES, Loss, "loss"
    else:
        raise ConfigError(
            "There is no layer class or loss %r. %s" % (name, did_you_mean(name, LAYERS.names() + LOSSES.names()))
        )
    cls = registry.get(name, "layers")
    names = registry.names_of(cls)
    head = "%s %r" % (what, names[0])
    if len(names) > 1:
        head += ", also called %s" % ", ".join(map(repr, names[1:]))
    common = set(declared_options(base))
    rows = option_rows(cls)
    base_rows = {r[0]: r for r in option_rows(base)}
    own = [r for r in rows if r[0] not in common or base_rows[r[0]][1:] != r[1:]]
    declared_here = cls.__dict__.get("__annotations__", {})
    own.sort(key=lambda r: declared_options(cls)[r[0]].attribute not in declared_here)
    shared = [r for r in rows if r not in own]
    parts = [head, "", inspect.getdoc(cls) or "", "", "Options:"] + _table(own)
    if base is Layer:
        parts += ["", "Options of every layer:", "  from: names of the sources, a string or a list"]
    else:
        parts += ["", "Options of every loss:"]
    return "\n".join(parts + _table(shared))


def _table(rows: List[Tuple[str, str, str, str]]) -> List[str]:
    if not rows:
        return ["  (none)"]
    lines = []
    for name, type_, default, help_ in rows:
        head = "  %s: %s" % (name, type_) + ("" if default == "(required)" else " = %s" % default)
        lines.append(head + (" (required)" if default == "(required)" else ""))
        lines += textwrap.wrap(help_, 110, initial_indent="      ", subsequent_indent="      ")
    return lines


def example_of(cls: Type[Any]) -> Optional[str]:
    """The code of the ``Example::`` block in a docstring, or None."""
    doc = inspect.getdoc(cls) or ""
    match = re.search(r"^Example::\n\n((?:(?:    .*)?\n?)+)", doc, re.MULTILINE)
    return textwrap.dedent(match.group(1)) if match else None
