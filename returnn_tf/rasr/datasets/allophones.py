"""Allophones of RASR and the classes which a state tying gives to their states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import RasrDataError, RasrError, did_you_mean
from returnn_tf.config.options import from_options, option
from returnn_tf.datasets.core import safe_files
from returnn_tf.rasr.datasets.entries import STATE_FACTOR, Alignment


def read_allophones(path: str) -> list[str]:
    """Read the names of allophones by number: one per line, lines beginning with "#" do not count."""
    lines = (line.strip() for line in safe_files.read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_state_tying(path: str) -> dict[str, int]:
    """Read a table with the lines ``allophone.state class``."""
    table: dict[str, int] = {}
    for number, line in enumerate(safe_files.read_text(path).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdigit():
            raise RasrDataError(
                "state tying %r, line %d: it must be 'allophone.state class', not %r" % (path, number, line[:80])
            )
        table[words[0]] = int(words[1])
    if not table:
        raise RasrDataError("state tying %r is empty" % path)
    return table


@dataclasses.dataclass
class AllophoneOptions:
    """The options of ``allophone_labeling``."""

    silence_phone: str = option(help="the phone of silence; its allophone must exist")
    allophone_file: str = option(help="the allophones by number, one per line")
    phoneme_file: Optional[str] = option(None, help="phones, one per line: the class is the number of the line")
    state_tying_file: Optional[str] = option(None, help="lines 'allophone.state class'; wins over phoneme_file")


class AllophoneLabeling:
    """Maps the labels of alignments to classes: those of a state tying, or the numbers of the phones.

    :param options: `AllophoneOptions`
    :param owner: what they belong to, for messages
    """

    def __init__(self, options: Mapping[str, Any], *, owner: str):
        opts = from_options(AllophoneOptions, dict(options), where="%s, allophone_labeling" % owner)
        self.owner = owner
        self.path = opts.allophone_file
        self.allophones = read_allophones(opts.allophone_file)
        self.tying_file = opts.state_tying_file
        self._classes: dict[int, int] = {}
        if opts.state_tying_file:
            self.tying = read_state_tying(opts.state_tying_file)
            self.num_labels = max(self.tying.values()) + 1
        elif opts.phoneme_file:
            lines = [line.strip() for line in safe_files.read_text(opts.phoneme_file).splitlines()]
            self.tying = {}
            self.phones = {phone: number for number, phone in reversed(list(enumerate(lines)))}
            self.num_labels = len(lines)
        else:
            raise RasrError("%s: allophone_labeling needs state_tying_file or phoneme_file." % owner)
        silence = "%s{#+#}@i@f" % opts.silence_phone  # no context, the begin and end of a word
        if silence not in self.allophones:
            raise RasrDataError(
                "%s: the allophones of %r lack %r of the option silence_phone. %s"
                % (owner, opts.allophone_file, silence, did_you_mean(silence, self.allophones[:2000]))
            )
        #: class of silence
        self.silence_class = self.class_of(self.allophones.index(silence))

    @property
    def dtype(self) -> str:
        """Return the smallest type of int8, int16 and int32 that holds all classes."""
        return "int8" if self.num_labels < 128 else "int16" if self.num_labels < 32768 else "int32"

    def class_of(self, label: int) -> int:
        """Return the class of a label of an alignment.

        :raises DataError: the files lack its allophone, phone or state
        """
        found = self._classes.get(label)
        if found is None:
            found = self._classes[label] = self._class_of(label % STATE_FACTOR, label // STATE_FACTOR)
        return found

    def _class_of(self, number: int, state: int) -> int:
        if number >= len(self.allophones):
            raise RasrDataError(
                "%s: allophone %d does not exist: %r has %d. Is it the file of this alignment?"
                % (self.owner, number, self.path, len(self.allophones))
            )
        name = self.allophones[number]
        if self.tying_file:
            full = "%s.%d" % (name, state)
            if full not in self.tying:
                raise RasrDataError("%s: state_tying_file %r lacks %r." % (self.owner, self.tying_file, full))
            return self.tying[full]
        phone = name.split("{")[0]
        if phone not in self.phones:
            raise RasrDataError("%s: phoneme_file lacks the phone %r of the allophone %r." % (self.owner, phone, name))
        return self.phones[phone]

    def classes(self, alignment: Alignment, place: str) -> NDArray[Any]:
        """Return one class per frame, [time].

        :param place: archive and entry, for messages
        :raises DataError: there is not exactly one item of weight 1 per frame, or a class is unknown
        """
        if np.any(alignment.weights != 1):
            raise RasrDataError("%s: the alignment has weights, but only one class per frame can be used." % place)
        if np.any(alignment.times != np.arange(len(alignment.times))):
            raise RasrDataError("%s: the alignment does not have exactly one item for each frame." % place)
        if alignment.classes:
            return self._checked_classes(alignment.labels, place)
        unique, where = np.unique(alignment.labels, return_inverse=True)
        for label in unique:
            self._check_name(int(label), alignment.names, place)
        table = np.array([self.class_of(int(label)) for label in unique], self.dtype)
        classes: NDArray[Any] = table[where.reshape(-1)]
        return classes

    def _checked_classes(self, labels: NDArray[Any], place: str) -> NDArray[Any]:
        if not self.tying_file:
            raise RasrDataError("%s: the alignment holds classes, for which state_tying_file is needed." % place)
        if len(labels) and labels.max() >= self.num_labels:
            raise RasrDataError(
                "%s: class %d, but %r has %d." % (place, labels.max(), self.tying_file, self.num_labels)
            )
        return np.asarray(labels, self.dtype)

    def _check_name(self, label: int, names: Mapping[int, str], place: str) -> None:
        name = names.get(label)
        number = label % STATE_FACTOR
        if name is None or number >= len(self.allophones):
            return
        if name != "%s.%d" % (self.allophones[number], label // STATE_FACTOR):
            raise RasrDataError(
                "%s: the archive calls label %d %r, but allophone %d is %r in %r. Is it the file of this alignment?"
                % (place, label, name, number, self.allophones[number], self.path)
            )
