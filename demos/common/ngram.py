"""An n-gram model of words or characters as an ARPA file, which ``returnn-tf decode --lm`` reads.

Interpolated Kneser-Ney smoothing with one discount for each order (Chen and Goodman 1999), for corpora that fit into
memory; two models can be interpolated.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

Gram = tuple[str, ...]
START, END, UNKNOWN = "<s>", "</s>", "<unk>"


def estimate(sentences: Iterable[Sequence[str]], order: int) -> dict[Gram, tuple[float, float]]:
    """Return the model: for each n-gram its log10 probability, and the log10 weight of its backoff.

    ``p(w | h) = max(c(h w) - d, 0) / c(h) + d * n(h) / c(h) * p(w | h without its first word)``, where n(h) counts the
    different words after h. In lower orders than the highest, c counts the different words to the left of an n-gram;
    those that begin a sentence have none, and keep their counts. Unigrams are interpolated with the uniform
    distribution, which gives ``<unk>`` its share.

    :param sentences: tokens of each, without ``<s>`` and ``</s>``
    :param order: n
    :raises ValueError: there is no token, or the order is below 1
    """
    if order < 1:
        raise ValueError("order %d: must be at least 1" % order)
    counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        tokens = [START, *sentence, END]
        for size in range(1, order + 1):
            counts[size - 1].update(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))
    if len(counts[0]) <= 2:
        raise ValueError("there are no tokens to estimate a model of")
    for size in range(order - 1, 0, -1):  # of lower orders: the different words to the left
        left = Counter(gram[1:] for gram in counts[size])
        counts[size - 1] = Counter(
            {gram: count if gram[0] == START else left[gram] for gram, count in counts[size - 1].items()}
        )
    del counts[0][(START,)]

    words = len(counts[0]) + 1  # with <unk>
    probability: dict[Gram, float] = {}
    weight: dict[Gram, float] = {}
    for of_size in counts:
        discount = _discount(of_size)
        after: defaultdict[Gram, list[int]] = defaultdict(list)
        for gram, count in of_size.items():
            after[gram[:-1]].append(count)
        weight.update((history, discount * len(given) / sum(given)) for history, given in after.items())
        for gram, count in of_size.items():
            history = gram[:-1]
            lower = probability[gram[1:]] if history else 1 / words
            probability[gram] = (count - discount) / sum(after[history]) + weight[history] * lower
    probability[(UNKNOWN,)] = weight[()] / words
    model = {gram: (math.log10(p), math.log10(weight.get(gram, 1.0))) for gram, p in probability.items()}
    model[(START,)] = (-99.0, math.log10(weight.get((START,), 1.0)))
    return model


def _discount(counts: Counter[Gram]) -> float:
    """Return the estimate of Ney et al. 1994 from the n-grams that occur once and twice; 0.5 where there are none."""
    once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
    return once / (once + 2 * twice) if once and twice else 0.5


def log_probability(model: dict[Gram, tuple[float, float]], history: Gram, token: str) -> float:
    """Return log10 of the probability of a token after others, as an ARPA file says."""
    gram = (*history, token)
    if gram in model:
        return model[gram][0]
    if not history:
        return model[(UNKNOWN,)][0]
    return model.get(history, (0.0, 0.0))[1] + log_probability(model, history[1:], token)


def interpolate(
    one: dict[Gram, tuple[float, float]], other: dict[Gram, tuple[float, float]], weight: float
) -> dict[Gram, tuple[float, float]]:
    """Return ``weight * one + (1 - weight) * other`` for all n-grams of both, and weights of backoffs that sum to 1.

    It is exact for those n-grams; others back off, as they do in each of the two (static interpolation, Stolcke 2002).
    A word that a model does not know has no probability in it.

    :raises ValueError: the weight is not between 0 and 1
    """
    if not 0 < weight < 1:
        raise ValueError("weight %g: must be between 0 and 1" % weight)
    models = ((weight, one), (1 - weight, other))
    probability = {
        gram: sum(share * _probability(model, gram[:-1], gram[-1]) for share, model in models)
        for gram in one.keys() | other.keys()
        if gram != (START,)
    }
    left: defaultdict[Gram, float] = defaultdict(lambda: 1.0)
    left_below: defaultdict[Gram, float] = defaultdict(lambda: 1.0)
    for gram, p in probability.items():
        if len(gram) > 1:
            left[gram[:-1]] -= p
            left_below[gram[:-1]] -= probability[gram[1:]]
    backoff = {history: left[history] / left_below[history] for history in left}
    model = {gram: (math.log10(p), math.log10(backoff.get(gram, 1.0))) for gram, p in probability.items()}
    model[(START,)] = (-99.0, math.log10(backoff.get((START,), 1.0)))
    return model


def best_weight(
    one: dict[Gram, tuple[float, float]],
    other: dict[Gram, tuple[float, float]],
    sentences: Iterable[Sequence[str]],
    order: int,
) -> float:
    """Return the weight of the first model with which sentences are most likely under both, by 30 steps of EM.

    Tokens that no model knows have no say.
    """
    pairs = [(_probability(one, *entry), _probability(other, *entry)) for entry in _with_histories(sentences, order)]
    pairs = [(p, q) for p, q in pairs if p + q]
    weight = 0.5
    for _ in range(30):
        weight = sum(weight * p / (weight * p + (1 - weight) * q) for p, q in pairs) / max(1, len(pairs))
    return weight


def _probability(model: dict[Gram, tuple[float, float]], history: Gram, token: str) -> float:
    """Return the probability of a token after others: 0 of one that the model doesn't know."""
    return float(10 ** log_probability(model, history, token)) if (token,) in model else 0.0


def perplexity(model: dict[Gram, tuple[float, float]], sentences: Iterable[Sequence[str]], order: int) -> float:
    """Return the perplexity per token, with the ends of sentences; unknown tokens are scored as ``<unk>``."""
    scores = [log_probability(model, *entry) for entry in _with_histories(sentences, order)]
    return float(10 ** (-sum(scores) / len(scores)))


def _with_histories(sentences: Iterable[Sequence[str]], order: int) -> Iterator[tuple[Gram, str]]:
    """Yield each token and the end of each sentence, with what a model of this order sees before."""
    for sentence in sentences:
        tokens = [START, *sentence, END]
        for index in range(1, len(tokens)):
            yield tuple(tokens[max(0, index - order + 1) : index]), tokens[index]


def write_arpa(path: str, model: dict[Gram, tuple[float, float]]) -> None:
    """Write a model as ARPA file."""
    orders = Counter(len(gram) for gram in model)
    with open(path, "w", encoding="utf8") as file:
        file.write("\\data\\\n%s" % "".join("ngram %d=%d\n" % entry for entry in sorted(orders.items())))
        for size in sorted(orders):
            file.write("\n\\%d-grams:\n" % size)
            for gram, (score, backoff) in sorted(entry for entry in model.items() if len(entry[0]) == size):
                file.write("%.6f\t%s%s\n" % (score, " ".join(gram), "\t%.6f" % backoff if size < max(orders) else ""))
        file.write("\n\\end\\\n")
