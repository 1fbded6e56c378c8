"""Layers of a loop that meet only through ``prev:`` of choices: labels depend on the other ones of the step before."""

import itertools

import numpy as np
import pytest

from tests.layers.nets import net_of
from tests.layers.rec.searching import hypotheses, randomize

STEPS, LABELS = 3, 2
NONE = -1e20


def choice(source, size):
    return {"class": "choice", "from": source, "target": None, "beam_size": size, "initial_output": 0,
            "length_normalization": False}  # fmt: skip


def log_probs(net, name):
    """Return [label before, label]."""
    params = net.get_param_values()
    scores = params["loop/rec/%s/W" % name] + params["loop/rec/%s/b" % name]
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


@pytest.mark.parametrize("order", [("p", "q", "a", "output"), ("q", "output", "p", "a"), ("a", "output", "q", "p")])
def test_all_label_sequences(order):
    size = LABELS ** (2 * STEPS)
    layers = {
        "p": {"class": "softmax", "n_out": LABELS, "from": "prev:output"},
        "q": {"class": "softmax", "n_out": LABELS, "from": "prev:a"},
        "a": {**choice("p", size), "is_output_layer": True},
        "output": {**choice("q", size), "explicit_search_source": "a"},
    }
    loop = {"class": "rec", "from": "data", "unit": {name: layers[name] for name in order}}
    net = net_of({"loop": loop, "output": {"class": "copy", "from": "loop"}}, search=True)
    randomize(net, seed=1, scale=1.0)
    lens = np.full([2], STEPS, "int32")
    result = net.run({"data": np.zeros([2, STEPS, 3], "float32"), "data/size0": lens}).layers
    p, q = log_probs(net, "p"), log_probs(net, "q")
    expected = []
    for labels in itertools.product(range(LABELS), repeat=2 * STEPS):
        a, b = labels[:STEPS], labels[STEPS:]
        scores = [p[before][now] for before, now in zip((0, *b), a)] + [
            q[before][now] for before, now in zip((0, *a), b)
        ]
        expected.append((sum(scores), list(b)))
    for found in hypotheses(result["output"]):
        real = [entry for entry in found if entry[0] > NONE]
        assert len(real) == len(expected)
        np.testing.assert_allclose([e[0] for e in real], sorted((e[0] for e in expected), reverse=True), rtol=1e-5)
        assert real[0][1] == max(expected)[1]
