"""Update options beyond the recorded cases, each against a recomputation in numpy; and wrong options."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings.update import UpdateSettings
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.support.nonfinite import NonFiniteError, first_bad_layer
from returnn_tf.engine.update.optimizers import base
from returnn_tf.engine.update.options import hidden_matrices, optimizer_dict
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.util.lazy_tf import tf
from tests.engine.recurrences import CASES, AdamW, Recurrence, recurrence

Values = dict[str, np.ndarray]
RATE = 0.1


def network(hid: Any = None, output: Any = None) -> Network:
    layers = {
        "hid": {"class": "linear", "activation": "tanh", "from": "data", "n_out": 4, **(hid or {})},
        "output": {"class": "softmax", "from": "hid", "target": "classes", "loss": "ce", **(output or {})},
    }
    extern_data = {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    return Network.from_config(Config({"network": layers, "extern_data": extern_data}), train=True)


def batch(seed: int) -> Values:
    rnd = np.random.RandomState(seed)
    lens = np.array([4, 2], "int32")
    return {
        "data": rnd.randn(2, 4, 3).astype("float32"),
        "data/size0": lens,
        "classes": rnd.randint(0, 3, (2, 4)).astype("int32"),
        "classes/size0": lens,
    }


def gradients(net: Network, feed: Values) -> Values:
    with tf.GradientTape() as tape:
        loss = net.lower(net.convert_feed(feed)).objective
    found = tape.gradient(loss, list(net.params.values()))
    return {name: grad.numpy() for name, grad in zip(net.params, found)}


def values(net: Network) -> Values:
    return {name: var.numpy() for name, var in net.params.items()}


def norm(grads: Values, names: Any = None) -> float:
    return float(np.sqrt(sum((grads[name] ** 2).sum() for name in names or grads)))


def check(net: Network, config: dict[str, Any], change: Callable[[list[Values], str], Any], steps: int = 4) -> None:
    """change(gradients of all steps so far, parameter name) -> expected change of the parameter"""
    trainer = StepTrainer(net, Config({"learning_rate": RATE, **config}))
    seen: list[Values] = []
    for step in range(steps):
        seen.append(gradients(net, batch(step)))
        before = values(net)
        result = trainer.step(batch(step))
        assert result.step == step and result.grad_norm == pytest.approx(norm(seen[-1]), rel=1e-5)
        for name, value in values(net).items():
            np.testing.assert_allclose(value, before[name] + change(seen, name), rtol=1e-4, atol=1e-6, err_msg=name)


def summed(seen: list[Values], name: str, every: int) -> Any:
    return -RATE * sum(grads[name] for grads in seen[-every:]) if len(seen) % every == 0 else 0.0


def test_gradients_of_several_steps_are_summed_up_before_an_update() -> None:
    check(network(), {"accum_grad_multiple_step": 3}, lambda seen, name: summed(seen, name, 3), steps=6)


def test_a_layer_has_its_own_number_of_steps_per_update() -> None:
    net = network(hid={"updater_opts": {"accum_grad_multiple_step": 2}})
    check(net, {}, lambda seen, name: summed(seen, name, 2 if name.startswith("hid") else 1))


def test_global_norm_clipping_acts_on_the_sum_of_accumulated_gradients() -> None:
    def change(seen: list[Values], name: str) -> Any:
        if len(seen) % 2:
            return 0.0
        total = {key: seen[-1][key] + seen[-2][key] for key in seen[-1]}
        return -RATE * total[name] * min(1.0, 0.5 / norm(total))

    check(network(), {"accum_grad_multiple_step": 2, "gradient_clip_global_norm": 0.5}, change)


def test_the_parameters_of_a_plan_are_listed_as_often_for_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of all for each of them would take longer than tracing a network of some hundred layers."""
    seen: list[Plan] = []

    def params(plan: Plan) -> dict[str, ParamSpec]:
        seen.append(plan)
        return {spec.name: spec for node in plan.all_nodes() for spec in node.owned}

    monkeypatch.setattr(Plan, "params", property(params))
    config = {"extern_data": {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}, "learning_rate": RATE}
    counts = []
    for layers in (1, 9):
        net: dict[str, dict[str, Any]] = {"0": {"class": "copy", "from": "data"}}
        net.update({str(i): {"class": "linear", "n_out": 3, "from": str(i - 1)} for i in range(1, layers + 1)})
        net["output"] = {"class": "softmax", "from": str(layers), "target": "classes", "loss": "ce"}
        seen.clear()
        StepTrainer(Network.from_config(Config({**config, "network": net}), train=True), Config(config))
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_average_norm_clipping_divides_the_norm_by_the_number_of_entries() -> None:
    def change(seen: list[Values], name: str) -> Any:
        grad = seen[-1][name]
        return -RATE * grad * min(1.0, 0.05 / (np.sqrt((grad**2).sum()) / grad.size))

    check(network(), {"gradient_clip_avg_norm": 0.05}, change)


