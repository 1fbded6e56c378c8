"""The n-gram models of demos: probabilities that sum to 1, a model computed by hand, ARPA files."""

from __future__ import annotations

import itertools
import math

import pytest

from returnn_tf.ops.sequence.ngram import ArpaModel
from tests.demos.demo_modules import demo_modules

TEXTS = ["a b a", "b a", "a c a b", "c", "a b b a"]


@pytest.fixture(scope="module")
def ngram():
    return demo_modules("common", "ngram")[0]


def sentences():
    return [text.split() for text in TEXTS]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_sums(ngram, order):
    """After each history, also one that did not occur, the probabilities of all tokens sum to 1."""
    model = ngram.estimate(sentences(), order)
    for length in range(order):
        histories = [*itertools.product("abcx", repeat=length)]
        histories += [("<s>", *history) for history in itertools.product("abc", repeat=length - 1)] if length else []
        for history in histories:
            total = sum(
                10 ** ngram.log_probability(model, history, token) for token in ("a", "b", "c", "</s>", "<unk>")
            )
            assert total == pytest.approx(1), history


def test_bigrams_by_hand(ngram):
    """Of "a b" and "a c": the discounts are n1 / (n1 + 2 n2)."""
    model = ngram.estimate([["a", "b"], ["a", "c"]], 2)
    # bigrams: <s> a twice; a b, a c, b </s>, c </s> once: d = 4 / (4 + 2)
    # left contexts: a, b, c one, </s> two: 5 in all, d = 3 / (3 + 2)
    uniform = 0.6 * 4 / 5 / 5  # what the discounts of 4 words leave, over 5 words with <unk>
    assert 10 ** model[("<unk>",)][0] == pytest.approx(uniform)
    b = 0.4 / 5 + uniform
    assert 10 ** model[("b",)][0] == pytest.approx(b)
    assert 10 ** model[("a", "b")][0] == pytest.approx((1 - 2 / 3) / 2 + 2 / 3 * b)
    assert 10 ** model[("a",)][1] == pytest.approx(2 / 3)
    assert 10 ** ngram.log_probability(model, ("c",), "b") == pytest.approx(2 / 3 * b)


def test_file(ngram, tmp_path):
    """What is written scores as the model does."""
    model = ngram.estimate(sentences(), 3)
    ngram.write_arpa(str(tmp_path / "x.arpa"), model)
    read, asked = ArpaModel(str(tmp_path / "x.arpa")), ["a", "b", "x", "c", "</s>"]
    state, total = read.begin(), 0.0
    for token in asked:
        score, state = read.score(state, token)
        total += score
    perplexity = ngram.perplexity(model, [asked[:-1]], 3)
    assert math.log(perplexity) * len(asked) == pytest.approx(-total, rel=1e-4)


def test_perplexity_of_other_texts(ngram):
    model = ngram.estimate(sentences(), 2)
    own, shuffled = (ngram.perplexity(model, [text.split()], 2) for text in ("a b a", "c c c"))
    assert 1 < own < shuffled


@pytest.mark.parametrize(
    "texts, order, message", [([], 2, "no tokens"), ([[]], 2, "no tokens"), ([["a"]], 0, "at least 1")]
)
def test_nothing_to_estimate(ngram, texts, order, message):
    with pytest.raises(ValueError, match=message):
        ngram.estimate(texts, order)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("weight", [0.1, 0.7])
def test_interpolated(ngram, order, weight):
    """An n-gram of either model has the mean of both, and after each history the probabilities sum to 1."""
    one, other = ngram.estimate(sentences(), order), ngram.estimate([["a", "d", "a"], ["d"], ["d", "b"]], order)
    model = ngram.interpolate(one, other, weight)
    assert model.keys() == one.keys() | other.keys()

    def probability(given, history, token):
        return 10 ** ngram.log_probability(given, history, token) if (token,) in given else 0.0

    for *history, token in model:
        if token != "<s>":
            expected = weight * probability(one, tuple(history), token)
            expected += (1 - weight) * probability(other, tuple(history), token)
            assert probability(model, tuple(history), token) == pytest.approx(expected)
    for length in range(order):
        for history in itertools.product("abcdx", repeat=length):
            total = sum(probability(model, history, token) for token in ("a", "b", "c", "d", "</s>", "<unk>"))
            assert total == pytest.approx(1), history


@pytest.mark.parametrize("weight", [0.0, 1.0, -1.0])
def test_weight_out_of_range(ngram, weight):
    model = ngram.estimate(sentences(), 2)
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        ngram.interpolate(model, model, weight)


def test_best_weight(ngram):
    """No other weight leaves a lower perplexity."""
    one, other = ngram.estimate(sentences(), 2), ngram.estimate([["a", "d", "a"], ["d"], ["d", "b"]], 2)
    asked = [["a", "b"], ["d", "a"], ["c", "b", "a"]]
    best = ngram.best_weight(one, other, asked, 2)
    found = {weight: ngram.perplexity(ngram.interpolate(one, other, weight), asked, 2) for weight in (best, 0.2, 0.8)}
    found.update((best + d, ngram.perplexity(ngram.interpolate(one, other, best + d), asked, 2)) for d in (-0.03, 0.03))
    assert min(found, key=found.__getitem__) == best
