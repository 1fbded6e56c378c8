"""Small networks of the kinds that published setups have: they train, and they search with the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.config.user_files import resolving_imports
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.util.lazy_tf import tf
from tests.compiler.published import attention, augmented, hybrid, streaming, transformers
from tests.compiler.published.case import Case
from tests.tiers import usual

Layers = dict[str, Any]
BLANK = 5


def linear(source: Any, n_out: int, **options: Any) -> Layers:
    return {"class": "linear", "activation": None, "n_out": n_out, "from": source, **options}


# --- a transducer with one label or blank per frame, trained on an alignment with random replacements ---


def switchout(self: Any, source: Any, **kwargs: Any) -> Any:
    """Replace labels at random in training, as the authors' function does; sizes come from the template."""
    data = source(0, as_data=True)
    time = data.time_dim_axis

    def replaced() -> Any:
        frames = tf.shape(data.placeholder)[time]
        start = tf.random.uniform([], maxval=frames, dtype=tf.int32)
        shape = [1, 1]
        shape[time] = -1
        after = tf.reshape(tf.range(frames) >= start, shape)
        noise = tf.random.uniform(tf.shape(data.placeholder), maxval=BLANK, dtype=tf.int32)
        return tf.where(after, noise, data.placeholder)

    return self.network.cond_on_train(replaced, lambda: data.placeholder)


def transducer(replace: bool) -> Layers:
    lm = {
        "emb": linear("data", 3),
        "lstm": {"class": "rec", "unit": "nativelstm2", "n_out": 3, "from": "emb"},
        "output": {"class": "copy", "from": "lstm"},
    }
    unit = {
        "am": {"class": "copy", "from": "data:source"},
        "label": {"class": "reinterpret_data", "from": "prev:output_", "set_sparse": True, "set_sparse_dim": BLANK},
        "lm": {
            "class": "masked_computation", "mask": "prev:output_emit", "from": "label",
            "unit": {"class": "subnetwork", "from": "data", "subnetwork": lm},
        },
        "readout": {**linear(["am", "lm"], 4), "activation": "tanh"},
        "label_log_prob": {**linear("readout", BLANK), "activation": "log_softmax"},
        "emit": linear("readout", 1),
        "emit_log": {"class": "activation", "activation": "log_sigmoid", "from": "emit"},
        "blank_log": {"class": "eval", "eval": "tf.math.log_sigmoid(-source(0))", "from": "emit"},
        "label_emit": {"class": "combine", "kind": "add", "from": ["label_log_prob", "emit_log"]},
        "log_prob": {"class": "copy", "from": ["label_emit", "blank_log"]},
        "prob": {"class": "activation", "activation": "exp", "from": "log_prob", "target": "align", "loss": "ce"},
        "output": {
            "class": "choice", "target": "align", "beam_size": 3, "from": "log_prob", "input_type": "log_prob",
            "initial_output": 0, "length_normalization": False,
        },
        "output_": {"class": "copy", "from": "output", "initial_output": 0},
        "output_emit": {
            "class": "compare", "from": "output_", "value": BLANK, "kind": "not_equal", "initial_output": True,
            "is_output_layer": True,
        },
    }  # fmt: skip
    if replace:
        unit["output_"] = {"class": "eval", "eval": switchout, "from": "output", "initial_output": 0}
    return {
        "encoder": {"class": "rec", "unit": "nativelstm2", "n_out": 4, "from": "data"},
        "output": {"class": "rec", "from": "encoder", "target": "align", "include_eos": True, "unit": unit},
        "labels": {
            "class": "masked_computation", "from": "output", "mask": "output/output_emit", "unit": {"class": "copy"},
        },
        "decision": {"class": "decide", "from": "labels", "loss": "edit_distance", "target": "classes"},
    }  # fmt: skip


# --- a synthesis: attention over the labels, frames of a spectrogram, a stop token as the end ---


def masked(self: Any, source: Any, **kwargs: Any) -> Any:
    data = source(0, as_data=True)
    assert len(data.get_dynamic_axes()) == 1
    return tf.where(data.get_sequence_mask_broadcast(), data.placeholder, tf.zeros_like(data.placeholder))


def synthesis() -> Layers:
    unit = {
        "pre": {**linear("prev:choice", 4, dropout=0.2), "activation": "relu"},
        "s": {"class": "rnn_cell", "unit": "zoneoutlstm", "n_out": 4, "from": ["pre", "prev:att"]},
        "query": linear("s", 3),
        "location": {
            "class": "conv", "filter_size": (3,), "padding": "same", "n_out": 2, "activation": None,
            "with_bias": False, "from": "prev:accum",
        },
        "feedback": linear("location", 3, with_bias=False),
        "sum": {"class": "combine", "kind": "add", "from": ["base:keys", "feedback", "query"]},
        "tanh": {"class": "activation", "activation": "tanh", "from": "sum"},
        "energy": linear("tanh", 1, with_bias=False),
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "accum": {"class": "combine", "kind": "add", "from": ["weights", "prev:accum"], "is_output_layer": True},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:encoder"},
        "frame": linear(["s", "att"], 4, loss="mse", target="spectrogram", loss_scale=0.25),
        "choice": {
            "class": "choice", "from": "frame", "input_type": "regression", "beam_size": 1, "target": "spectrogram",
            "initial_output": 0,
        },
        "stop": {**linear(["s", "att"], 1, loss="bin_ce", target="stop"), "activation": "sigmoid"},
        "stop_token": {"class": "reduce", "mode": "max", "axis": "F", "from": "stop"},
        "end": {"class": "compare", "kind": "greater", "value": 0.9, "from": "stop_token"},
        "output": {"class": "copy", "from": "choice"},
    }  # fmt: skip
    limit = "max_len_from('base:encoder') * 2"
    return {
        "emb": linear("data:classes", 4),
        "encoder": {"class": "rec", "unit": "nativelstm2", "n_out": 4, "from": "emb"},
        "keys": linear("encoder", 3),
        "decoder": {"class": "rec", "from": [], "target": "spectrogram", "max_seq_len": limit, "unit": unit},
        "post": {"class": "eval", "eval": masked, "from": "decoder"},
        "output": {"class": "combine", "kind": "add", "from": ["post", "decoder"]},
    }


