"""``returnn-tf layers [CONFIG ...] [CLASS ...]``: the layer classes and their options."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any, Optional

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.reference import read_configs
from returnn_tf.config.errors import CommandError, did_you_mean
from returnn_tf.config.reference import describe, listing
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.loss import Loss
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.ops.cells.registry import UNITS

#: What the examples in docstrings need not say.
EXAMPLE_DEFAULTS: dict[str, Any] = {
    "behavior_version": 21,
    "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}},
}
#: What they may set; other names are helpers of theirs.
_EXAMPLE_SETTINGS = ("network", *EXAMPLE_DEFAULTS)


@register_command(
    "layers",
    "[CONFIG ...] [CLASS ...]",
    "list all layer classes and losses, or explain some with their options",
    details="  CONFIG   a config whose own classes count too",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all layer classes, or the reference of some, also of classes of config files."""
    names = read_configs("layers", args, LAYERS, LOSSES)
    for name in names:
        print(describe_layer(name))
    if not names:
        print(list_layers())
    return 0


def list_layers() -> str:
    """List all layer classes and losses with the first line of their docs."""
    lines = ["Layer classes (`returnn-tf layers CLASS` shows the options):"]
    lines += listing(LAYERS.items())
    lines += ["", "Losses:"] + listing(LOSSES.items())
    return "\n".join(lines)


def describe_layer(name: str) -> str:
    """Return the docstring and the options (type, default, help) of one layer class or loss.

    :raises ConfigError: unknown name, with the nearest known one
    """
    if name in LAYERS:
        common = "Options of every layer:\n  from: names of the sources, a string or a list"
        return describe(LAYERS, name, "layers", base=Layer, common=common)
    if name in LOSSES:
        return describe(LOSSES, name, "layers", base=Loss, common="Options of every loss:")
    raise CommandError("There is no layer class or loss %r%s" % (name, _hint(name)))


def _hint(name: str) -> str:
    """Return a hint for an unknown name: recurrent units are often mistaken for layer classes."""
    if name in UNITS:
        shown = '{"class": "rec", "unit": "%s"}' % name
        return ", but %r is a unit of layer class 'rec': %s. See `returnn-tf units %s`." % (name, shown, name)
    return ". %s" % did_you_mean(name, LAYERS.names() + LOSSES.names())


def example_of(cls: type[Any]) -> Optional[str]:
    """Return the code of the ``Example::`` block in a docstring, or None."""
    doc = inspect.getdoc(cls) or ""
    match = re.search(r"^Example::\n\n((?:(?:    .*)?\n?)+)", doc, re.MULTILINE)
    return textwrap.dedent(match.group(1)) if match else None


def example_settings(cls: type[Any]) -> dict[str, Any]:
    """Return the settings of the example in the docstring of a class, with `EXAMPLE_DEFAULTS` for what it leaves out.

    :raises ConfigError: the docstring has none
    """
    example = example_of(cls)
    if example is None:
        raise CommandError("%s: the docstring has no 'Example::' block with network = {...}" % cls.__qualname__)
    names: dict[str, Any] = {}
    exec(compile(example, "<example of %s>" % cls.__qualname__, "exec"), names)
    return {**EXAMPLE_DEFAULTS, **{key: value for key, value in names.items() if key in _EXAMPLE_SETTINGS}}
