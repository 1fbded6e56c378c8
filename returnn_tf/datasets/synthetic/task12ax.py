"""The 1-2-AX task: a nested memory task (O'Reilly and Frank 2006)."""

from __future__ import annotations

import numpy as np

from returnn_tf.datasets.core.generating import SymbolTask, choose
from returnn_tf.datasets.core.registry import register_dataset


@register_dataset()
class Task12AXDataset(SymbolTask):
    """Answer R to an X after an A while the last digit was 1, or to a Y after a B while it was 2; else L.

    "data" is one-hot float32 [time, 9] over ``123ABCXYZ``, "classes" int32 [time] over ``LR``; 10 to 99 frames.
    The letter A or B is forgotten with every X and Y. 3, C and Z are distractors.
    """

    input_symbols = "123ABCXYZ"
    output_symbols = "LR"
    target_dtype = "int32"

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw digits, with likely pairs and noise in between, cut to a random length."""
        length = rng.randint(10, 100)
        text = choose(rng, ["", "1", "2"])
        while len(text) < length:
            if rng.uniform() < 0.5:
                text += choose(rng, "12")
            if rng.uniform() < 0.9:
                text += choose(rng, ["AX", "BY"])
            while rng.uniform() < 0.5:
                text += choose(rng, self.input_symbols)
        return text[:length]

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return L or R for each symbol."""
        digit = letter = ""
        out = ""
        for symbol in text:
            if symbol in "XY":
                out += "R" if digit + letter + symbol in ("1AX", "2BY") else "L"
                letter = ""
                continue
            out += "L"
            digit = symbol if symbol in "12" else digit
            letter = symbol if symbol in "AB" else letter
        return out
