"""A training step that runs out of memory is computed in two halves, or says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf
from tests.feeds import random_feed
from tests.little_memory import LIMITED, Memory, check


@pytest.fixture(autouse=True)
def _all_fit() -> Any:
    yield
    Memory.all_fit()


def trainer_of(
    layers: dict[str, Any], output: Any = None, *, checked: str = "data", **settings: Any
) -> tuple[StepTrainer, dict[str, Any]]:
    """Return a trainer, and a batch of five sequences."""
    network = {
        "checked": {**LIMITED, "from": checked},
        "hid": {"class": "linear", "activation": "tanh", "n_out": 4, "L2": 0.1, "from": "checked"},
        "output": {"class": "softmax", "from": "hid", "target": "classes", "loss": "ce", **(output or {})},
        **layers,
    }
    config = Config(
        {
            "network": network,
            "extern_data": {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}},
            "learning_rate": 0.1,
            "behavior_version": 21,
            **settings,
        }
    )
    net = Network.from_config(config, train=True)
    return StepTrainer(net, config), random_feed(net.extern_data, batch=5)


def log_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which lines of the log are added."""
    lines: list[str] = []
    monkeypatch.setattr(log, "write", lambda level, text: lines.append(text))
    monkeypatch.setattr(log, "warn", lines.append)
    return lines


