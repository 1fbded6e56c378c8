"""`choice` over a dynamic number of labels: positions in a sequence. Padded ones are never chosen."""

import itertools

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import ConfigError
from tests.layers.nets import config_of

LENS, STEPS = [4, 1, 3], 3
SCORES = np.random.RandomState(3).randn(3, 4, 1).astype("float32")


def _network(input_type="log_prob", **options):
    """Scores of positions: those of the data, minus the square of the distance to the position before."""
    unit = {
        "before": {"class": "cast", "dtype": "float32", "from": "prev:output"},
        "scores": {"class": "eval", "from": ["base:data1", "base:range", "before"],
                   "eval": "source(0) - 0.1 * (source(1) - source(2)) ** 2"},
        "labels": {"class": "reinterpret_data", "from": "scores", "set_axes": {"F": "T"}},
        "output": {"class": "choice", "from": "labels", "input_type": input_type, "beam_size": 4, "initial_output": 0,
                   "target": None, "length_normalization": False, **options},
        "end": {"class": "eval", "from": [":i", "output"], "out_type": {"dtype": "bool"},
                "eval": "tf.logical_or(tf.equal(source(0), %d), source(1) < 0)" % (STEPS - 1)},
    }  # fmt: skip
    return {
        "data1": {"class": "squeeze", "axis": "F", "from": "data"},
        "range": {"class": "range_in_axis", "axis": "T", "from": "data", "dtype": "float32"},
        "output": {"class": "rec", "from": [], "unit": unit, "max_seq_len": STEPS, "include_eos": True},
    }


def _arrays():
    return {"data": SCORES, "data/size0": np.array(LENS, "int32")}


def _search(network):
    config = config_of(network, extern_data={"data": {"dim": 1}}, behavior_version=12)
    net = Network.from_config(config, search=True)
    return net.run(_arrays()).layers["output"]


def _score(b, path, normalized):
    total, before = 0.0, 0
    for position in path:
        scores = SCORES[b, : LENS[b], 0] - 0.1 * (np.arange(LENS[b]) - before) ** 2
        total += scores[position] - (np.log(np.exp(scores).sum()) if normalized else 0)
        before = position
    return total


@pytest.mark.sampled
@pytest.mark.parametrize("input_type", ["log_prob", "logits"])
@pytest.mark.parametrize("beam", [1, 4, 80])
def test_search(input_type, beam):
    output = _search(_network(input_type, beam_size=beam))
    found = output.value.reshape(3, beam, STEPS)
    scores = output.beam_scores
    for b, length in enumerate(LENS):
        paths = sorted(
            itertools.product(range(length), repeat=STEPS), key=lambda p: -_score(b, p, input_type == "logits")
        )
        assert (found[b] < length).all()
        for path, score in zip(found[b].tolist(), scores[b]):
            if np.isfinite(score):
                np.testing.assert_allclose(score, _score(b, path, input_type == "logits"), rtol=1e-4, atol=1e-5)
        if beam >= len(paths):
            np.testing.assert_allclose(
                scores[b][: len(paths)], [_score(b, p, input_type == "logits") for p in paths], rtol=1e-4, atol=1e-5
            )


def test_keep_beams():
    output = _search(_network(keep_beams=True))
    found = output.value.reshape(3, 4, STEPS)
    assert all((found[b] < length).all() for b, length in enumerate(LENS))


def test_messages():
    with pytest.raises(ConfigError, match="n_out is 4, but the source .* has scores for time.* labels"):
        _search(_network(n_out=4))
    network = _network()
    network["output"]["unit"]["output"]["from"] = ["labels", "labels"]
    with pytest.raises(ConfigError, match="a choice of positions, whose number is dynamic, has a single source"):
        _search(network)
