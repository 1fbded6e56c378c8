#!/usr/bin/env python3
"""Makes a corpus of Russian phones with times: 620 sentences of one speaker, from the package festvox-ru.

    python russian.py out/packages out      out/ru_train.tsv, and out/ru_train_given.hdf: the phone of each frame, ...

Sentences, all of different texts, are drawn at random for dev and test. A phone model (4-gram) of the training set is
written, too, for the decoder.
"""

from __future__ import annotations

import argparse
import csv
import glob
import itertools
import os
import random
import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from ngram import estimate, perplexity, write_arpa  # noqa: E402
from packages import Package, PackageError, data_card, fetch  # noqa: E402

VOICE = os.path.join("usr", "share", "festival", "voices", "russian", "msu_ru_nsh_clunits")
PACKAGE = "festvox-ru"
SILENCE = "pau"
SHIFT = 160  # samples from frame to frame, 10 ms; the first sample is in the middle of the first frame
HELD_OUT = 62  # sentences of dev, and as many of test
ORDER = 4


class Segment(NamedTuple):
    """A phone and its end, in seconds."""

    end: float
    phone: str


class Sentence(NamedTuple):
    """A sentence.

    :param path: of the audio
    :param frames: their number
    """

    tag: str
    path: str
    segments: list[Segment]
    frames: int

    @property
    def phones(self) -> list[str]:
        """The phones without their times."""
        return [segment.phone for segment in self.segments]


def read_lab(content: str, where: str) -> list[Segment]:
    r"""Return the segments of a file of labels: behind a header, which ends with ``#``, lines of end, color and phone.

    Pauses one after the other are one segment.

    >>> read_lab("#\n0.25 125 pau\n0.5 125 a\n", "x.lab")
    [Segment(end=0.25, phone='pau'), Segment(end=0.5, phone='a')]

    :raises PackageError: it has another form, or times that don't rise
    """
    lines = content.splitlines()
    segments: list[Segment] = []
    if "#" not in lines:
        raise PackageError("%s: no line '#', which ends the header of a file of labels" % where)
    for number, line in enumerate(lines[lines.index("#") + 1 :], lines.index("#") + 2):
        parts = line.split()
        if not parts:
            continue
        try:
            end, _, phone = parts
            segment = Segment(float(end), phone)
        except ValueError:
            raise PackageError("%s, line %d: %r is not an end, a color and a phone" % (where, number, line)) from None
        if segment.end <= (segments[-1].end if segments else 0):
            raise PackageError("%s, line %d: %s does not end after the segment before it" % (where, number, phone))
        if segments and phone == segments[-1].phone == SILENCE:
            segments.pop()
        segments.append(segment)
    return segments


def frame_labels(segments: Iterable[Segment], frames: int, labels: dict[str, int]) -> NDArray[np.int32]:
    """Return the label of the phone in the middle of each frame, [frames]; behind the end, that of the last phone."""
    segments = list(segments)
    ends = np.array([segment.end for segment in segments])
    middles = np.arange(frames) * 0.01
    indices = np.minimum(np.searchsorted(ends, middles, side="right"), len(segments) - 1)
    of_segments = np.array([labels[segment.phone] for segment in segments], np.int32)
    return np.asarray(of_segments[indices])


def read_corpus(package: Package) -> list[Sentence]:
    """Return all sentences of the package, in the order of their names."""
    import soundfile

    folder = os.path.join(package.folder, VOICE)
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "lab", "*.lab"))):
        tag = os.path.splitext(os.path.basename(path))[0]
        audio = os.path.join(folder, "wav", tag + ".wav")
        with open(path, encoding="ascii") as file:
            segments = read_lab(file.read(), path)
        samples = soundfile.info(audio)
        if samples.samplerate != 100 * SHIFT:
            raise PackageError("%s: %d Hz instead of %d" % (audio, samples.samplerate, 100 * SHIFT))
        found.append(Sentence(tag, audio, segments, 1 + samples.frames // SHIFT))
    if len(found) <= 2 * HELD_OUT:
        raise PackageError("%d labelled sentences in %s: another version of the package?" % (len(found), folder))
    return found


def split(sentences: Iterable[Sentence]) -> dict[str, list[Sentence]]:
    """Return the sets, drawn at random with a fixed seed."""
    shuffled = list(sentences)
    random.Random(27).shuffle(shuffled)
    return {
        "train": shuffled[2 * HELD_OUT :],
        "dev": shuffled[:HELD_OUT],
        "test": shuffled[HELD_OUT : 2 * HELD_OUT],
    }


def write_set(prefix: str, of_set: list[Sentence], labels: dict[str, int], audio_root: str) -> None:
    """Write the table and the alignment of a set."""
    from returnn_tf.datasets import HDFWriter

    with open(prefix + ".tsv", "w", encoding="utf8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["file", "seq_name", "text"])
        writer.writerows([os.path.relpath(s.path, audio_root), s.tag, " ".join(s.phones)] for s in of_set)
    with HDFWriter(prefix + "_given.hdf", dim=len(labels), labels=list(labels), ndim=1, replace=True) as alignments:
        for sentence in of_set:
            aligned = frame_labels(sentence.segments, sentence.frames, labels)
            alignments.insert_batch(aligned[None], [len(aligned)], [sentence.tag])


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", help="folder for the package; if it is in it, it is not downloaded again")
    parser.add_argument("folder", help="folder for the tables and alignments")
    parser.add_argument("--most", type=int, metavar="N", help="only N sentences of each set")
    args = parser.parse_args()
    try:
        package = fetch([PACKAGE], args.packages)[PACKAGE]
        sentences = read_corpus(package)
    except PackageError as error:
        print(error, file=sys.stderr)
        return 1
    phones = sorted({phone for sentence in sentences for phone in sentence.phones})
    labels = {phone: index for index, phone in enumerate(phones)}
    prefix = os.path.join(args.folder, "ru")
    with open(prefix + ".vocab", "w", encoding="utf8") as file:
        file.write("{\n%s}\n" % "".join("%r: %d,\n" % entry for entry in labels.items()))
    with open(prefix + "_data_card.md", "w", encoding="utf8") as file:
        file.write(data_card([package]))
    sets = split(sentences)
    model = estimate((sentence.phones for sentence in sets["train"]), ORDER)
    write_arpa(prefix + "_phones.arpa", model)
    figures = (ORDER, perplexity(model, (sentence.phones for sentence in sets["dev"]), ORDER))
    print("%d phones; %d-gram of perplexity %.1f on dev" % (len(phones), *figures))
    for name, of_set in sets.items():
        of_set = of_set[: args.most]
        write_set("%s_%s" % (prefix, name), of_set, labels, args.packages)
        total = sum(len(list(itertools.filterfalse(SILENCE.__eq__, sentence.phones))) for sentence in of_set)
        minutes = sum(sentence.frames for sentence in of_set) / 6000
        print("%-5s %d sentences, %.1f minutes, %d phones without pauses" % (name, len(of_set), minutes, total))
    return 0


if __name__ == "__main__":
    sys.exit(main())