EXTERN = {
    "data": {"dim": 4},
    "align": {"dim": BLANK + 1, "sparse": True},
    "classes": {"dim": BLANK, "sparse": True},
    "spectrogram": {"dim": 4},
    "stop": {"dim": 1},
}


def feed() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    lens, short = np.array([5, 3], "int32"), np.array([2, 1], "int32")
    return {
        "data": rng.normal(size=(2, 5, 4)).astype("float32"), "data/size0": lens,
        "align": rng.integers(0, BLANK + 1, (2, 5)).astype("int32"), "align/size0": lens,
        "classes": rng.integers(0, BLANK, (2, 2)).astype("int32"), "classes/size0": short,
        "spectrogram": rng.normal(size=(2, 5, 4)).astype("float32"), "spectrogram/size0": lens,
        "stop": rng.integers(0, 2, (2, 5, 1)).astype("float32"), "stop/size0": lens,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [pytest.param(transducer(False), marks=pytest.mark.long), transducer(True), synthesis()],
    ids=["transducer", "replacing", "synthesis"],
)
def test_trains_and_searches(network: Layers) -> None:
    config = Config({"extern_data": EXTERN, "network": network, "optimizer": {"class": "adam"}, "learning_rate": 0.01})
    net = Network.from_config(config, train=True)
    trainer = returnn_tf.Trainer(net, config)
    losses = [float(trainer.step(feed(), learning_rate=0.01).total_loss) for _ in range(8)]
    assert losses[-1] < losses[0]
    searching = Network.from_config(config, search=True)
    assert set(searching.params) == set(net.params)
    searching.set_param_values(net.get_param_values())
    found = searching.run(feed()).layers
    if "decision" in network:
        beams, lens = found["output"], feed()["data/size0"]
        assert beams.sizes[1].tolist() == np.repeat(lens, 3).tolist()
        for k, decided in ((0, 0), (3, 1)):  # the best hypothesis of each sequence, without its blanks
            kept = [x for x in beams.value[k, : beams.sizes[1][k]] if x != BLANK]
            result = found["decision"]
            assert result.value[decided, : result.sizes[1][decided]].tolist() == kept
    else:
        lens = found["output"].sizes[1]
        assert (lens <= 4).all() and found["output"].value.shape == (2, max(lens), 4)


# --- whole networks, by kind of task ---

MODULES = (attention, augmented, hybrid, streaming, transformers)
CASES: dict[str, Case] = {name: case for module in MODULES for name, case in module.CASES.items()}
#: One of each kind; the others are variants, take seconds as they have two decoders, or are in test_parity.py.
USUAL = [
    "fusion", "local-attention", "summaries", "factored", "rna", "transducer-full-sum", "transformer-lm-sampled",
    "lstm-lm-sampled",
]  # fmt: skip


def config_of(case: Case) -> Config:
    settings = {"optimizer": {"class": "adam"}, "learning_rate": 0.01, **case.settings}
    return Config({"extern_data": case.extern, "network": case.network, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(CASES, USUAL))
@pytest.mark.filterwarnings("ignore:Cannot activate TF2 compatibility support for TF1 summary ops")
def test_all_parameters_learn(name: str) -> None:
    case = CASES[name]
    config = config_of(case)
    with resolving_imports():
        net = Network.from_config(config, train=True)
        before, feed = net.get_param_values(), case.feed(net.extern_data)
        trainer = returnn_tf.Trainer(net, config)
        for _ in range(2):
            assert np.isfinite(float(trainer.step(feed, learning_rate=0.01).total_loss))
    after = net.get_param_values()
    assert all(np.isfinite(value).all() for value in after.values())
    assert [param for param in net.trainable_params if np.array_equal(before[param], after[param])] == []


SEARCHED = [name for name, case in CASES.items() if case.search]


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(SEARCHED, ["min-wer", "spec-augment", "chunked", "rna"]))
def test_searches_with_the_parameters_of_training(name: str) -> None:
    case = CASES[name]
    config = config_of(case)
    with resolving_imports():
        trained = plan_from_config(config, train=True)
        net = Network.from_config(config, search=True)
        more = set(net.params) - set(trained.params)
        assert set(trained.params) <= set(net.params)
        assert all(case.only_search and param.startswith(case.only_search) for param in more)
        feed = case.feed(net.extern_data)
        found = net.run(feed).layers[case.search or ""]
        none = net.run({key: value[:0] for key, value in feed.items()}).layers[case.search or ""]
    assert found.value.shape[:2] == (2, max(found.sizes[1]))
    assert none.value.shape[0] == 0  # of a batch without sequences


def test_grows_in_pretraining() -> None:
    """Each step of the construction, twice, and the network of the config at last."""
    case = CASES["attention-ctc"]
    schedule = NetworkSchedule(config_of(case))
    assert schedule.pretrain_epochs == 5
    steps = [schedule.at(epoch) for epoch in (1, 2, 3, 5)]
    assert [step.config.int("batch_size", 0) for step in steps] == [100, 100, 200, 0]
    params = [set(plan_from_config(step.config, train=True).params) for step in steps]
    assert params[0] == params[1] < params[2] == params[3]
