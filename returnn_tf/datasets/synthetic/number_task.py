"""The task of writing a number in another base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.generating import GeneratingDataset
from returnn_tf.datasets.core.registry import register_dataset

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@register_dataset()
class TaskNumberBaseConvertDataset(GeneratingDataset):
    """Random digits, most significant first; the target is the same number in another base without leading zeros.

    "data" is int64 [digits], "classes" int64 [digits of the result]; labels are the digits, then letters.
    """

    @dataclass
    class Options(GeneratingDataset.Options):
        """Options in the config."""

        input_base: int = option(8, help="base of the input")
        output_base: int = option(2, help="base of the target")
        min_input_seq_len: int = option(1, help="minimum number of digits")
        max_input_seq_len: int = option(8, help="maximum number of digits")

    def make_specs(self) -> dict[str, DataSpec]:
        """Return sparse specs for both keys."""
        opts = self.opts
        for name in ("input_base", "output_base"):
            if not 2 <= getattr(opts, name) <= len(_DIGITS):
                raise ConfigError("%s: %s must be from 2 to %d" % (self._owner(), name, len(_DIGITS)))
        if not 1 <= opts.min_input_seq_len <= opts.max_input_seq_len:
            raise ConfigError("%s: min_input_seq_len must be from 1 to max_input_seq_len" % self._owner())
        bases = {"data": opts.input_base, "classes": opts.output_base}
        return {
            key: DataSpec(dim=base, ndim=1, dtype="int64", labels=tuple(_DIGITS[:base])) for key, base in bases.items()
        }

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Draw a number, and write it in both bases."""
        opts = self.opts
        length = rng.randint(opts.min_input_seq_len, opts.max_input_seq_len + 1)
        digits = [int(rng.randint(0, opts.input_base)) for _ in range(length)]
        return {
            "data": np.array(digits, np.int64),
            "classes": np.array(convert_base(digits, opts.input_base, opts.output_base), np.int64),
        }


def convert_base(digits: Sequence[int], input_base: int, output_base: int) -> list[int]:
    """Return the digits of the same number in another base, most significant first; [0] for zero."""
    number = 0
    for digit in digits:
        number = number * input_base + digit
    out: list[int] = []
    while number or not out:
        number, digit = divmod(number, output_base)
        out.append(digit)
    return out[::-1]