RNN = {"hid": {"class": "rec", "unit": "lstmp", "n_out": 4, "from": "checked"}}
CASES = {
    "sum": ({}, {}, {}),
    "mean": ({}, {"loss_opts": {"use_normalized_loss": True}}, {}),
    "sum and mean": (
        {"other": {"class": "softmax", "from": "hid", "target": "classes", "loss": "ce", "loss_scale": 0.3}},
        {"loss_opts": {"use_normalized_loss": True}, "loss_scale": 2.0},
        {},
    ),
    "recurrent": (RNN, {}, {}),
    "adam, clipped": ({}, {}, {"optimizer": {"class": "adam"}, "gradient_clip_global_norm": 0.1}),
    "accumulated": ({}, {}, {"accum_grad_multiple_step": 2}),
    "decoupled": ({}, {}, {"decouple_constraints": True}),
    "filtered": ({}, {}, {"gradient_nan_inf_filter": True}),
    "scaled": ({}, {}, {"mixed_precision": "float16", "loss_scaling": 8.0, "loss_spike": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_update_is_that_of_the_whole_batch(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and parameters to rounding, whether steps before and after are split or not; one line for each."""
    layers, output, settings = CASES[case]
    whole, feed = trainer_of(layers, output, **settings)
    split, _ = trainer_of(layers, output, **settings)
    split.net.set_param_values(whole.net.get_param_values())
    lines = log_of(monkeypatch)
    rough = 1e-2 if "mixed_precision" in settings else 1e-5
    for step in range(4):
        Memory.all_fit()
        expected = whole.step(feed)
        Memory.sequences = 3 if step % 3 else 5
        result = split.step(feed)
        assert (result.step, result.updated, result.counts) == (expected.step, expected.updated, expected.counts)
        for name in ("losses", "errors"):
            assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=rough)
        assert result.total_loss == pytest.approx(expected.total_loss, rel=rough)
        assert result.grad_norm == pytest.approx(expected.grad_norm, rel=rough)
        for name, value in whole.net.get_param_values().items():
            np.testing.assert_allclose(split.net.stored_params[name].numpy(), value, rtol=rough, atol=rough * 0.1)
    assert lines == [
        "Step %d: out of memory with 5 sequences, 'data' [5, 6, 3]; computed in two halves. If this happens often, "
        "lower batch_size." % step
        for step in (1, 2)
    ]


def test_halves_draw_other_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As different ranks do: equal sequences in both halves lose other features to dropout."""
    drawn: list[np.ndarray] = []
    spy = {"class": "eval", "from": "dropped", "eval": lambda source, **_: _seen(source(0), drawn)}
    drop = {"class": "dropout", "dropout": 0.5, "from": "data"}
    trainer, feed = trainer_of({"dropped": drop, "spy": spy}, checked="spy")
    log_of(monkeypatch)
    Memory.sequences = 2
    trainer.step({name: value[:4] for name, value in feed.items()})
    assert len(drawn) == 3 and [len(x) for x in drawn] == [4, 2, 2]
    assert ((drawn[1] == 0) != (drawn[2] == 0)).any()


def _seen(x: Any, drawn: list[np.ndarray]) -> Any:
    def note(value: np.ndarray) -> np.ndarray:
        drawn.append(value)
        return value

    out = tf.numpy_function(note, [tf.stop_gradient(x)], x.dtype)
    out.set_shape(x.shape)
    return x + 0 * out


def test_halves_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is split once; then its error is that of the op, and nothing has changed."""
    trainer, feed = trainer_of({})
    before = trainer.net.get_param_values()
    lines = log_of(monkeypatch)
    Memory.sequences = 1
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.step(feed)
    assert len(lines) == 1 and trainer.step_count == 0
    for name, value in before.items():
        np.testing.assert_array_equal(trainer.net.stored_params[name].numpy(), value)
    Memory.sequences = 5
    assert trainer.step(feed).step == 0


NORM = {"masked_time": True}
BN = {"class": "batch_norm", "from": "checked", **NORM}
NOT_SPLIT = {
    "layer 'norm' (class 'batch_norm') normalises over the batch": ({"norm": BN}, "norm"),
    "layer 'hid' (class 'linear') normalises over the batch": (
        {"hid": {"class": "linear", "activation": None, "n_out": 4, "batch_norm": NORM, "from": "checked"}}, "hid",
    ),
    "layer 'hid' (class 'rec') keeps its state from batch to batch": (
        {"hid": {"class": "rec", "unit": "lstmp", "n_out": 4, "initial_state": "keep_over_epoch", "from": "checked"}},
        "hid",
    ),
    "layer 'mean' (class 'reduce') computes over the sequences of the batch": (
        {
            "mean": {"class": "reduce", "mode": "mean", "axes": ["B", "T"], "from": "checked"},
            "less": {"class": "combine", "kind": "sub", "from": ["checked", "mean"]},
        }, "less",
    ),
    "layer 'norm' (class 'norm') computes over the sequences of the batch": (
        {"norm": {"class": "norm", "axes": ["B", "F"], "from": "checked"}}, "norm",
    ),
    "layer 'hid' (class 'linear') has darc1 or spatial_smoothing, which constrain the sum over the batch": (
        {"hid": {"class": "linear", "activation": "tanh", "n_out": 9, "from": "checked", "spatial_smoothing": 0.1}},
        "hid",
    ),
    "the loss 'size' is on a layer without a batch axis, so it would count twice": (
        {
            "v": {"class": "variable", "shape": (3,), "add_batch_axis": False, "init": 0.5},
            "size": {"class": "eval", "from": "v", "eval": "source(0) ** 2", "loss": "as_is"},
        }, "hid",
    ),
    "layer 'prior' (class 'accumulate_mean') changes a variable in each step": (
        {
            "prior": {"class": "accumulate_mean", "exp_average": 0.1, "from": "checked"},
            "less": {"class": "combine", "kind": "sub", "from": ["checked", "prior"]},
        }, "less",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", NOT_SPLIT)
def test_networks_that_are_not_split(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, source = NOT_SPLIT[why]
    trainer, feed = trainer_of({**layers}, {"from": source})
    lines = log_of(monkeypatch)
    Memory.sequences = 3
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.step(feed)
    assert [line for line in lines if why in line] == [
        "Step 0: out of memory with 5 sequences, 'data' [5, 6, 3]. The batch is not computed in two halves: %s." % why
    ]


def test_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, feed = trainer_of({})
    lines = log_of(monkeypatch)
    Memory.sequences = 0
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.step({name: value[:1] for name, value in feed.items()})
    assert len(lines) == 1 and "not computed in two halves: it has one sequence" in lines[0]


def test_after_variables_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op without memory while the update runs ends the training: a part of it may be done."""

    def fails(variable: Any) -> Any:
        value = tf.numpy_function(check, [tf.zeros([5])], "float32")
        return variable.assign_add(tf.reduce_sum(value) * tf.ones(variable.shape))

    trainer, feed = trainer_of({}, extra_updates={"output/b": fails})
    lines = log_of(monkeypatch)
    feed = {name: value[:2] for name, value in feed.items()}
    trainer.step(feed)
    Memory.sequences = 2
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.step(feed)
    assert len(lines) == 1 and "variables may have been changed already" in lines[0]


def test_norm_of_the_gradient_in_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, feed = trainer_of({}, maximize_grad_norm=0.1)
    lines = log_of(monkeypatch)
    Memory.sequences = 3
    with pytest.raises(tf.errors.ResourceExhaustedError):
        trainer.step(feed)
    assert len(lines) == 1 and "maximize_grad_norm" in lines[0]


@pytest.mark.parametrize("case", ["sum", "sum and mean", "recurrent"])
def test_evaluation(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, errors and the objective with its constraints are those of the whole batch."""
    layers, output, settings = CASES[case]
    trainer, feed = trainer_of(layers, output, **settings)
    evaluator = Evaluator(trainer.net, trainer.config)
    whole = evaluator.step(feed)
    lines = log_of(monkeypatch)
    Memory.sequences = 3
    result = evaluator.step(feed)
    assert lines[0].startswith("Evaluation: out of memory with 5 sequences") and len(lines) == 1
    assert result.counts == whole.counts and result.total_loss == pytest.approx(whole.total_loss, rel=1e-5)
    for name in whole.losses:
        assert result.losses[name] == pytest.approx(whole.losses[name], rel=1e-5)
        assert result.errors[name] == pytest.approx(whole.errors[name], rel=1e-5)


def test_forwarding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and lengths are those of the whole batch, where valid."""
    trainer, feed = trainer_of(RNN)
    forwarder = Forwarder(trainer.net, "output")
    whole = forwarder.run(feed)
    lines = log_of(monkeypatch)
    Memory.sequences = 3
    result = forwarder.run(feed)
    assert lines[0].startswith("Forwarding: out of memory with 5 sequences") and len(lines) == 1
    np.testing.assert_array_equal(result.lengths[0], whole.lengths[0])
    for row, length in enumerate(whole.lengths[0]):
        np.testing.assert_allclose(result.value[row, :length], whole.value[row, :length], rtol=1e-5)


@pytest.mark.parametrize("independent", [False, True])
def test_search(independent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypotheses and losses of all sequences; a search may depend on the batches anyway."""
    unit = {
        "prob": {"class": "softmax", "from": ["base:mean", "prev:emb"], "target": "classes", "loss": "ce"},
        "output": {
            "class": "choice", "from": "prob", "target": "classes", "beam_size": 2, "initial_output": 0,
            "independent_of_batch": independent,
        },
        "emb": {"class": "linear", "from": "output", "n_out": 3, "activation": None},
        "end": {"class": "compare", "from": "output", "value": 0},
    }  # fmt: skip
    network = {
        "checked": {**LIMITED, "from": "data"},
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "checked"},
        "output": {"class": "rec", "from": [], "unit": unit, "target": "classes", "max_seq_len": 4},
        "best": {"class": "decide", "from": "output", "loss": "edit_distance", "target": "classes"},
    }
    extern_data = {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    config = Config({"network": network, "extern_data": extern_data, "behavior_version": 21})
    net = Network.from_config(config, search=True)
    feed, searcher = random_feed(net.extern_data, batch=5), Searcher(net, ["output", "best"])
    whole = searcher.run(feed)
    lines = log_of(monkeypatch)
    Memory.sequences = 3
    result = searcher.run(feed)
    assert lines[0].startswith("Search: out of memory with 5 sequences") and len(lines) == 1
    assert result.not_ended.keys() == whole.not_ended.keys() and result.losses is not None and whole.losses is not None
    assert result.losses.counts == whole.losses.counts
    for name, sequences in whole.hypotheses.items():
        assert [len(beam) for beam in result.hypotheses[name]] == [len(beam) for beam in sequences]
    if independent:
        assert result.losses.errors == pytest.approx(whole.losses.errors)
        for beam, expected in zip(result.hypotheses["best"], whole.hypotheses["best"]):
            np.testing.assert_array_equal(beam[0].labels, expected[0].labels)
