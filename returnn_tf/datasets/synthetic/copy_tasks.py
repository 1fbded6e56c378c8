"""Tasks of memorising a sequence and reproducing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.generating import GeneratingDataset, SymbolTask, choose
from returnn_tf.datasets.core.registry import register_dataset


@register_dataset()
class TaskEpisodicCopyDataset(SymbolTask):
    """Digits, then a long pause, then a dot: now repeat the digits.

    "data" is one-hot float32 [time, 10] over ``" .01234567"``, "classes" int64 [time] over the same symbols.
    1 to 9 digits, 1 to 99 blanks, one dot to ask, and as many more dots as digits plus one.
    """

    input_symbols = " .01234567"
    output_symbols = " .01234567"

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw digits, blanks, dots."""
        digits = "".join(choose(rng, self.input_symbols[2:]) for _ in range(rng.randint(1, 10)))
        return digits + " " * rng.randint(1, 100) + "." * (len(digits) + 2)

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return blanks up to the first dot, then what came before, then dots."""
        asked = text.find(".") + 1 or len(text)
        digits = text[:asked].replace(" ", "").replace(".", "")
        return (" " * asked + digits).ljust(len(text), ".")[: len(text)]


@register_dataset()
class CopyTaskDataset(GeneratingDataset):
    """The target is the input: "data" and "classes" are the same int8 [time].

    The length is uniform between int(minlen + minlen_epoch_factor * epoch) and int(maxlen + maxlen_epoch_factor *
    epoch), both included.
    """

    @dataclass
    class Options(GeneratingDataset.Options):
        """Options in the config."""

        nsymbols: int = option(help="number of different symbols, at most 128")
        minlen: int = option(0, help="shortest length")
        maxlen: int = option(0, help="longest length")
        minlen_epoch_factor: float = option(0, help="times epoch is added to minlen")
        maxlen_epoch_factor: float = option(0, help="times epoch is added to maxlen")

    def make_specs(self) -> dict[str, DataSpec]:
        """Return sparse specs for both keys."""
        count = self.opts.nsymbols
        if not 1 <= count <= 128:
            raise ConfigError("%s: nsymbols is %d, but must be from 1 to 128" % (self._owner(), count))
        return {key: DataSpec(dim=count, ndim=1, dtype="int8") for key in ("data", "classes")}

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Draw random symbols."""
        opts = self.opts
        low = int(opts.minlen + opts.minlen_epoch_factor * epoch)
        high = int(opts.maxlen + opts.maxlen_epoch_factor * epoch)
        if not 0 <= low <= high:
            raise ConfigError("%s: in epoch %d lengths would be from %d to %d" % (self._owner(), epoch, low, high))
        length = rng.randint(low, high + 1)
        symbols = np.array([rng.randint(0, opts.nsymbols) for _ in range(length)], np.int8)
        return {"data": symbols, "classes": symbols}
