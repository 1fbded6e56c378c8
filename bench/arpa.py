"""N-gram models made of texts, for benchmarks and demonstrations: interpolated Witten-Bell, written as ARPA files."""

from __future__ import annotations

import argparse
import collections
import math
import sys
from collections.abc import Iterable, Iterator, Sequence

_NEVER = -99.0


def arpa_lines(sentences: Iterable[Sequence[str]], order: int, words: Iterable[str] = ()) -> Iterator[str]:
    """Yield the lines of an ARPA file.

    The probability of a word after h is ``(c(h w) + T(h) p(w | h')) / (c(h) + T(h))`` (Witten and Bell 1991), with T(h)
    the number of different words after h, and h' = h without its first word; of one without history it is discounted
    in favour of all words alike.

    :param words: further words of the vocabulary
    """
    counts: list[collections.Counter[tuple[str, ...]]] = [collections.Counter() for _ in range(order + 1)]
    for sentence in sentences:
        tokens = ["<s>", *sentence, "</s>"]
        for n in range(1, order + 1):
            counts[n].update(zip(*(tokens[i:] for i in range(n))))
    vocabulary = dict.fromkeys([*(gram[0] for gram in counts[1]), *words])
    del counts[1][("<s>",)], vocabulary["<s>"]
    kinds, total = len(counts[1]), sum(counts[1].values())
    alike = kinds / (kinds + total) / (len(vocabulary) + 1)
    probs = {(word,): counts[1][(word,)] / (kinds + total) + alike for word in vocabulary}
    probs[("<unk>",)] = alike
    weights: dict[tuple[str, ...], float] = {}
    for n in range(2, order + 1):
        seen: collections.Counter[tuple[str, ...]] = collections.Counter()
        after: collections.Counter[tuple[str, ...]] = collections.Counter()
        for gram, count in counts[n].items():
            seen[gram[:-1]] += count
            after[gram[:-1]] += 1
        for history, count in seen.items():
            weights[history] = after[history] / (count + after[history])
        for gram, count in counts[n].items():
            history = gram[:-1]
            share = count / (seen[history] + after[history])
            probs[gram] = share + weights[history] * probs[gram[1:]]
    by_order = collections.defaultdict(list)
    for gram in [("<s>",), *probs]:
        by_order[len(gram)].append(gram)
    yield "\\data\\"
    for n in range(1, order + 1):
        yield "ngram %d=%d" % (n, len(by_order[n]))
    for n in range(1, order + 1):
        yield ""
        yield "\\%d-grams:" % n
        for gram in by_order[n]:
            prob = math.log10(probs[gram]) if gram in probs else _NEVER
            weight = "\t%.6f" % math.log10(weights[gram]) if gram in weights else ""
            yield "%.6f\t%s%s" % (prob, " ".join(gram), weight)
    yield ""
    yield "\\end\\"


def main() -> int:
    """Write the model of the lines of standard input to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", type=int, default=3)
    args = parser.parse_args()
    for line in arpa_lines((line.split() for line in sys.stdin), args.order):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
