"""Where audio that is changed at random may be used: in training, and with labels that do not belong to its frames."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import DatasetError, TargetError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.audio.augmentation import changes_length
from returnn_tf.datasets.config import options_within
from returnn_tf.layers.losses.framewise import FramewiseLoss
from returnn_tf.tensor import Data, Dim


def check_not_augmented(dataset: Dataset, name: str) -> None:
    """Check that data to evaluate, to search or to forward is as it was recorded, unless the dataset says otherwise.

    :param name: of the dataset in the config
    :raises ConfigError: its option ``audio`` has ``augment``
    """
    for audio in _augmented(dataset):
        if not audio.get("augment_evaluation"):
            raise DatasetError(
                "The dataset %r has audio with 'augment', but what is evaluated, searched or forwarded would be "
                "changed at random then. Leave augment out of this dataset, or use one without it; to measure e.g. "
                "errors in noise, set augment_evaluation beside it to True." % name
            )


def check_lengths_kept(dataset: Dataset, plans: Iterable[Plan]) -> None:
    """Check that speed or tempo of audio change only where no loss needs a label for each frame of the file.

    :param dataset: for training
    :param plans: networks that are trained
    :raises ConfigError: there is such a loss; names it
    """
    if not any(changes_length(audio["augment"]) for audio in _augmented(dataset)):
        return
    if any(options.get(name) for options in options_within(dataset.given) for name in ("map_seq", "map_seq_stream")):
        return  # functions, which may make labels of the frames
    for plan in plans:
        owners = collections.Counter(dim for data in plan.extern_data.values() for dim in _origins(data))
        for loss in plan.losses:
            if not isinstance(loss.loss, FramewiseLoss) or loss.target is None:
                continue
            of_target = _origins(loss.target.output)
            is_shared = loss.target.extern_key is not None and any(owners[dim] > 1 for dim in of_target)
            if is_shared or not of_target <= _origins(loss.owner.output):
                raise TargetError(
                    "Layer %r: the loss %r needs a label of %r for each frame, but augment changes the speed or tempo "
                    "of the audio of the dataset 'train', and so the number of frames, while the labels stay those of "
                    "the file. Remove these steps from augment; pitch, noise and others keep the length."
                    % (loss.name, loss.loss.class_name, loss.target.extern_key or loss.target.path)
                )


def _augmented(dataset: Dataset) -> Iterator[Mapping[str, Any]]:
    """Yield the options ``audio`` with ``augment`` of a dataset and of those inside it."""
    for options in options_within(dataset.given):
        audio = options.get("audio")
        if isinstance(audio, Mapping) and audio.get("augment"):
            yield audio
    for inner in dataset.inner_datasets:
        yield from _augmented(inner)


def _origins(data: Data) -> set[Dim]:
    """Return the dynamic dims of which the lengths of a tensor are made, but that of the batch."""
    found: set[Dim] = set()
    dims = [dim for axis, dim in enumerate(data.dims) if axis != data.batch_axis]
    while dims:
        dim = dims.pop()
        if dim.expr is not None:
            dims += dim.expr.args
        elif dim.is_dynamic():
            found.add(dim)
    return found
