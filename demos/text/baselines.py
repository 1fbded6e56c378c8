#!/usr/bin/env python3
"""What the numbers of the demo are to be compared with: simple models of the same lines, without any network.

For the language model: the perplexity per character of a unigram and of interpolated n-grams. For the task of writing a
line in full: the error rate of leaving it as it is, and of taking for each word the one which was most frequent in its
place in training.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence

from corpus import END, LABELS, Pair, read_hdf, skeleton

from returnn_tf.engine.transcripts.edit_distance import Errors, align


def ngram_perplexity(train: Sequence[Pair], test: Sequence[Pair], order: int) -> float:
    """Return the perplexity of the characters and ends of the test lines.

    Witten-Bell smoothing: a context trusts its own counts the more, the fewer different characters were seen in it.

    :param order: 1: unigram, 3: trigram
    """
    counts: list[dict[tuple[str, ...], Counter]] = [defaultdict(Counter) for _ in range(order)]
    for line in train:
        for context, label in _events(line.text, order):
            for n, table in enumerate(counts):
                table[context[len(context) - n :]][label] += 1
    totals = [{context: sum(seen.values()) for context, seen in table.items()} for table in counts]
    log_sum, number = 0.0, 0
    for line in test:
        for context, label in _events(line.text, order):
            probability = 1.0 / len(LABELS)
            for n, table in enumerate(counts):
                seen = table.get(context[len(context) - n :])
                if seen is not None:
                    total = totals[n][context[len(context) - n :]]
                    probability = (seen[label] + len(seen) * probability) / (total + len(seen))
            log_sum += math.log(probability)
            number += 1
    return math.exp(-log_sum / number)


def _events(text: str, order: int) -> list[tuple[tuple[str, ...], str]]:
    """Return (the order - 1 labels before, label) for each character and the end."""
    labels = [LABELS[END]] * (order - 1) + [*text, LABELS[END]]
    return [(tuple(labels[i - order + 1 : i]), labels[i]) for i in range(order - 1, len(labels))]


def lookup_table(train: Sequence[Pair]) -> dict[str, str]:
    """Return skeleton of a word -> its most frequent word."""
    seen: dict[str, Counter] = defaultdict(Counter)
    for pair in train:
        for word in pair.text.split(" "):
            seen[skeleton(word)][word] += 1
    return {short: words.most_common(1)[0][0] for short, words in seen.items()}


def error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return the edit distance per character, in percent."""
    errors = Errors()
    for reference, hypothesis in zip(references, hypotheses):
        errors.add(align(reference, hypothesis))
    return 100 * errors.rate


def report(train: Sequence[Pair], text: Sequence[Pair], test: Sequence[Pair]) -> str:
    """Return the results of all baselines, one per line.

    :param train: pairs
    :param text: lines for language models
    :param test: held-out lines
    """
    lines = [
        "perplexity per character, %d-gram: %.2f" % (order, ngram_perplexity(text, test, order))
        for order in (1, 2, 3, 5)
    ]
    references = [pair.text for pair in test]
    lines.append("label errors, input as it is: %.2f%%" % error_rate(references, [pair.skeleton for pair in test]))
    table = lookup_table(train)
    guessed = [" ".join(table.get(short, short) for short in pair.skeleton.split(" ")) for pair in test]
    lines.append("label errors, most frequent word: %.2f%%" % error_rate(references, guessed))
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", help="directory with train.hdf, text.hdf and heldout.hdf")
    args = parser.parse_args()
    train, text, test = (read_hdf(os.path.join(args.out, name + ".hdf")) for name in ("train", "text", "heldout"))
    print(report(train, text, test))


if __name__ == "__main__":
    main()
