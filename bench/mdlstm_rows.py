"""The sizes on which the MDLSTM is measured, on CPU and GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FLIPS = [(False, False), (True, True), (False, True), (True, False)]


class Row(NamedTuple):
    """Sizes of a comparison."""

    batch: int
    height: int
    width: int
    features: int
    units: int

    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return int32 heights and widths of ragged images: 50 - 100 % of the array, the first image all of it."""
        rng = np.random.RandomState(1)
        heights, widths = (rng.randint(size // 2, size + 1, self.batch) for size in (self.height, self.width))
        heights[0], widths[0] = self.height, self.width
        return heights.astype("int32"), widths.astype("int32")

    def gflop(self) -> float:
        """Return GFLOP of the recurrence, forward and backward: 60 n^2 for each valid pixel and direction."""
        heights, widths = self.sizes()
        return 60e-9 * self.units**2 * int((heights * widths).sum()) * len(FLIPS)


ROWS: dict[str, Row] = {
    "digits": Row(35, 6, 55, 16, 24),  # the first layer of demos/digits/mdlstm.config
    "lines": Row(16, 16, 128, 32, 32),
    "wide": Row(8, 24, 192, 64, 64),
    "single": Row(1, 32, 256, 32, 64),
}
