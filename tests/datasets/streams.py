"""A stream for tests of datasets that are made of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.stream import StreamDataset


class Streamed(StreamDataset):
    """Sequence i has i % 3 + 1 frames [time, 2]."""

    @dataclass
    class Options(StreamDataset.Options):
        """Options in the config."""

        num: int = option(3, help="number of sequences")
        prefix: str = option("s", help="of the tags")
        fails_at: Optional[int] = option(None, help="raise an error there")

    def make(self, index: int, epoch: int) -> dict[str, Any]:
        """Return the data of a sequence."""
        frames = np.arange(2 * (index % 3 + 1), dtype="float32").reshape(-1, 2)
        return {"data": frames + 10 * index + 1000 * epoch}

    def stream(self, epoch: int, **others: Any) -> Iterator[Example]:
        """Yield the sequences."""
        for index in range(self.opts.num):
            if index == self.opts.fails_at:
                raise RuntimeError("no more")
            yield Example(index, "%s%d" % (self.opts.prefix, index), self.make(index, epoch))
