"""`twod_lstm`: row by row in a loop as the whole grid, in search and with ragged lengths, and wrong configs."""

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from tests.tiers import usual

EXTERN = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}
LINEAR = {"class": "linear", "activation": "tanh", "n_out": 3}


def decoder(moved=True, **options):
    layer = {"class": "twod_lstm", "n_out": 3, "from": ["base:encoder", "embed"], "size_target": "classes", **options}
    return {
        "encoder": {**LINEAR, "from": "data"},
        "output": {
            "class": "rec",
            "from": [],
            "target": "classes",
            "max_seq_len": 7,
            "optimize_move_layers_out": moved,
            "unit": {
                "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "p", "initial_output": 0},
                "end": {"class": "compare", "from": "output", "value": 0},
                "embed": {**LINEAR, "n_out": 2, "from": "prev:output"},
                "s": layer,
                "p": {"class": "softmax", "from": ["s", "prev:s"], "target": "classes", "loss": "ce"},
            },
        },
    }


def feed():
    rng = np.random.default_rng(3)
    return {
        "data": rng.normal(size=(3, 6, 4)).astype("float32"),
        "data/size0": np.array([6, 2, 4], "int32"),
        "classes": rng.integers(1, 5, (3, 5)).astype("int32"),
        "classes/size0": np.array([3, 5, 1], "int32"),
    }


def config(network):
    return Config({"network": network, "extern_data": EXTERN, "behavior_version": 21})


@pytest.mark.slow
@pytest.mark.parametrize("pooling", usual(["max", "last"], ["max"]))
def test_grid_as_row_by_row(pooling):
    nets = [Network.from_config(config(decoder(moved, pooling=pooling)), train=True) for moved in (True, False)]
    assert nets[0].params["output/rec/s/rec/W"].shape == (5, 15)
    nets[1].set_param_values(nets[0].get_param_values())
    first, second = (net.run(feed(), with_grad=True) for net in nets)
    np.testing.assert_allclose(first.total_loss, second.total_loss, rtol=1e-5)
    assert set(first.grads) == set(second.grads) >= {"output/rec/s/rec/" + name for name in ("W", "V_h", "V_v", "b")}
    for name, grad in first.grads.items():
        np.testing.assert_allclose(grad, second.grads[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_search_scores_are_those_of_training():
    """The best hypothesis of a search gets its score again from the grid."""
    search = Network.from_config(config(decoder(pooling="max")), search=True)
    inputs = feed()
    result = search.run(inputs)
    hyps, scores = result.layers["output"].value, result.layers["output"].beam_scores
    lens = result.layers["output"].sizes[1]
    best = hyps.reshape(3, 3, -1)[:, 0]
    best_lens = lens.reshape(3, 3)[:, 0]
    steps = max(int(lens.max()), 1)
    train = Network.from_config(config(decoder(pooling="max")), train=True)
    train.set_param_values(search.get_param_values())
    for b in range(3):
        labels = list(best[b, : best_lens[b]])
        labels += [0] if len(labels) < 7 else []
        one = {
            "data": inputs["data"][b : b + 1, : inputs["data/size0"][b]],
            "data/size0": inputs["data/size0"][b : b + 1],
            "classes": np.array([labels], "int32"),
            "classes/size0": np.array([len(labels)], "int32"),
        }
        loss = train.run(one).total_loss
        np.testing.assert_allclose(-loss / (steps + 1), scores[b, 0], rtol=1e-4)


def test_outside_of_loops():
    network = {
        "target": {**LINEAR, "from": "data:classes"},
        "output": {"class": "twod_lstm", "n_out": 3, "from": ["data", "target"], "pooling": "mean"},
    }
    out = Network.from_config(config(network)).run(feed()).layers["output"]
    assert out.axes == ("B", "T", "F") and list(out.sizes[1]) == [3, 5, 1]


@pytest.mark.parametrize(
    "options,message",
    [
        ({"pooling": "maxx"}, "'pooling' is 'maxx'.*max"),
        ({"from": "data"}, "needs two sources"),
        ({"unit_opts": {"a": 1}}, "has no options"),
        ({"from": ["mean", "data"]}, "'mean' has no time axis"),
        ({"from": ["data", "mean"]}, "the target 'mean' has no time axis"),
    ],
)
def test_wrong_configs(options, message):
    network = {
        "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"},
        "output": {"class": "twod_lstm", "n_out": 3, "from": ["data", "data"], **options},
    }
    with pytest.raises(ConfigError, match=message):
        plan_from_config(config(network))
