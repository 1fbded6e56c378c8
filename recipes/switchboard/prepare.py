#!/usr/bin/env python3
"""Prepares Switchboard: Bliss corpora for ``returnn-tf data oggzip``, and the alignment.

    python prepare.py corpus                    out/switchboard.xml.gz; its sets: out/train.segments, train.txt, dev...
    python prepare.py alignment ALI --labels N  out/alignment.hdf, the label of each frame; sets: out/aligned-train...
    python prepare.py hub5                      out/hub5.xml.gz, the test set
    python prepare.py ctm FOUND OUTPUT          words found in segments, with recordings and times there, for sclite

The folders are named in README.md. A line of an alignment is the name of a segment as Kaldi's recipe has it, e.g.
sw02001-A_000098-001156, and the label of each of its frames.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

CORPUS = "switchboard"
RATE = 8000
WINDOW, STEP = 200, 80  # samples of a frame, and from one to the next
DEV_CONVERSATIONS = 20  # the last ones


class Mistake(Exception):
    """What the user has to change."""


class Segment(NamedTuple):
    """What is said in one of the channels, between two times in seconds."""

    recording: str
    channel: int
    start: float
    end: float
    text: str

    @property
    def name(self) -> str:
        """Return the name, as in Kaldi's recipe."""
        times = int(100 * self.start + 0.5), int(100 * self.end + 0.5)
        return "%s-%s_%06d-%06d" % (self.recording, "AB"[self.channel], *times)

    @property
    def tag(self) -> str:
        """Return the name of the sequence."""
        return "%s/%s/%s" % (CORPUS, self.recording, self.name)

    @property
    def frames(self) -> int:
        """Return the number of frames that are within the segment as a whole."""
        samples = round(self.end * RATE) - round(self.start * RATE)
        return 1 + (samples - WINDOW) // STEP if samples >= WINDOW else 0


def cleaned(text: str) -> str:
    """Return the words, partial ones in full, without ``[noise]``, ``<b_aside>``, and ``_1`` of pronunciations.

    ``[laughter-yes]`` is ``yes``, ``[wen/when]`` is ``when``, ``th[is]-`` is ``this``, ``{yupster}`` is ``yupster``.
    """
    text = re.sub(r"\[laughter-([^\]]+)\]", r"\1", text.lower())
    text = re.sub(r"\[[^\]/\s]+/([^\]]+)\]", r"\1", text)
    text = re.sub(r"(?<=\w)\[([^\]]+)\]-?|-?\[([^\]]+)\](?=\w)", r"\1\2", text)
    text = re.sub(r"\[[^\]]*\]|<[^>]*>|[{}]", " ", text)
    return " ".join(re.sub(r"_\d+\b", "", text).split())


def segments() -> Iterator[Segment]:
    """Yield the segments with words, in the order of the conversations."""
    paths = sorted(glob.glob("swb_ms98_transcriptions/*/*/*-trans.text"))
    if not paths:
        raise Mistake("there is no swb_ms98_transcriptions/*/*/*-trans.text: unpack the transcriptions here, or link")
    for path in paths:
        match = re.fullmatch(r"sw(\d{4})([AB])-ms98-a-trans\.text", os.path.basename(path))
        if match is None:
            raise Mistake("%s is not called sw2001A-ms98-a-trans.text or similarly" % path)
        recording, channel = "sw0" + match[1], "AB".index(match[2])
        with open(path, encoding="latin-1") as file:
            for number, line in enumerate(file, 1):
                fields = line.split(maxsplit=3)
                try:
                    start, end = float(fields[1]), float(fields[2])
                except (IndexError, ValueError):
                    raise Mistake("%s, line %d has no start and end as fields 2 and 3" % (path, number)) from None
                segment = Segment(recording, channel, start, end, cleaned("".join(fields[3:])))
                if segment.text and segment.frames:
                    yield segment


def audio_files(pattern: str) -> dict[str, str]:
    """Return recording -> path of its audio.

    :param pattern: of the files
    """
    found = {os.path.basename(path)[: -len(".sph")]: path for path in sorted(glob.glob(pattern))}
    if not found:
        raise Mistake("there is no %s: link the folders of the discs here (README.md)" % pattern)
    for path in found.values():
        with open(path, "rb") as file:
            header = file.read(1024)
        if header.startswith(b"NIST_1A") and b"shorten" in header:
            raise Mistake("%s is compressed by shorten. Decompress all: sph2pipe -p -f wav IN.sph OUT.sph" % path)
    return found


def write_bliss(output: str, corpus: str, found: Sequence[Segment], audio: dict[str, str]) -> None:
    """Write a Bliss corpus.

    :param audio: recording -> path
    """
    missing = sorted({segment.recording for segment in found} - set(audio))
    if missing:
        raise Mistake("there is no audio of %d of the recordings, e.g. %s.sph" % (len(missing), missing[0]))
    with gzip.open(output, "wt", encoding="utf8") as file:
        file.write('<?xml version="1.0" encoding="utf-8"?>\n<corpus name="%s">\n' % corpus)
        for recording, of_recording in itertools.groupby(found, key=lambda segment: segment.recording):
            path = quoteattr(os.path.abspath(audio[recording]))
            file.write("<recording name=%s audio=%s>\n" % (quoteattr(recording), path))
            for segment in of_recording:
                place = 'start="%.6f" end="%.6f" track="%d"' % (segment.start, segment.end, segment.channel)
                text = '<segment name="%s" %s><orth>%s</orth></segment>\n'
                file.write(text % (segment.name, place, escape(segment.text)))
            file.write("</recording>\n")
        file.write("</corpus>\n")
    hours = sum(segment.end - segment.start for segment in found) / 3600
    print("wrote %s: %d segments, %.1f hours" % (output, len(found), hours))


