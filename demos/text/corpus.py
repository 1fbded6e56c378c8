"""Lines of English text which everybody has: what Python's ``help()`` shows.

The documentation topics (``pydoc_data/topics.py``) and the docstrings of the standard library are cut into lines of 20
to 60 characters. Whole topics are held out. The task of the demo is to write a line in full when its vowels and its
capitals are missing, so each line gives a pair.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import h5py
import numpy as np

from returnn_tf.datasets import HDFWriter

END = 0  # the label which ends a line, also what stands before its first character
CHARACTERS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:'\"()[]_*-=/<>+"
LABELS = ["</s>", *CHARACTERS]
SHORTEST, LONGEST = 20, 60
HELD_OUT = {  # topics there are in Python 3.9 to 3.13
    "dev": ("calls", "objects", "raise", "atom-identifiers", "while", "binary"),
    "heldout": ("exceptions", "execmodel", "import", "assignment", "typesmapping", "with", "async", "context-managers"),
}
_TYPOGRAPHY = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"})
_NOT_READ = (
    r"tests?$|idle|lib2to3|(site|dist)-packages|encodings|pydoc_data|config-|_|\."  # tests, tables, other projects
)
_INDEX = {label: index for index, label in enumerate(LABELS)}


class Pair(NamedTuple):
    """A line and what is left of it: ``tag`` names topic and number."""

    tag: str
    text: str
    skeleton: str


def skeleton(text: str) -> str:
    """Return lower-case letters without vowels: ``"In Python"`` becomes ``"n pythn"``."""
    return re.sub("[aeiou]", "", text.lower())


def indices(text: str) -> np.ndarray:
    """Return the labels, int32 [characters]."""
    return np.array([_INDEX[character] for character in text], "int32")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of prose, each as one line; no code, tables, headings and rare symbols."""
    for block in re.split(r"\n\s*\n", text):
        paragraph = re.sub(r"\s+", " ", block).strip().translate(_TYPOGRAPHY)
        letters = sum(character.isalpha() or character == " " for character in paragraph)
        if len(paragraph) >= SHORTEST and letters >= 0.85 * len(paragraph) and set(paragraph) <= set(CHARACTERS):
            yield paragraph


def cut(paragraph: str) -> Iterator[str]:
    """Yield sentences, the long ones in pieces of about the same length."""
    for sentence in re.split(r"(?<=[.:;]) (?=[A-Z\"*])", paragraph):
        pieces = -(-len(sentence) // (LONGEST - 6))
        goal, line = len(sentence) / pieces, ""
        for word in sentence.split(" "):
            longer = ("%s %s" % (line, word)).strip()
            if line and (len(longer) > LONGEST or len(longer) - goal > goal - len(line)):
                yield line
                line = word
            else:
                line = longer
        yield line


def lines(topic: str, paragraphs_: Iterable[str]) -> list[Pair]:
    """Return all lines of a topic, each text once."""
    found = [line for paragraph in paragraphs_ for line in cut(paragraph) if SHORTEST <= len(line) <= LONGEST]
    return [Pair("%s/%d" % (topic, i), text, skeleton(text)) for i, text in enumerate(dict.fromkeys(found))]


def read_topics() -> dict[str, str]:
    """Return topic -> text, from the documentation of the running Python."""
    from pydoc_data import topics

    return dict(topics.topics)


def read_docstrings() -> dict[str, str]:
    """Return module -> its docstrings, for all modules of the standard library that are written in Python."""
    root = os.path.dirname(os.__file__)
    found = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not re.match(_NOT_READ, name))
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name.endswith(".py"):
                found[os.path.relpath(path, root)[:-3]] = "\n\n".join(_docstrings(path))
    return found


def _docstrings(path: str) -> list[str]:
    try:
        with open(path, encoding="utf8") as file:
            tree = ast.parse(file.read())
    except (SyntaxError, UnicodeDecodeError):
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]


