"""``from returnn.util.pprint import pformat, pprint``: values as Python code."""

from __future__ import annotations

import sys
from pprint import PrettyPrinter
from typing import Any, Optional

import numpy as np

from returnn_tf.compat.imports.stand_ins import register_compat

register_compat(__name__, "returnn.util.pprint")

__all__ = ["pformat", "pprint"]


def pformat(value: Any, *args: Any, **options: Any) -> str:
    """Return a value as Python code, over several lines if it is long; dicts in their order, arrays in full.

    :param args: forms of lines, which change nothing here
    :param options: the same
    """
    del args, options
    with np.printoptions(threshold=sys.maxsize):
        return PrettyPrinter(width=120, compact=True, sort_dicts=False).pformat(value)


def pprint(value: Any, file: Optional[Any] = None, prefix: str = "", postfix: str = "", **options: Any) -> None:
    """Print a value as `pformat` writes it.

    :param file: a text file (default: the standard output)
    :param options: as of `pformat`
    """
    text = prefix + pformat(value, **options) + postfix
    print(text, file=sys.stdout if file is None else file)
