"""``returnn-tf tool tf-inspect-checkpoint``: names, types, shapes and values of a checkpoint."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.config.errors import CommandDataError, CommandError, did_you_mean
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.logging.text import printable

_DOC = """
Print the names, types and shapes of the values in a checkpoint, and values with statistics.

    returnn-tf tool tf-inspect-checkpoint --file_name models/epoch.020
    returnn-tf tool tf-inspect-checkpoint --file_name models/epoch.020 --tensor_name output/W --printoptions precision=3

What an exact resume needs besides the parameters, e.g. slots of the optimizer, is in models/epoch.020.state.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool tf-inspect-checkpoint", _DOC)
    result.add_argument("--file_name", metavar="PREFIX", required=True, help="the checkpoint, also with .index etc.")
    result.add_argument("--tensor_name", metavar="NAME", help="print this value, with statistics")
    result.add_argument("--all_tensors", action="store_true", help="print all values, with statistics")
    result.add_argument("--printoptions", metavar="K=V", nargs="*", default=[], help="of numpy: threshold=5 ...")
    return result


@register_tool("tf-inspect-checkpoint", parser)
def run(args: list[str]) -> int:
    """Print the content.

    :param args: the arguments of the tool
    :raises DataError: there is no such checkpoint, or it is damaged
    """
    parsed = parser().parse_args(args)
    options = _print_options(parsed.printoptions)
    values = checkpoint.read(parsed.file_name)
    if parsed.tensor_name is not None:
        if parsed.tensor_name not in values:
            hint = did_you_mean(parsed.tensor_name, list(values))
            raise CommandDataError("%s has no %r. %s" % (parsed.file_name, parsed.tensor_name, hint))
        values = {parsed.tensor_name: values[parsed.tensor_name]}
    with np.printoptions(**options):
        for name, value in values.items():
            print(printable(name), value.dtype.name if value.dtype.kind != "O" else "string", list(value.shape))
            if parsed.tensor_name is not None or parsed.all_tensors:
                print("\n".join("  " + printable(line) for line in _details(value)))
    return 0


def _details(value: NDArray[Any]) -> Iterator[str]:
    """Yield the lines on a value, and on the numbers in it."""
    yield from str(value).splitlines()
    if not value.size or value.dtype.kind == "O":
        return
    numbers = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    rms = np.sqrt(np.mean(np.square(np.abs(numbers))))
    text = "mean: %s, stddev: %s, rms: %s" % (numbers.mean(), numbers.std(), rms)
    yield text + ("" if value.dtype.kind == "c" else ", min: %s, max: %s" % (numbers.min(), numbers.max()))


def _print_options(given: list[str]) -> dict[str, Any]:
    """Return the options for numpy.

    :raises ConfigError: there is no such option, or it has another form
    """
    known = [name for name in inspect.signature(np.set_printoptions).parameters if name not in ("formatter", "legacy")]
    options: dict[str, Any] = {}
    for entry in given:
        name, _, text = entry.partition("=")
        if name not in known or not text:
            raise CommandError(
                "--printoptions: %r is not of the form name=value. %s" % (entry, did_you_mean(name, known))
            )
        try:
            options[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            options[name] = float(text) if text in ("inf", "nan") else text
    try:
        with np.printoptions(**options):
            str(np.zeros(1))
    except (TypeError, ValueError) as exc:
        raise CommandError("--printoptions %s: %s" % (" ".join(given), exc)) from None
    return options
