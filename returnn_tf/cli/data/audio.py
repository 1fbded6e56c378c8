"""``returnn-tf data audio CONFIG [NAME] --output FOLDER``: what a training hears, as wav files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from returnn_tf.cli.data import source
from returnn_tf.cli.data.dump import file_name
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.audio.encode import encoded
from returnn_tf.datasets.audio.heard import AudibleDataset
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.share import Chosen
from returnn_tf.logging.text import printable
from returnn_tf.util.temporary import Temporary

_DOC = """
Write audio as features are computed of it to wav files, to listen to: after augment, without preemphasis.

    returnn-tf data audio my.config --output heard                  the first 10 sequences of the first epoch
    returnn-tf data audio my.config --output heard --epoch 2        the same data in another epoch
    returnn-tf data audio my.config dev --output heard --tags seq-3,seq-7
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("data audio", _DOC)
    source.add_arguments(result, keys=False)
    result.add_argument("--output", metavar="FOLDER", required=True, help="where the files TAG.wav are written")
    result.add_argument("--seqs", metavar="N", type=positive, default=10, help="number of sequences (10)")
    result.add_argument("--tags", metavar="TAG,TAG", help="these sequences")
    return result


def run(args: list[str]) -> int:
    """Write the files, and print a line on each.

    :raises ConfigError: the dataset has no audio, or it is that of another process
    :raises DataError: the audio can't be read
    """
    parsed, found = source.parse(parser(), args)
    epoch = parsed.epoch or 1
    dataset = _audible(found.dataset)
    tags = _tags(found.dataset, epoch, parsed)
    order = dataset.chosen_order(epoch, Chosen(tags))
    assert order is not None  # of tags
    try:
        os.makedirs(parsed.output, exist_ok=True)
    except OSError as exc:
        raise FileError("data audio: can't make the folder %r: %s" % (parsed.output, exc.strerror)) from None
    for tag, index in zip(tags, map(int, order)):
        audio, rate = dataset.heard(index, epoch)
        path = os.path.join(parsed.output, file_name(tag.removesuffix(".wav")) + ".wav")
        _write(path, encoded(audio, rate, "WAV", "PCM_16"))
        peak = float(np.abs(audio).max())
        clipped = ", clipped: the peak is %.2f" % peak if peak > 1 else ""
        print(printable("%s: %.2f s at %d Hz%s, %s" % (tag, len(audio) / rate, rate, clipped, path)), flush=True)
    found.close()
    return 0


def _audible(dataset: Dataset) -> AudibleDataset:
    """Return the dataset with audio: this one, or one inside it."""
    candidates = [each for each in _with_inner(dataset) if isinstance(each, AudibleDataset) and each.reads_audio]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(each.described for each in candidates)
        raise FileError(
            "data audio: several datasets in %s have audio: %s. Give one of them" % (dataset.described, names)
        )
    raise FileError(
        "data audio: %s has no features of audio (option 'audio') that this process reads. If it is around another "
        "dataset, give that one" % dataset.described
    )


def _with_inner(dataset: Dataset) -> Iterator[Dataset]:
    yield dataset
    for inner in dataset.inner_datasets:
        yield from _with_inner(inner)


def _tags(dataset: Dataset, epoch: int, parsed: Any) -> list[str]:
    """Return the tags of the sequences to write."""
    if parsed.tags:
        return [tag.strip() for tag in parsed.tags.split(",")]
    if dataset.is_stream:
        raise FileError("data audio: %s is a stream; say which sequences: --tags TAG,TAG" % dataset.described)
    order = dataset.seq_order(epoch)
    tags = dataset.tags_many(list(range(parsed.seqs) if order is None else map(int, order[: parsed.seqs])))
    if not tags:
        raise FileDataError("%s has no sequences in epoch %d" % (dataset.described, epoch))
    return tags


def _write(path: str, content: bytes) -> None:
    try:
        with Temporary(path) as temporary:
            temporary.write(content)
            temporary.publish()
    except OSError as exc:
        raise FileError("data audio: can't write %r: %s" % (path, exc.strerror or exc)) from None
