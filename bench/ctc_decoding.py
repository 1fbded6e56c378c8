"""Decoding of CTC with a lexicon of 200 000 words and a 4-gram, beside flashlight-text and pyctcdecode.

    python bench/ctc_decoding.py [--words N] [--seconds S] [--beams 25 100] [--noise P]

Words, texts and posteriors are made up: words of syllables, with frequencies by Zipf's law; texts in which a word is
often followed by one of a few others; posteriors with a peak of one frame for each label among blanks, every 40 ms,
some of them at wrong labels. (flashlight-text takes the last label of a word in two frames for one of another word.)
All sides have the same lexicon, model, beam and scales, on one core. Each row is the median of some runs: CPU seconds
per second of audio, and the words that are wrong. pyctcdecode has a list of words rather than a lexicon, and takes
labels above a limit rather than the best ones. Sides that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from arpa import arpa_lines
from numpy.typing import NDArray
from report import table

from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.engine.transcripts.edit_distance import Errors, align
from returnn_tf.ops.sequence.lexicon import WordLexicon
from returnn_tf.ops.sequence.ngram_file import NGramFile, read_ngram

FRAME_SECONDS = 0.04
LM_SCALE, WORD_SCORE, THRESHOLD, PER_FRAME = 0.6, 0.5, 25.0, 40
BEGIN = "\u2581"
LOG10 = 2.302585  # the scores of KenLM have base 10


@dataclass(frozen=True)
class Task:
    """What all sides decode.

    :param labels: names, the blank last
    :param spellings: labels of each word
    """

    labels: list[str]
    spellings: dict[str, list[int]]
    arpa: str
    texts: list[list[str]]
    posteriors: list[NDArray[Any]]

    @property
    def seconds(self) -> float:
        return FRAME_SECONDS * sum(map(len, self.posteriors))


def make_task(folder: str, num_words: int, seconds: float, noise: float) -> Task:
    """Make words, a model of texts, and posteriors of further texts."""
    rng = np.random.RandomState(1)
    syllables = [c + v + e for c in "bcdfghjklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "s")]
    labels = [BEGIN + syllable for syllable in syllables] + syllables + ["<blank>"]
    half = len(syllables)
    spellings: dict[str, list[int]] = {}
    while len(spellings) < num_words:
        chosen = rng.randint(0, half, rng.choice([1, 2, 3, 4], p=[0.05, 0.35, 0.4, 0.2]))
        word = "".join(syllables[index] for index in chosen)
        if word not in spellings:
            spellings[word] = [int(chosen[0]), *(half + int(index) for index in chosen[1:])]
    words = list(spellings)
    weights = 1 / np.arange(1, num_words + 1)
    drawn = iter(rng.choice(num_words, 4_000_000, p=weights / weights.sum()))

    def text() -> list[str]:
        ids = [int(next(drawn))]
        for _ in range(rng.randint(5, 20)):
            follows = rng.rand() < 0.6
            ids.append((ids[-1] * 31 + rng.randint(0, 5)) % num_words if follows else int(next(drawn)))
        return [words[index] for index in ids]

    path = os.path.join(folder, "words.arpa")
    with open(path, "w", encoding="utf8") as file:
        file.writelines("%s\n" % line for line in arpa_lines((text() for _ in range(40000)), 4, words))
    texts, posteriors = [], []
    while FRAME_SECONDS * sum(map(len, posteriors)) < seconds:
        texts.append(text())
        sequence = [label for word in texts[-1] for label in spellings[word]]
        posteriors.append(make_posteriors(rng, sequence, len(labels), noise))
    return Task(labels, spellings, path, texts, posteriors)


def make_posteriors(rng: Any, sequence: list[int], num_labels: int, noise: float) -> NDArray[Any]:
    """Return log posteriors [frames, labels] of a sequence of labels."""
    path: list[int] = []
    for label in sequence:
        path += [num_labels - 1] * rng.randint(1, 6) + [label]
    path += [num_labels - 1] * 3
    logits = rng.normal(0, 1.0, (len(path), num_labels))
    wrong = rng.rand(len(path)) < noise
    logits[np.arange(len(path)), path] += np.where(wrong, 5.0, 9.0)
    logits[np.flatnonzero(wrong), rng.randint(0, num_labels, wrong.sum())] += 9.0
    logits -= logits.max(axis=1, keepdims=True)
    scores: NDArray[Any] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return scores.astype("float32")


Decode = Callable[[NDArray[Any]], list[str]]


def ours(task: Task, beam: int) -> Decode:
    labels = DecodedLabels(task.labels[:-1])
    lexicon = WordLexicon(labels)
    for word, spelling in task.spellings.items():
        lexicon.add(word, spelling)
    options = BeamOptions(beam, THRESHOLD, PER_FRAME, LM_SCALE, WORD_SCORE)
    lm = NGramFile(read_ngram(task.arpa), task.arpa, of_labels=False)
    decoder = BeamDecoder(len(task.labels), len(task.labels) - 1, labels, options, lexicon=lexicon, lm=lm)
    return lambda scores: list(decoder.decode(scores)[0].words or ())


def flashlight(task: Task, beam: int) -> Decode:
    from flashlight.lib.text.decoder import (
        CriterionType,
        LexiconDecoder,
        LexiconDecoderOptions,
        SmearingMode,
        Trie,
    )
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import create_word_dict

    blank, unused = len(task.labels) - 1, len(task.labels)
    words = create_word_dict({word: [[]] for word in [*task.spellings, "<unk>"]})
    lm = KenLM(task.arpa, words)
    trie = Trie(len(task.labels) + 1, unused)
    start = lm.start(False)
    for word, spelling in task.spellings.items():
        index = words.get_index(word)
        trie.insert(spelling, index, lm.score(start, index)[1])
    trie.smear(SmearingMode.MAX)
    options = LexiconDecoderOptions(
        beam, PER_FRAME, THRESHOLD, LM_SCALE * LOG10, WORD_SCORE, -1e9, 0.0, True, CriterionType.CTC
    )
    decoder = LexiconDecoder(options, trie, lm, unused, blank, words.get_index("<unk>"), [], False)

    def decode(scores: NDArray[Any]) -> list[str]:
        padded = np.ascontiguousarray(np.pad(scores, [(0, 0), (0, 1)], constant_values=-1e9))
        best = decoder.decode(padded.ctypes.data, *padded.shape)[0]
        return [words.get_entry(index) for index in best.words if index >= 0]

    return decode


def pyctcdecode(task: Task, beam: int) -> Decode:
    from pyctcdecode import build_ctcdecoder

    decoder = build_ctcdecoder(
        [*task.labels[:-1], ""],
        kenlm_model_path=task.arpa,
        unigrams=list(task.spellings),
        alpha=LM_SCALE,
        beta=WORD_SCORE,
    )
    return lambda scores: decoder.decode(scores, beam_width=beam, beam_prune_logp=-THRESHOLD).split()


#: Name -> what it needs, and what makes the decoder.
SIDES: dict[str, tuple[str, Callable[[Task, int], Decode]]] = {
    "returnn_tf": ("returnn_tf", ours),
    "flashlight-text": ("flashlight", flashlight),
    "pyctcdecode": ("pyctcdecode", pyctcdecode),
}


def measure(decode: Decode, task: Task, runs: int) -> tuple[float, float, float]:
    """Return the seconds on one core per second of audio, those of the slowest run, and the rate of wrong words."""
    spent = []
    for _ in range(runs):
        errors, begin = Errors(), time.process_time()
        found = [decode(scores) for scores in task.posteriors]
        spent.append((time.process_time() - begin) / task.seconds)
        for reference, words in zip(task.texts, found):
            errors.add(align(reference, words))
    return statistics.median(spent), max(spent), errors.rate


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=200000, metavar="N", help="words of the lexicon")
    parser.add_argument("--seconds", type=float, default=200.0, metavar="S", help="of audio to decode")
    parser.add_argument("--beams", type=int, nargs="+", default=[25, 100, 400])
    parser.add_argument("--noise", type=float, default=0.15, metavar="P", help="share of frames with a wrong label")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        task = make_task(folder, args.words, args.seconds, args.noise)
        print("%d words, %d sequences, %.0f s of audio" % (args.words, len(task.texts), task.seconds))
        for name in args.sides:
            package, make = SIDES[name]
            if importlib.util.find_spec(package) is None:
                print("%s is not installed" % name)
                continue
            for beam in args.beams:
                begin = time.process_time()
                decode = make(task, beam)
                ready = time.process_time() - begin
                median, slowest, errors = measure(decode, task, args.runs)
                row = [name, beam, "%.4f" % median, "%.4f" % slowest, "%.2f%%" % (100 * errors), "%.1f" % ready]
                print(*row, flush=True)
                rows.append(row)
    print(table(["", "beam", "real-time factor", "slowest run", "word errors", "s to make"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
