"""Searches of random decoders: scores agree with the graph of the training, greedy with an argmax of our own, and
neither the split of the loop nor the other sequences of a batch matter."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from tests.compiler.random_decoders import Decoder, frames_feed, log_probs_of, random_decoder, random_params
from tests.compiler.random_nets import LABELS, Layers
from tests.tiers import usual

#: How many more networks to test, e.g. RANDOM_NETS=200 pytest -m long tests/compiler/test_random_search.py
MANY = int(os.environ.get("RANDOM_NETS", 16))
LENS = (5, 3, 4)
#: Scores of candidates that are none: fewer labels than beam entries, or labels after the end.
NONE = -1e20


def network(decoder: Decoder, *, search: bool, moved: bool = True, beam: int = 0) -> Network:
    net = Network.from_config(decoder.config(moved=moved, beam=beam), search=search)
    net.set_param_values(random_params(net, decoder.seed))
    return net


def lens_of(decoder: Decoder) -> tuple[int, ...]:
    """Return ragged lengths; without padding where its frames are scored too."""
    if decoder.known and not decoder.include_eos:
        return (4, 4)
    return (4,) if decoder.seed % 5 == 0 else LENS


def log_probs(decoder: Decoder, train: Network, feed: dict[str, Any], labels: list[np.ndarray]) -> list[Any]:
    """Return [sequence, step, label] of each choice, by the graph of the training.

    :param feed: frames, one sequence for each row of ``labels``
    :param labels: of each choice [sequence, step]
    """
    feed = dict(feed)
    steps = np.full([len(labels[0])], labels[0].shape[1], "int32")
    for key, value in zip(("classes", "classes2"), labels):
        feed.update({key: value, key + "/size0": feed["data/size0"] if decoder.known else steps})
    out = train.run(feed)
    return [log_probs_of(c, out.layers["output/" + c["from"]].value) for c in decoder.choices]


def check_scores(decoder: Decoder, search: Network, train: Network) -> None:
    feed = frames_feed(decoder.seed, lens_of(decoder))
    out = search.run(feed).layers
    result = out["output"]
    lens, scores = result.sizes[1], result.beam_scores.reshape(-1)
    beam = result.beam_scores.shape[1]
    assert beam == decoder.choices[-1]["beam_size"]
    repeated = {key: np.repeat(value, beam, axis=0) for key, value in feed.items()}
    frames = repeated["data/size0"]
    lens = frames if decoder.known else lens
    steps = decoder.scored_steps(lens, frames)
    labels = []
    for choice in decoder.choices:
        value = result.value if choice["name"] == "output" else out["output/" + choice["name"]].value
        padded = np.full([len(lens), int(steps.max())], 0 if choice["name"] == "extra" else decoder.end_label)
        for row in range(len(lens)):
            padded[row, : lens[row]] = value[row, : lens[row]]
        labels.append(padded.astype("int32"))
    wanted = decoder.scores(log_probs(decoder, train, repeated, labels), labels, steps, int(lens.max()))
    real = scores > NONE
    assert real[::beam].all()
    np.testing.assert_allclose(scores[real], wanted[real], rtol=1e-4, atol=1e-4)
    in_order = result.beam_scores
    assert (in_order[:, 1:] <= in_order[:, :-1] + 1e-6).all(), "best first"
    for b, n in enumerate(out["best"].sizes[1]):
        assert n == lens[b * beam]
        np.testing.assert_array_equal(out["best"].value[b, :n], result.value[b * beam, :n])


def check_greedy(decoder: Decoder, search: Network, train: Network) -> None:
    feed = frames_feed(decoder.seed, lens_of(decoder))
    count = int(feed["data/size0"].max()) if decoder.known else decoder.max_steps
    batch = len(feed["data"])
    labels = [np.zeros([batch, count], "int32") for _ in decoder.choices]
    for t in range(count):
        for number in range(len(decoder.choices)):
            labels[number][:, t] = log_probs(decoder, train, feed, labels)[number][:, t].argmax(axis=-1)
    result = search.run(feed).layers["output"]
    for b in range(batch):
        wanted = list(labels[0][b])
        if decoder.known:
            wanted = wanted[: feed["data/size0"][b]]
        elif decoder.end_label in wanted:
            wanted = wanted[: wanted.index(decoder.end_label) + (1 if decoder.include_eos else 0)]
        assert list(result.value[b, : (len(wanted) if decoder.known else result.sizes[1][b])]) == wanted


def hypotheses(out: Any, name: str = "output") -> list[tuple[list[int], float]]:
    """Return the labels and score of each hypothesis."""
    layer = out.layers[name]
    scores = layer.beam_scores.reshape(-1)
    beam = layer.beam_scores.shape[1]
    lens = layer.sizes[1]
    lens = np.repeat(lens, beam) if len(lens) < len(scores) else lens
    rows = zip(layer.value, lens, scores)
    return [(list(row[:n]), float(score)) for row, n, score in rows if score > NONE]


def check_same(got: list[tuple[list[int], float]], wanted: list[tuple[list[int], float]]) -> None:
    assert [labels for labels, _ in got] == [labels for labels, _ in wanted]
    np.testing.assert_allclose([s for _, s in got], [s for _, s in wanted], rtol=1e-4, atol=1e-5)


def check_alone(decoder: Decoder, search: Network) -> None:
    if not decoder.independent:
        return
    feed = frames_feed(decoder.seed, LENS)
    together = hypotheses(search.run(feed))
    alone = []
    for b, n in enumerate(LENS):
        alone += hypotheses(search.run({"data": feed["data"][b : b + 1, :n], "data/size0": feed["data/size0"][b:][:1]}))
    check_same(alone, together)


def check_split(decoder: Decoder, search: Network) -> None:
    feed = frames_feed(decoder.seed, LENS)
    inside = network(decoder, search=True, moved=False)
    check_same(hypotheses(inside.run(feed)), hypotheses(search.run(feed)))


def check_all(seed: int) -> None:
    decoder = random_decoder(seed)
    search, train = network(decoder, search=True), network(decoder, search=False)
    check_scores(decoder, search, train)
    check_alone(decoder, search)
    check_greedy(decoder, network(decoder, search=True, beam=1), train)
    check_split(decoder, search)


#: Layers of a step which only see what is the same in all steps, but differ from step to step themselves.
CONSTANT_SOURCES: Layers = {
    "x": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "base:first"},
    "sum": {"class": "cumsum", "from": "x"},
    "cell": {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": "x"},
    "number": {"class": "eval", "from": ["x", ":i"], "eval": "source(0) * tf.cast(source(1), tf.float32)"},
    "self": {"class": "self_attention", "num_heads": 1, "total_key_dim": 2, "n_out": 2, "from": "number"},
    "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "output", "initial_output": 0},
    "last": {"class": "copy", "from": ["prev:x", "sum", "cell", "number", "self", "prev:emb"]},
    "p": {"class": "softmax", "n_out": LABELS, "from": "last", "is_output_layer": True},
    "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "p", "initial_output": 0},
    "end": {"class": "compare", "from": "output", "value": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("search", [False, True])
def test_steps_of_constants(search: bool) -> None:
    """In a search nothing can be made for each step before the loop, since their number is not known."""
    loop = {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": CONSTANT_SOURCES}
    decoder = random_decoder(0)
    decoder.network = {"first": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}, "output": loop}
    labels = np.array([[1, 2, 3], [2, 0, 0], [3, 1, 0]], "int32")
    feed = {**frames_feed(0, LENS), "classes": labels, "classes/size0": np.array([3, 1, 2], "int32")}
    outs = [network(decoder, search=search, moved=moved).run(feed).layers for moved in (True, False)]
    if search:
        np.testing.assert_allclose(outs[0]["output"].beam_scores, outs[1]["output"].beam_scores, rtol=1e-5)
    for b, n in enumerate(outs[1]["output/p"].sizes[1]):
        np.testing.assert_allclose(
            outs[0]["output/p"].value[b, :n], outs[1]["output/p"].value[b, :n], rtol=1e-4, atol=1e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", usual(range(4), [0]))
def test_random_decoders(seed: int) -> None:
    check_all(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + MANY))
def test_many_random_decoders(seed: int) -> None:
    check_all(seed)