def test_global_norm_with_a_tag_counts_only_parameters_with_that_tag() -> None:
    opts = {"tags": ["a"], "gradient_clip_global_norm": 0.2, "gradient_clip_global_norm_tag": "a"}
    net = network(output={"updater_opts": opts})

    def change(seen: list[Values], name: str) -> Any:
        factor = min(1.0, 0.2 / norm(seen[-1], ["output/W", "output/b"])) if name.startswith("output") else 1.0
        return -RATE * seen[-1][name] * factor

    check(net, {}, change)


def test_decoupled_constraints_shrink_before_the_step_and_leave_the_objective() -> None:
    net = network(hid={"L2": 0.05})
    trainer = StepTrainer(net, Config({"learning_rate": RATE, "decouple_constraints": True}))
    before, grads = values(net), gradients(net, batch(0))
    result = trainer.step(batch(0))
    assert result.total_loss == pytest.approx(result.losses["output"], rel=1e-6)
    decay = 2 * 0.05 * before["hid/W"]
    expected = before["hid/W"] - decay - RATE * grads["hid/W"]
    np.testing.assert_allclose(net.params["hid/W"].numpy(), expected, rtol=1e-5, atol=1e-6)


EMBEDDED = {
    "embedding": {"class": "linear", "activation": None, "with_bias": False, "from": "data", "n_out": 4},
    "hid": {"class": "linear", "activation": "tanh", "from": "embedding", "n_out": 6, "L2": 0.1},
    "output": {"class": "softmax", "from": "hid", "target": "classes", "loss": "ce"},
}


def embedded(**config: Any) -> Network:
    labels = {"dim": 3, "sparse": True}
    config = {"network": EMBEDDED, "extern_data": {"data": labels, "classes": labels}, **config}
    return Network.from_config(Config(config), train=True)


def labels_of(seed: int) -> Values:
    return {**batch(seed), "data": batch(seed + 100)["classes"]}


@pytest.mark.parametrize("options, cls", CASES, ids=lambda value: value["class"] if isinstance(value, dict) else "")
def test_optimizers_after_clipping_l2_accumulation_and_with_selected_rows(
    options: dict[str, Any], cls: type[Recurrence]
) -> None:
    net, rate, limit = embedded(), 0.02, 0.3
    settings = {"optimizer": options, "accum_grad_multiple_step": 2, "gradient_clip_global_norm": limit}
    trainer = StepTrainer(net, Config({"learning_rate": rate, **settings}))
    papers = {name: recurrence(options, cls, value, rate) for name, value in values(net).items()}
    if options["class"] == "muon":
        for name in set(papers) - {"hid/W"}:
            numbers = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-16, "weight_decay": 0.004}
            papers[name] = AdamW(papers[name].w, rate, **numbers)
    for update in range(3):
        sums: Values = {}
        for step in (2 * update, 2 * update + 1):
            for name, grad in objective_gradients(net, labels_of(step)).items():
                sums[name] = sums.get(name, 0.0) + grad.astype("float64")
            trainer.step(labels_of(step))
        factor = limit / max(norm(sums), limit)
        for name, value in values(net).items():
            expected = papers[name].step(factor * sums[name])
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg="%s, update %d" % (name, update))


def objective_gradients(net: Network, feed: Values) -> Values:
    with tf.GradientTape() as tape:
        loss = net.lower(net.convert_feed(feed)).total_loss
    found = tape.gradient(loss, list(net.params.values()))
    return {name: tf.convert_to_tensor(grad).numpy() for name, grad in zip(net.params, found)}


@pytest.mark.parametrize("options", [options for options, _ in CASES[1:5]], ids=lambda options: options["class"])
def test_optimizers_with_mixed_precision(options: dict[str, Any]) -> None:
    net = embedded(mixed_precision="bfloat16")
    trainer = StepTrainer(net, Config({"learning_rate": 0.02, "mixed_precision": "bfloat16", "optimizer": options}))
    losses = [trainer.step(labels_of(1)).total_loss for _ in range(10)]
    assert losses[-1] < losses[0] and {var.dtype for var in net.params.values()} == {tf.float32}