def split(topics: Mapping[str, str], docstrings: Mapping[str, str], share: int = 4) -> dict[str, list[Pair]]:
    """Return the lines of the sets.

    ``heldout`` and ``dev`` are the topics of :data:`HELD_OUT`; ``text`` is all the rest, for a language model;
    ``train`` is the part of it for which there are pairs: the topics, and one of ``share`` modules. Texts quote each
    other: no line of ``heldout`` is in another set, and none of ``dev`` in those for training.
    """
    rest = [topic for topic in sorted(topics) if topic not in itertools.chain(*HELD_OUT.values())]
    sources = {
        "heldout": [(topic, topics.get(topic, "")) for topic in HELD_OUT["heldout"]],
        "dev": [(topic, topics.get(topic, "")) for topic in HELD_OUT["dev"]],
        "train": [(topic, topics[topic]) for topic in rest],
        "text": [],
    }
    for module, text in sorted(docstrings.items()):
        sources["text" if zlib.crc32(module.encode("utf8")) % share else "train"].append((module, text))
    seen: dict[str, Pair] = {}
    sets: dict[str, list[Pair]] = {}
    for name, texts in sources.items():
        new = (pair for source, text in texts for pair in lines(source, paragraphs(text)))
        sets[name] = [pair for pair in new if seen.setdefault(pair.text, pair) is pair]
    sets["text"] = sets["train"] + sets["text"]
    return sets


def shortened(pairs: Sequence[Pair], number: int, seed: int = 1) -> list[Pair]:
    """Return a number of the lines, drawn at random."""
    return [pairs[i] for i in sorted(np.random.default_rng(seed).permutation(len(pairs))[:number])]


def write_hdf(path: str, pairs: Sequence[Pair]) -> None:
    """Write ``data`` (the skeleton), ``classes`` (the line and its end) and ``delayed`` (what stands before each of
    the classes); an existing file is replaced."""
    if os.path.exists(path):
        os.remove(path)
    types = {key: (len(LABELS), 1, "int32") for key in ("classes", "delayed")}
    names = dict.fromkeys(types, LABELS)
    with HDFWriter(path, len(LABELS), LABELS, ndim=1, extra_type=types, extra_labels=names) as writer:
        inputs, full = ([indices(text) for text in texts] for texts in zip(*((p.skeleton, p.text) for p in pairs)))
        lengths = [len(row) for row in inputs]
        padded = np.stack([np.pad(row, (0, max(lengths) - len(row))) for row in inputs])
        extra = {
            "classes": [np.append(row, END) for row in full],
            "delayed": [np.append(END, row) for row in full],
        }
        writer.insert_batch(padded, lengths, [pair.tag for pair in pairs], extra)


def read_hdf(path: str) -> list[Pair]:
    """Return what :func:`write_hdf` wrote."""
    with h5py.File(path, "r") as file:
        lengths, tags = file["seqLengths"][()], file["seqTags"].asstr()[()]
        short, full = (
            [
                "".join(LABELS[index] for index in row if index != END)
                for row in np.split(data[()], np.cumsum(size)[:-1])
            ]
            for data, size in [(file["inputs"], lengths[:, 0]), (file["targets/data/classes"], lengths[:, 1])]
        )
    return [Pair(*entry) for entry in zip(tags, full, short)]


def main() -> None:
    """Write the sets and the vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="directory for train.hdf, text.hdf, dev.hdf, heldout.hdf and vocab.txt")
    parser.add_argument("--lines", type=int, metavar="N", help="only so many lines of each set, drawn at random")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name, pairs in split(read_topics(), read_docstrings() if args.lines is None else {}).items():
        chosen = pairs if args.lines is None else shortened(pairs, args.lines)
        write_hdf(os.path.join(args.out, name + ".hdf"), chosen)
        size = sum(len(pair.text) for pair in chosen)
        print(
            "%-8s %6d lines, %8d characters, %8d of them left"
            % (name, len(chosen), size, sum(len(pair.skeleton) for pair in chosen))
        )
    with open(os.path.join(args.out, "vocab.txt"), "w", encoding="utf8") as file:
        file.write("".join(label + "\n" for label in LABELS))


if __name__ == "__main__":
    main()
