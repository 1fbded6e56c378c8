"""The sequences of an epoch with known lengths, by blocks: the same as by `Epoch.sequence`, in half of the time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.together import Together


def is_applicable(dataset: Any) -> bool:
    """Return whether the sequences of a dataset can be made here: no option changes or leaves out single ones."""
    opts = dataset.opts
    return opts.window == 1 and not (opts.shuffle_frames_of_nseqs or opts.skip_broken_seqs)


def sequences_by_blocks(epoch: Any, together: Together, start: int) -> Iterator[Example]:
    """Yield the sequences of an epoch from a position on.

    A block in which anything is wrong is made one by one: so an error names the sequence, and comes when it is its
    turn.

    :param epoch: `datasets.core.epoch.Epoch`
    :param together: its data and lengths
    """
    position = start
    while epoch.has(position):
        try:
            end, columns = together.block(position)
        except Exception:
            end, columns = position + 1, {}  # reading it by itself raises the error with its place
        lengths = together.lengths_of(position, end)
        if columns and lengths and all(_fit(column, lengths[key]) for key, column in columns.items()):
            indices = together.indices(slice(position, end))
            tags = epoch.dataset.tags_together(indices)
            data = map(dict, map(zip, itertools.repeat(tuple(columns)), zip(*columns.values())))
            yield from map(Example, indices, tags, data, range(position, end))
        else:
            for single in range(position, end):
                yield epoch.sequence(single)
                epoch.release(single + 1)
        position = end


def _fit(column: Any, lengths: list[int]) -> bool:
    """Return whether arrays have these numbers of frames."""
    return [len(value) if value.ndim else 1 for value in column] == lengths
