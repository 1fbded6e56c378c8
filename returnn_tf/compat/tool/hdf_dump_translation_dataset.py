"""``returnn-tf tool hdf-dump-translation-dataset``: parallel texts as an HDF file of label indices."""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.text_files import check_is_new
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.datasets.core.safe_files import open_regular, read_plain_pickle
from returnn_tf.datasets.hdf.parallel_text import INPUTS, ParallelTextWriter

_DOC = """
Convert parallel texts, a line for each sequence, to an HDF file of label indices.

    returnn-tf tool hdf-dump-translation-dataset -s train.de.gz -t train.en.gz -v de.pkl -w en.pkl -o train.hdf

Vocabularies are pickled dicts from word to index, with the words </S>, which each line gets at its end, and <UNK> for
words that are not there. With factors, a word of a text is word|factor|..., and there is a vocabulary for each.
"""
_END, _UNKNOWN = "</S>", "<UNK>"


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool hdf-dump-translation-dataset", _DOC)
    add = result.add_argument
    add("-s", "--source_corpus", metavar="FILE", required=True, help="text in the source language, .gz allowed")
    add("-t", "--target_corpus", metavar="FILE", required=True, help="text in the target language, .gz allowed")
    add("-v", "--source_vocabulary", metavar="FILE,...", required=True, help="of the source words, then of its factors")
    add("-w", "--target_vocabulary", metavar="FILE,...", required=True, help="of the target words, then of its factors")
    add("-o", "--hdf_file", metavar="OUT.hdf", required=True, help="the file to write, which is new")
    add("-n", "--number_of_lines", metavar="N", type=positive, help="check the number of lines of the texts")
    add("--source_factors", metavar="KEY,...", default="", help="data keys of the factors of source words")
    add("--target_factors", metavar="KEY,...", default="", help="data keys of the factors of target words")
    add("--factor_separator", metavar="TEXT", default="|", help="between a word and its factors (|)")
    add("-c", "--compression", choices=["gzip", "lzf"], help="of the file")
    add("-l", "--line_buffer_size", metavar="N", type=positive, default=100000, help="lines to read at once (100000)")
    add(
        "-d",
        "--data_buffer_size",
        metavar="N",
        type=positive,
        default=5000000,
        help="labels to write at once (5 million)",
    )
    return result


@register_tool("hdf-dump-translation-dataset", parser)
def run(args: list[str]) -> int:
    """Write the file.

    :param args: the arguments of the tool
    :raises DataError: a text or vocabulary can't be read, or the texts have different numbers of lines
    """
    parsed = parser().parse_args(args)
    check_is_new(parsed.hdf_file, "-o")
    source = _Side(parsed.source_corpus, parsed.source_vocabulary, [INPUTS, *_names(parsed.source_factors)], parsed)
    target = _Side(parsed.target_corpus, parsed.target_vocabulary, ["classes", *_names(parsed.target_factors)], parsed)
    labels = {**source.labels(), **target.labels()}
    if len(labels) < len(source.keys) + len(target.keys):
        raise CommandError("two streams have the same data key, of %s" % ", ".join(source.keys + target.keys))
    options = {"compression": parsed.compression, "buffered": parsed.data_buffer_size}
    with ParallelTextWriter(parsed.hdf_file, labels, **options) as writer:
        for of_source, of_target in itertools.zip_longest(source.lines(), target.lines()):
            if of_source is None or of_target is None:
                short, other = (source, target) if of_source is None else (target, source)
                raise CommandDataError("%r has %d lines, but %r has more" % (short.path, writer.num_lines, other.path))
            writer.add({**of_source, **of_target})
        if writer.num_lines != (parsed.number_of_lines or writer.num_lines):
            text = "%r has %d lines, not %d as -n says"
            raise CommandDataError(text % (source.path, writer.num_lines, parsed.number_of_lines))
        if not writer.num_lines:
            raise CommandDataError("%r has no lines" % source.path)
    unknown = "%d and %d words are unknown" % (source.num_unknown, target.num_unknown)
    print("wrote %s: %d lines; %s" % (parsed.hdf_file, writer.num_lines, unknown))
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class _Side:
    """A text with its vocabularies.

    :param path: of the text
    :param vocabularies: their paths, separated by commas
    :param keys: of the words, then of the factors
    """

    def __init__(self, path: str, vocabularies: str, keys: list[str], parsed: argparse.Namespace) -> None:
        self.path = path
        self.keys = keys
        self.num_unknown = 0
        self._separator = parsed.factor_separator
        self._block = parsed.line_buffer_size
        files = _names(vocabularies)
        if len(files) != len(keys):
            text = "%r: words and %d factors need %d vocabularies, but there are %d"
            raise CommandError(text % (path, len(keys) - 1, len(keys), len(files)))
        self._ids = [_vocabulary(file) for file in files]

    def labels(self) -> dict[str, list[str]]:
        """Return the names of the labels by key."""
        return {key: sorted(ids, key=ids.__getitem__) for key, ids in zip(self.keys, self._ids)}

    def lines(self) -> Iterator[dict[str, list[int]]]:
        """Yield the labels of each line by key.

        :raises DataError: the text can't be read, or a word lacks a factor
        """
        try:
            with open_regular(self.path) as raw, self._unpacked(raw) as lines:
                numbered = enumerate(lines, 1)
                while block := list(itertools.islice(numbered, self._block)):
                    yield from itertools.starmap(self._encoded, block)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as exc:
            raise CommandDataError("%r can't be read: %s" % (self.path, getattr(exc, "strerror", None) or exc)) from exc

    def _unpacked(self, raw: BinaryIO) -> io.TextIOWrapper:
        file = gzip.open(raw) if self.path.endswith(".gz") else raw
        return io.TextIOWrapper(cast(BinaryIO, file), encoding="utf8", newline="\n")

    def _encoded(self, number: int, line: str) -> dict[str, list[int]]:
        words = [line.split()] if len(self.keys) == 1 else self._factors(number, line)
        found = {}
        for key, ids, column in zip(self.keys, self._ids, words):
            unknown = ids[_UNKNOWN]
            found[key] = [ids.get(word, unknown) for word in column] + [ids[_END]]
        self.num_unknown += found[self.keys[0]].count(self._ids[0][_UNKNOWN])
        return found

    def _factors(self, number: int, line: str) -> list[list[str]]:
        """Return the words of a line, then a list of each factor."""
        parts = [word.split(self._separator) for word in line.split()]
        for part in parts:
            if len(part) != len(self.keys):
                text = "%r, line %d: %r has %d parts, not %d"
                raise CommandDataError(
                    text % (self.path, number, self._separator.join(part), len(part), len(self.keys))
                )
        return [[part[index] for part in parts] for index in range(len(self.keys))]


def _vocabulary(path: str) -> dict[str, int]:
    """Return word -> index.

    :raises DataError: it is something else, has gaps, or lacks the words that are needed
    """
    content = read_plain_pickle(path, fix="Write a dict from words to numbers.")
    is_dict = isinstance(content, dict) and all(isinstance(word, str) for word in content)
    if not is_dict or sorted(content.values()) != list(range(len(content))):
        raise CommandDataError("vocabulary %r must be a dict from words to the numbers 0, 1, ..., each once" % path)
    for word in (_END, _UNKNOWN):
        if word not in content:
            raise CommandDataError("vocabulary %r lacks the word %r" % (path, word))
    return dict(content)