def test_matrices_of_hidden_layers() -> None:
    layers = {
        "embedding": {"class": "linear", "activation": None, "from": "data:classes", "n_out": 4},
        "embedded": {"class": "linear", "activation": None, "from": "embedding", "n_out": 4},
        "of_labels": {"class": "softmax", "from": "embedded", "target": "classes", "loss": "ce"},
        "conv": {"class": "conv", "from": "data", "filter_size": [3], "n_out": 5, "padding": "same"},
        "lstm": {"class": "rec", "unit": "nativelstm2", "from": "conv", "n_out": 6},
        "narrow": {"class": "linear", "activation": None, "from": "lstm", "n_out": 1},
        "auxiliary": {"class": "softmax", "from": "lstm", "target": "classes", "loss": "ce"},
        "output": {"class": "linear", "activation": None, "from": ["narrow", "lstm"], "n_out": 7},
    }
    extern_data = {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    plan = Network.plan(Config({"network": layers, "extern_data": extern_data}), train=True)
    assert hidden_matrices(plan) == {"embedded/W", "conv/W", "lstm/rec/W", "lstm/rec/W_re"}


@pytest.mark.slow
def test_noise_differs_by_parameter_and_step_and_repeats_with_the_seed() -> None:
    def deltas(seed: int) -> list[np.ndarray]:
        net = network()
        trainer = StepTrainer(net, Config({"learning_rate": RATE, "gradient_noise": 0.5, "random_seed": seed}))
        result = []
        for _ in range(2):
            before, grads = values(net), gradients(net, batch(0))
            trainer.step(batch(0))
            result += [(values(net)[name] - before[name]) / -RATE - grads[name] for name in ("hid/W", "output/W")]
        return result

    first, again, other = deltas(1), deltas(1), deltas(2)
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(first[0], other[0])
    assert not np.allclose(first[0], first[2]) and not np.allclose(first[0].ravel(), first[1].ravel())
    assert 0.2 < np.std(np.concatenate([a.ravel() for a in first])) < 0.7
    assert max(np.abs(a).max() for a in first) <= 1.0 + 1e-5  # two standard deviations


def test_a_nan_stops_before_the_update_and_names_the_layer() -> None:
    net = network()
    trainer = StepTrainer(net, Config({"optimizer": {"class": "adam"}}))
    trainer.step(batch(0))
    before, state = values(net), {name: var.numpy() for name, var in trainer.state().items()}
    bad = batch(1)
    bad["data"][1, 0, 2] = np.nan
    with pytest.raises(NonFiniteError, match="Step 1: .* not finite") as info:
        trainer.step(bad)
    assert info.value.step == 1 and trainer.step_count == 1
    for name, value in {**values(net), **{name: var.numpy() for name, var in trainer.state().items()}}.items():
        np.testing.assert_array_equal(value, {**before, **state}[name], err_msg=name)
    assert first_bad_layer(net, bad, step=1) == "data"
    text = str(info.value.at(["seq-3", "seq-7"], "data"))
    assert "seq-3, seq-7" in text and "'data'" in text


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "config, asks_itself",
    [
        ({"optimizer": {"class": "adam"}, "gradient_clip_global_norm": 1.0}, True),
        ({"optimizer": {"class": "nadamkeras"}}, True),  # with a number of its own for all parameters
        ({"optimizer": {"class": "sgd"}, "extra_updates": {"hid/b": lambda b: b.assign_add(1.0 + b)}}, False),
        ({"optimizer": {"class": "muon"}}, True),
        ({"optimizer": {"class": "adam"}, "accum_grad_multiple_step": 3}, False),
        ({"optimizer": {"class": "ftrl"}}, False),
    ],
    ids=lambda value: value["optimizer"]["class"] if isinstance(value, dict) else "",
)
def test_without_stop_a_nan_step_is_left_out_but_counted(
    config: dict[str, Any], asks_itself: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters and states are those without the step, also where the native update decides that, in no condition."""
    if native:
        monkeypatch.setattr(base, "LEAST_SIZE", 0)
    config = {"stop_on_nonfinite_train_score": False, **config}
    disturbed, other = StepTrainer(network(), Config(config)), StepTrainer(network(), Config(config))
    other.net.set_param_values(values(disturbed.net))
    bad = batch(1)
    bad["data"][0, 0, 0] = np.inf
    for seed in range(4):
        assert not disturbed.step(bad).finite
        assert disturbed.step_count == 2 * seed + 1
        for trainer in (disturbed, other):
            assert trainer.step(batch(seed)).finite
    for name, value in {**values(other.net), **other.state()}.items():
        found = {**values(disturbed.net), **disturbed.state()}[name]
        np.testing.assert_array_equal(found, value, err_msg=name)
    ops = [op.type for op in other.function.trace().graph.get_operations()]
    assert ("RtfUpdate" in ops) == (native and asks_itself)


@pytest.mark.parametrize(
    "config, hid, message",
    [
        ({"optimizer": {"class": "adan"}}, {}, "Did you mean 'adam'"),
        ({"optimizer": "adam"}, {}, "'optimizer' must be a dict or None"),
        ({"optimizer": {"class": "adam", "epsilom": 1}}, {}, "unknown option 'epsilom'. Did you mean 'epsilon'"),
        ({"optimizer": {"class": "adam", "learning_rate": 1}}, {}, "learning_rate_multiplier"),
        ({"optimizer": {"class": "muon"}}, {"n_out": 1}, "none of the parameters is a matrix of a hidden layer"),
        ({"optimizer": {"class": "adam", "beta1": "0.9"}}, {}, "'beta1' must be a number, got '0.9'"),
        ({"rmsprop": 1.5}, {}, "'rmsprop' must be True, False, or a decay between 0 and 1, got 1.5"),
        ({"adam": True, "momentum": 0.9}, {}, "momentum can't be combined"),
        ({"gradient_clip": -1}, {}, "'gradient_clip' must be at least 0"),
        ({"accum_grad_multiple_step": 1.5}, {}, "'accum_grad_multiple_step': expected a whole number"),
        ({"dynamic_learning_rate": {"interval": 3, "decai": 1}}, {}, "Did you mean 'decay'"),
        ({"dynamic_learning_rate": {"interval": 3}}, {}, "the option 'decay' is missing"),
        ({"extra_updates": {"hid/w": lambda var: None}}, {}, "Did you mean 'hid/W'"),
        (
            {},
            {"updater_opts": {"gradient_clipp": 1}},
            "parameter 'hid/W': updater_opts: unknown option 'gradient_clipp'",
        ),
        ({}, {"updater_opts": {"optimizer": {"class": "sgdd"}}}, "Did you mean 'sgd'"),
    ],
)
def test_wrong_options_are_explained(config: dict[str, Any], hid: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        StepTrainer(network(hid=hid), Config(config))
    assert message in str(info.value)


@pytest.mark.parametrize(
    "returned, shown",
    [("0.1", "'0.1'"), (None, "None"), ([0.1, 0.2], "a tensor float32 (2,)"), (True, "a tensor bool ()"), ({}, "{}")],
)
def test_a_dynamic_rate_that_is_no_number(returned: Any, shown: str) -> None:
    """The error names the key and what the function returned."""
    trainer = StepTrainer(network(), Config({"dynamic_learning_rate": lambda **_: returned}))
    with pytest.raises(ConfigError) as info:
        trainer.step(batch(1))
    assert "config key 'dynamic_learning_rate'" in str(info.value)
    assert str(info.value).endswith("must return a number, the rate of the step, but it returns " + shown)


@pytest.mark.parametrize("name", ["Adam", "ADAM", "adamoptimizer", "AdamOptimizer"])
def test_optimizer_names_in_any_case_and_with_suffix(name: str) -> None:
    state = StepTrainer(network(), Config({"optimizer": {"class": name}})).state()
    assert {"hid/W/adam_m", "output/b/adam_v", "optimizer_0/iterations"} <= set(state)


@pytest.mark.parametrize(
    "settings, expected, said",
    [
        ({"adam": True, "nadam": True}, {"class": "adam"}, "adam is the optimizer; nadam has no effect."),
        ({"nadam": True, "adagrad": True, "rmsprop": 0.5}, {"class": "nadamkeras"}, "adagrad, rmsprop has no effect."),
        ({"nadam": True, "adam": False}, {"class": "nadamkeras"}, None),
        ({"adam": True, "optimizer": {"class": "sgd"}}, {"class": "sgd"}, None),
        ({"rmsprop": True}, {"class": "rmsprop"}, None),
        ({"rmsprop": 0.8, "momentum": 0.3}, {"class": "rmsprop", "decay": 0.8, "momentum": 0.3}, None),
        ({"rmsprop": False, "momentum": 0.3}, {"class": "momentum", "momentum": 0.3}, None),
    ],
)
def test_older_switches(
    settings: dict[str, Any], expected: dict[str, Any], said: Optional[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several, the first known one counts, and the log tells it."""
    assert optimizer_dict(Config(settings)) == expected
    out = capsys.readouterr().out
    assert (said in out) if said else ("no effect" not in out)


def test_older_switches_as_text() -> None:
    """As in files of lines, and on the command line."""
    for text, expected in (("0.8", 0.8), ("true", True), ("off", False), ("1", True)):
        found = UpdateSettings(Config.from_files([], [("rmsprop", text)])).rmsprop
        assert found == expected and type(found) is type(expected)
    assert optimizer_dict(Config.from_files([], [("rmsprop", "0.8")])) == {"class": "rmsprop", "decay": 0.8}