def write_sets(found: Sequence[Segment], prefix: str = "") -> None:
    """Write the tags and the texts of train and dev; dev are the last conversations.

    :param prefix: of the names of the files
    """
    recordings = list(dict.fromkeys(segment.recording for segment in found))
    dev = set(recordings[-min(DEV_CONVERSATIONS, len(recordings) // 2) :])
    for name in ("train", "dev"):
        chosen = [segment for segment in found if (segment.recording in dev) == (name == "dev")]
        path = "out/%s%s" % (prefix, name)
        with open(path + ".segments", "w", encoding="utf8") as file:
            file.writelines(segment.tag + "\n" for segment in chosen)
        with open(path + ".txt", "w", encoding="utf8") as file:
            file.writelines(segment.text + "\n" for segment in chosen)
        print("wrote %s.segments, .txt: %d segments" % (path, len(chosen)))


def write_corpus() -> None:
    """Write the training corpus and its sets."""
    found = sorted(segments(), key=lambda segment: segment.recording)
    write_bliss("out/switchboard.xml.gz", CORPUS, found, audio_files("swb1_d*/data/*.sph"))
    write_sets(found)


def write_alignment(path: str, num_labels: int) -> None:
    """Write the labels of all frames. An alignment may have a frame more or less, by how times are rounded.

    :param num_labels: labels are below
    """
    import numpy as np

    from returnn_tf.datasets import HDFWriter

    by_name = {segment.name: segment for segment in sorted(segments(), key=lambda segment: segment.recording)}
    names = [str(label) for label in range(num_labels)]
    aligned = set()
    with (
        open(path, encoding="utf8") as file,
        HDFWriter("out/alignment.hdf", dim=num_labels, ndim=1, labels=names) as writer,
    ):
        for number, line in enumerate(file, 1):
            name, *fields = line.split()
            segment = by_name.get(name)
            if segment is None:
                continue  # of a conversation that is not here, or without words
            try:
                labels = np.array(fields, "int32")
            except ValueError:
                raise Mistake("%s, line %d: labels have to be numbers" % (path, number)) from None
            if not len(labels) or labels.min() < 0 or labels.max() >= num_labels:
                raise Mistake("%s, line %d: labels have to be from 0 to %d" % (path, number, num_labels - 1))
            if abs(len(labels) - segment.frames) > 1:
                text = "%s, line %d: %s has %d labels, but %d frames of 25 ms every 10 ms"
                raise Mistake(text % (path, number, name, len(labels), segment.frames))
            labels = np.pad(labels, (0, 1), mode="edge")[: segment.frames]
            writer.insert_sequences([labels], [segment.tag], {})
            aligned.add(name)
        if not aligned:
            raise Mistake("%s has no segment of the corpus: names are as %s" % (path, next(iter(by_name), "?")))
    print("wrote out/alignment.hdf: %d of %d segments" % (len(aligned), len(by_name)))
    write_sets([segment for name, segment in by_name.items() if name in aligned], "aligned-")


def write_hub5() -> None:
    """Write the test set: the segments that the stm file has."""
    stms = glob.glob("hub5e_00/*.stm")
    if len(stms) != 1:
        raise Mistake("there has to be one hub5e_00/*.stm, not %d" % len(stms))
    found = []
    with open(stms[0], encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            fields = line.split(maxsplit=6)
            if not fields or line.startswith(";;"):
                continue
            try:
                start, end, channel = float(fields[3]), float(fields[4]), "AB".index(fields[1])
            except (IndexError, ValueError):
                raise Mistake(
                    "%s, line %d: fields 2, 4 and 5 have to be A or B, start, end" % (stms[0], number)
                ) from None
            text = " ".join(fields[6:]).lower()
            if "ignore_time_segment_in_scoring" not in text:
                found.append(Segment(fields[0], channel, start, end, text))
    found.sort(key=lambda segment: segment.recording)
    write_bliss("out/hub5.xml.gz", "hub5", found, audio_files("hub5e_00/english/*.sph"))


def write_ctm(path: str, output: str) -> None:
    """Write words with the recording, the channel and the time in the recording, in place of those of the segment.

    :param path: what a search wrote in the format ctm
    """
    lines = []
    with open(path, encoding="utf8") as file:
        for number, line in enumerate(file, 1):
            match = re.fullmatch(r"\S+/(\S+)-([AB])_(\d+)-\d+ \S+ (\S+) (.*)\n?", line)
            if match is None:
                raise Mistake("%s, line %d: not a word of a segment such as en_4156-A_000000-000040" % (path, number))
            recording, channel, start, begin, rest = match.groups()
            lines.append((recording, channel, int(start) / 100 + float(begin), rest))
    with open(output, "w", encoding="utf8") as file:
        file.writelines("%s %s %.3f %s\n" % line for line in sorted(lines))
    print("wrote %s: %d words" % (output, len(lines)))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    steps.add_parser("corpus")
    steps.add_parser("hub5")
    alignment = steps.add_parser("alignment")
    alignment.add_argument("path", metavar="ALI")
    alignment.add_argument("--labels", type=int, required=True, help="number of labels")
    ctm = steps.add_parser("ctm")
    ctm.add_argument("found", metavar="FOUND")
    ctm.add_argument("output", metavar="OUTPUT")
    args = parser.parse_args()
    os.makedirs("out", exist_ok=True)
    try:
        if args.step == "alignment":
            write_alignment(args.path, args.labels)
        elif args.step == "ctm":
            write_ctm(args.found, args.output)
        else:
            {"corpus": write_corpus, "hub5": write_hub5}[args.step]()
    except (Mistake, OSError) as exc:
        print("prepare.py: %s" % exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
