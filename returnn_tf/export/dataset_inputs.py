"""Sequences of a dataset as inputs of an exported graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportError
from returnn_tf.datasets.config import DatasetOfConfig
from returnn_tf.export.inference import InferenceModel

_FRAMES_OF_BATCH = 50_000


def dataset_inputs(
    model: InferenceModel,
    name: str,
    *,
    where: str,
    count: int,
    most: int = 100,
    batch: Optional[int] = None,
    frames: Optional[int] = None,
    references: Sequence[str] = (),
) -> Iterator[tuple[dict[str, NDArray[Any]], dict[str, list[NDArray[Any]]]]]:
    """Yield inputs by name, and references by data key, each of which has the labels of each sequence.

    :param name: of a dataset in the config of the network
    :param where: the option, for errors
    :param count: number of sequences, from the first one
    :param most: sequences of a batch
    :param batch: exact number of sequences; the last batch is filled with copies, which have no references
    :param frames: size of all time axes, to which shorter sequences are padded
    :raises ConfigError: there is no such dataset, it lacks a data key, or a sequence is too long
    """
    dataset = DatasetOfConfig(model.net.config, name)()
    keys = list(dict.fromkeys([*model.keys, *references]))
    lacking = [key for key in keys if key not in dataset.data_keys]
    if lacking:
        raise ExportError("export %s: the dataset %r has no data key %r." % (where, name, lacking[0]))
    batches = dataset.batches(
        1,
        used_data_keys=keys,
        chunking=None,
        context_window=None,
        batch_size=_FRAMES_OF_BATCH,
        max_seqs=batch or most,
        max_seq_length={},
    )
    for found in batches:
        size = min(count, found.num_seqs)
        rows = np.arange(size) if batch is None else np.minimum(np.arange(batch), size - 1)
        feed = {}
        for each, info in model.input_infos.items():
            value = found.feed[model.feed_keys[each]]
            value = (value[rows] if info.axes[:1] == ("B",) else value).astype(info.dtype)
            feed[each] = value if frames is None else _padded(value, info.lengths, frames, "export %s" % where, name)
        lens = {key: found.feed[key + "/size0"] for key in references}
        yield feed, {key: [found.feed[key][row][: lens[key][row]] for row in range(size)] for key in references}
        count -= size
        if not count:
            return


def _padded(value: NDArray[Any], lengths: Mapping[int, str], frames: int, where: str, dataset: str) -> NDArray[Any]:
    pads = [(0, frames - size if axis in lengths else 0) for axis, size in enumerate(value.shape)]
    if min(after for _, after in pads) < 0:
        raise ExportError(
            "%s: the dataset %r has a sequence of %d frames, but the export takes %d. Give a larger number by --frames."
            % (where, dataset, max(value.shape[axis] for axis in lengths), frames)
        )
    return np.pad(value, pads)
