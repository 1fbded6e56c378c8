"""fine_tune: adapters, what is frozen, rates, other labels; what checkpoints, other tasks and exports have of them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.fine_tuning import load
from returnn_tf.engine.checkpoints.params import save_checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.training.best_model import load_best
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.export.export import export
from tests.tiers import usual

LAYERS: dict[str, Any] = {
    "lstm": {"class": "rec", "unit": "nativelstm2", "n_out": 6, "from": "data"},
    "heads": {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4, "from": "lstm"},
    "block": {
        "class": "subnetwork",
        "from": "heads",
        "subnetwork": {
            "filter": {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": 5, "from": "data"},
            "tanh": {"class": "activation", "activation": "tanh", "from": "filter"},
            "output": {"class": "layer_norm", "from": "tanh"},
        },
    },
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "block"},
}
ADAPTED = ["block/filter/W", "heads/QKV", "lstm/rec/W", "lstm/rec/W_re", "output/W"]
LORA = {"layers": ["lstm", "heads", "block", "output"], "rank": 2, "alpha": 3.0}


def config_of(labels: int = 2, **settings: Any) -> Config:
    data = {"class": "Task12AXDataset", "num_seqs": 12}
    config = {
        "train": data, "dev": {**data, "fixed_random_seed": 3}, "num_epochs": 2, "network": LAYERS, "max_seqs": 2,
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": labels, "sparse": True}}, "batch_size": 100,
        "behavior_version": 21, "learning_rate": 0.05, **settings,
    }  # fmt: skip
    return Config(config)


def feed(seed: int = 1) -> dict[str, np.ndarray]:
    random, lens = np.random.RandomState(seed), np.array([4, 3], "int32")
    return {
        "data": random.randn(2, 4, 9).astype("float32"), "data/size0": lens,
        "classes": random.randint(0, 2, (2, 4)).astype("int32"), "classes/size0": lens,
    }  # fmt: skip


@pytest.fixture(name="base")
def made_base(tmp_path: pathlib.Path) -> str:
    """Return the path of a checkpoint of the network, with other numbers than a new one."""
    net = Network.from_config(config_of(random_seed=7))
    path = str(tmp_path / "base.001")
    save_checkpoint(net, path)
    return path


def trainer_of(base: str, network: Any = LAYERS, labels: int = 2, **options: Any) -> StepTrainer:
    settings = options.pop("settings", {})
    config = config_of(labels, network=network, fine_tune={"from": base, **options}, **settings)
    trainer = StepTrainer(Network.from_config(config, train=True), config)
    load(config, trainer.net)
    return trainer


def numbers(values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in values.items()}


def assert_same(values: Any, expected: Any) -> None:
    assert set(values) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name in before if not np.array_equal(before[name], after[name])}


def plan_error(**options: Any) -> str:
    with pytest.raises(ConfigError) as info:
        Network.plan(config_of(fine_tune={"from": "base.001", **options}), train=True)
    return str(info.value)


# --- adapters


def test_the_first_step_is_that_of_the_checkpoint(base: str) -> None:
    net = trainer_of(base, lora=LORA).net
    plain = Network.from_config(config_of())
    plain.set_param_values({name: checkpoint.read(base)[name] for name in plain.stored_params})
    one, other = net.run(feed(), train=False), plain.run(feed())
    assert one.total_loss == other.total_loss
    np.testing.assert_array_equal(one.layers["output"].value, other.layers["output"].value)


def test_adapters_alone_are_trained() -> None:
    plan = Network.plan(config_of(fine_tune={"from": "base.001", "lora": LORA}), train=True)
    assert sorted(plan.adapted) == ADAPTED
    trained = {name for name, spec in plan.params.items() if spec.trainable}
    assert trained == {"%s/lora_%s" % (name, part) for name in ADAPTED for part in "ab"}
    shapes = {name: plan.params[name].shape for name in trained}
    assert shapes["block/filter/W/lora_a"] == (12, 2) and shapes["block/filter/W/lora_b"] == (2, 5)  # [3, 4, 5]
    assert set(plan.plain_params) == set(Network.plan(config_of()).params)
    assert {name for name, spec in plan.params.items() if spec.frozen} == set(plan.plain_params)


@pytest.mark.parametrize(
    "patterns, expected",
    [
        (["lstm"], ["lstm/rec/W", "lstm/rec/W_re"]),
        (["lstm/rec/W_re"], ["lstm/rec/W_re"]),
        (["bl*"], ["block/filter/W"]),
        (["*"], ADAPTED),
        (["heads", "*/QKV"], ["heads/QKV"]),
    ],
    ids=str,
)
def test_layers_with_adapters(patterns: list[str], expected: list[str]) -> None:
    plan = Network.plan(config_of(fine_tune={"from": "base", "lora": {"layers": patterns, "rank": 1}}), train=True)
    assert sorted(plan.adapted) == expected


def test_layers_that_are_trained_beside_adapters() -> None:
    options = {"lora": {"layers": ["*"], "rank": 1}, "train": ["output", "*/scale"], "freeze": ["output/b"]}
    plan = Network.plan(config_of(fine_tune={"from": "base", **options}), train=True)
    assert "output/W" not in plan.adapted
    trained = {name for name, spec in plan.params.items() if spec.trainable and "lora" not in name}
    assert trained == {"output/W", "block/output/scale"}


def test_what_is_frozen_has_no_adapter() -> None:
    options = {"lora": {"layers": ["*"], "rank": 1}, "freeze": ["lstm/rec/W_re", "block"]}
    plan = Network.plan(config_of(fine_tune={"from": "base", **options}), train=True)
    assert sorted(plan.adapted) == sorted({*ADAPTED} - {"lstm/rec/W_re", "block/filter/W"})


def test_other_modes_have_no_adapters() -> None:
    config = config_of(fine_tune={"from": "base", "lora": LORA})
    for mode in ({}, {"search": True}, {"evaluate": True}):
        assert not Network.plan(config, **mode).adapted


@pytest.mark.parametrize("shared", [False, True])
def test_a_parameter_of_two_layers_has_one_adapter(shared: bool) -> None:
    layers = {
        "one": {"class": "linear", "n_out": 9, "from": "data"},
        "two": {"class": "linear", "n_out": 9, "from": "one", **({"reuse_params": "one"} if shared else {})},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "two"},
    }
    options = {"lora": {"layers": ["two"], "rank": 1}}
    plan = Network.plan(config_of(network=layers, fine_tune={"from": "base", **options}), train=True)
    assert list(plan.adapted) == ["one/W" if shared else "two/W"]


def test_a_loop_multiplies_by_the_sum(base: str, tmp_path: pathlib.Path) -> None:
    unit = {
        "s": {"class": "linear", "activation": "tanh", "n_out": 4, "from": ["data:source", "prev:s"]},
        "output": {"class": "softmax", "n_out": 2, "from": "s", "loss": "ce", "target": "classes"},
    }
    network = {"output": {"class": "rec", "from": "data", "unit": unit, "target": "classes"}}
    path = str(tmp_path / "loop.001")
    save_checkpoint(Network.from_config(config_of(network=network)), path)
    trainer = trainer_of(path, network, lora={"layers": ["output/s"], "rank": 2})
    assert list(trainer.net.plan.adapted) == ["output/rec/s/W"]
    for step in range(3):
        trainer.step(feed(step))
    assert_plain_computes_the_same(trainer.net)


def assert_plain_computes_the_same(net: Network) -> None:
    plain, before = net.plain(), net.run(feed(), train=False)
    assert not plain.plan.adapted and plain.plan.train == net.plan.train
    np.testing.assert_allclose(plain.run(feed(), train=False).total_loss, before.total_loss, rtol=1e-6)
    assert plain.plain() is plain


def test_steps_change_the_sum_by_the_formula(base: str) -> None:
    trainer = trainer_of(base, lora=LORA)
    before = numbers(trainer.net.stored_params)
    for step in range(3):
        trainer.step(feed(step))
    after, plain = numbers(trainer.net.stored_params), numbers(trainer.net.plain_params())
    assert changed(before, after) == {name for name, spec in trainer.net.plan.params.items() if spec.trainable}
    for name in ADAPTED:
        product = (after[name + "/lora_a"] @ after[name + "/lora_b"]).reshape(before[name].shape)
        np.testing.assert_allclose(plain[name], before[name] + 1.5 * product, rtol=1e-6, atol=1e-7)
        assert np.abs(plain[name] - before[name]).max() > 1e-4
    assert_plain_computes_the_same(trainer.net)


@pytest.mark.slow
def test_exports_are_plain(base: str, tmp_path: pathlib.Path) -> None:
    trainer = trainer_of(base, lora=LORA)
    trainer.step(feed())
    export(trainer.net, str(tmp_path / "export"))  # compares what it wrote with the network
    save_checkpoint(trainer.net, str(tmp_path / "saved"))
    assert set(checkpoint.read(str(tmp_path / "saved"))) == {*Network.plan(config_of()).params, "global_step"}


@pytest.mark.slow
def test_user_code_sees_the_sum(base: str) -> None:
    def double(source: Any, self: Any, **_: Any) -> Any:
        weights = self.network.layers["output"].params["W"]
        return source(0) * 0.0 + weights[0, 0]

    seen = {"class": "eval", "from": "output", "eval": double, "is_output_layer": True}
    trainer = trainer_of(base, {**LAYERS, "seen": seen}, lora=LORA)
    trainer.step(feed())
    expected = numbers(trainer.net.plain_params())["output/W"][0, 0]
    np.testing.assert_allclose(trainer.net.run(feed(), train=False).layers["seen"].value[0, 0], expected, rtol=1e-6)


# --- checkpoints

KINDS: list[dict[str, Any]] = [
    {"lora": LORA},
    {"lora": LORA, "settings": {"weight_average": {"decay": 0.8}}},
    {"lora": {**LORA, "layers": ["lstm"]}, "rates": {"*/lora_b": 4.0}, "settings": {"accum_grad_multiple_step": 3}},
    {"freeze": ["lstm"], "rates": 0.5},
]


def run_of(tmp_path: pathlib.Path, base: str, kind: dict[str, Any], **more: Any) -> Config:
    options = {name: value for name, value in kind.items() if name != "settings"}
    given = {"optimizer": {"class": "adam"}, "model": str(tmp_path / "net"), **kind.get("settings", {})}
    return config_of(**given, fine_tune={"from": base, **options}, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", usual(KINDS, KINDS[1:3]), ids=str)
def test_exact_resume_within_an_epoch(kind: dict[str, Any], base: str, tmp_path: pathlib.Path) -> None:
    config = run_of(tmp_path, base, kind, num_epochs=1, save_every_steps=4)
    with Engine(config) as engine:
        engine.train()
    last = find_checkpoints(str(tmp_path / "net"))[1]
    undisturbed = checkpoint.read(last), checkpoint.read_state(last)
    assert find_step_checkpoints(str(tmp_path / "net"))
    checkpoint.delete(last)
    checkpoint.delete(base)  # not needed any more
    with Engine(config) as engine:
        engine.train()
    assert_same(checkpoint.read(last), undisturbed[0])
    assert_same(checkpoint.read_state(last), undisturbed[1])


@pytest.mark.slow
@pytest.mark.parametrize("averaged", [False, True])
def test_checkpoints_are_plain_for_other_tasks(averaged: bool, base: str, tmp_path: pathlib.Path) -> None:
    config = run_of(tmp_path, base, KINDS[int(averaged)])
    with Engine(config) as engine:
        engine.train()
        current = numbers(engine.net.plain_params())
        with engine.trainer.averages.in_place():
            evaluated = numbers(engine.net.plain_params())
        engine.train_epoch(3)
        load_best(config, engine.trainer, 2, 4)
        assert_same(numbers(engine.net.plain_params()), current)
    stored = checkpoint.read(str(tmp_path / "net.002"))
    assert_same({name: stored[name] for name in evaluated}, evaluated)
    assert set(stored) == {*evaluated, "global_step"}
    task = run_of(tmp_path, "/gone", KINDS[int(averaged)], task="eval", load_epoch=2)
    assert_same(numbers(load_network(task)[0].stored_params), evaluated)
    if averaged:
        task.update({"load_average": False})
        found = numbers(load_network(task)[0].stored_params)
        for name, value in current.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7)
        assert any(np.abs(current[name] - evaluated[name]).max() > 1e-3 for name in ADAPTED)


@pytest.mark.slow
def test_another_alpha_does_not_resume(base: str, tmp_path: pathlib.Path) -> None:
    with Engine(run_of(tmp_path, base, KINDS[0], num_epochs=1)) as engine:
        engine.train()
    with pytest.raises(ConfigError, match=r"alpha / rank is 2, but the training that wrote .*net.001 has 1.5"):
        Engine(run_of(tmp_path, base, {"lora": {**LORA, "alpha": 4.0}})).train()


@pytest.mark.parametrize("name", ["import_model_train_epoch1", "init_params"])
def test_two_starts(name: str) -> None:
    with pytest.raises(ConfigError, match="'from' and %s both say where training starts" % name):
        Network.plan(config_of(fine_tune={"from": "base.001"}, **{name: "base.001"}), train=True)


@pytest.mark.slow
def test_load_is_another_start(base: str) -> None:
    with pytest.raises(ConfigError, match=r"'from' and load \(.*base.001\) both say where training starts"):
        Engine(config_of(fine_tune={"from": base}, load=base)).train()


# --- freezing and rates


@pytest.mark.parametrize(
    "patterns, frozen",
    [
        (["lstm"], {"lstm/rec/W", "lstm/rec/W_re", "lstm/rec/b"}),
        (["*/b", "output/b"], {"lstm/rec/b", "output/b"}),
        (["block", "heads/QKV"], {"block/filter/W", "block/filter/bias", "block/output/scale", "block/output/bias"}
         | {"heads/QKV"}),
    ],
    ids=["layer", "patterns", "block and parameter"],
)  # fmt: skip
def test_freezing(patterns: list[str], frozen: set[str], base: str) -> None:
    trainer = trainer_of(base, freeze=patterns)
    before = numbers(trainer.net.stored_params)
    trainer.step(feed())
    assert set(before) - changed(before, numbers(trainer.net.stored_params)) == frozen


RATES: list[tuple[Any, dict[str, float]]] = [
    ({"lstm": 0.5, "output/b": 0.0625}, {"lstm/rec/W": 0.5, "lstm/rec/b": 0.5, "output/b": 0.0625}),
    ({"*": 0.5, "heads": 2.0}, {"lstm/rec/W": 0.5, "heads/QKV": 2.0, "output/W": 0.5}),
    (0.5, {"lstm/rec/W": 0.125, "heads/QKV": 0.25, "block/filter/W": 0.5, "block/output/scale": 0.5, "output/b": 1.0}),
]


@pytest.mark.parametrize("rates, expected", RATES, ids=str)
def test_rates(rates: Any, expected: dict[str, float], base: str) -> None:
    """A step of gradient descent is proportional to the rate."""
    steps = []
    for given in (None, rates):
        trainer = trainer_of(base, rates=given)
        before = numbers(trainer.net.stored_params)
        trainer.step(feed())
        steps.append({name: value - before[name] for name, value in numbers(trainer.net.stored_params).items()})
    for name, factor in expected.items():
        np.testing.assert_allclose(steps[1][name], factor * steps[0][name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_rates_multiply_that_of_the_optimizer(base: str) -> None:
    optimizer = {"class": "sgd", "learning_rate_multiplier": 4.0}
    trainer = trainer_of(base, rates={"lstm": 0.25}, settings={"optimizer": optimizer})
    found = {name: opts.optimizer["learning_rate_multiplier"] for name, opts in trainer.updater._options.items()}
    assert found["lstm/rec/W"] == 1.0 and found["output/W"] == 4.0


# --- other labels

OLD, NEW = ["a", "b", "c", "d"], ["d", "x", "a", "y", "z"]
WITH_LABELS: dict[str, Any] = {
    "embedded": {"class": "linear", "n_out": 3, "with_bias": False, "from": "data:classes"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "embedded"},
}


@pytest.mark.parametrize("further", [0, 1])
@pytest.mark.parametrize("init", ["layer", "mean"])
def test_rows_of_shared_labels_are_kept(init: str, further: int, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "base")
    save_checkpoint(Network.from_config(config_of(4 + further, network=WITH_LABELS, random_seed=7)), path)
    stored = checkpoint.read(path)
    options = {"old": {"labels": OLD}, "new": {"labels": NEW}, "layers": ["output", "embedded"], "init": init}
    config = config_of(
        5 + further, network=WITH_LABELS, fine_tune={"from": path, "new_labels": {**options, "further": further}}
    )
    net = Network.from_config(config, train=True)
    initial = numbers(net.stored_params)
    load(config, net)
    for name, axis in [("embedded/W", 0), ("output/W", 1), ("output/b", 0)]:
        found, before, first = (
            np.moveaxis(values[name], axis, 0) for values in (numbers(net.stored_params), stored, initial)
        )
        new = np.broadcast_to(before[:4].mean(axis=0), first.shape) if init == "mean" else first
        expected = [before[3], new[1], before[0], new[3], new[4]] + ([before[4]] if further else [])
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-6, err_msg=name)


def test_a_square_matrix_of_labels(tmp_path: pathlib.Path) -> None:
    """The axis of labels is that of the channels where the sizes do not tell."""
    network = {"output": {**LAYERS["output"], "from": "data"}}
    path = str(tmp_path / "base")
    save_checkpoint(Network.from_config(config_of(9, network=network)), path)
    labels = [str(index) for index in range(9)]
    options = {"old": {"labels": labels}, "new": {"labels": labels[::-1]}, "layers": ["output"]}
    config = config_of(9, network=network, fine_tune={"from": path, "new_labels": options})
    net = Network.from_config(config, train=True)
    load(config, net)
    np.testing.assert_array_equal(net.stored_params["output/W"], checkpoint.read(path)["output/W"][:, ::-1])


def test_layers_of_new_labels_are_trained_beside_adapters() -> None:
    labels = {"old": {"labels": OLD}, "new": {"labels": NEW}, "layers": ["output"]}
    options = {"lora": {"layers": ["*"], "rank": 1}, "new_labels": labels}
    plan = Network.plan(config_of(fine_tune={"from": "base", **options}), train=True)
    assert plan.params["output/W"].trainable and plan.params["output/b"].trainable and "output/W" not in plan.adapted


def test_new_layers_begin_as_without_a_checkpoint(base: str) -> None:
    network = {**LAYERS, "more": {"class": "linear", "n_out": 5, "from": "block"}}
    network["output"] = {**LAYERS["output"], "from": "more"}
    net = trainer_of(base, network, new_layers=["more"]).net
    initial = net.initial_value(net.plan.params["more/W"])
    np.testing.assert_array_equal(net.stored_params["more/W"], initial)
    np.testing.assert_array_equal(net.stored_params["output/W"], checkpoint.read(base)["output/W"])


# --- mistakes

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"freeze": ["lstn"]}, "fine_tune['freeze']: 'lstn' fits no parameter, and no layer with parameters. Did you mean"),
    ({"freeze": ["*"]}, "fine_tune['freeze']: no parameter is left to train"),
    ({"lora": {"layers": ["lstn"]}}, "['lora']['layers']: 'lstn' fits no layer and no parameter. Did you mean 'lstm'?"),
    ({"lora": {"layers": []}}, "'fine_tune': lora: option 'layers' must name a layer"),
    ({"lora": {}}, "'fine_tune': lora: the option 'layers' is missing"),
    ({"lora": {"layers": ["block/tanh"]}}, "'block/tanh' has no product with a matrix, to which an adapter could be "
     "added: layer 'block/tanh' is of class 'activation', with no parameters"),
    ({"lora": {"layers": ["block/output"]}}, "is of class 'layer_norm', with block/output/bias, block/output/scale"),
    ({"lora": {"layers": ["output/b"]}}, "'output/b' has no product with a matrix"),
    ({"lora": {"layers": ["output"], "rank": 3}}, "fine_tune['lora']['rank'] is 3, but the parameter 'output/W' is a "
     "matrix of 5 x 2, whose rank is at most 2"),
    ({"lora": {"layers": ["output"], "rank": 0}}, "option 'rank' must be at least 1"),
    ({"lora": {"layers": ["output"], "alpha": 0.0}}, "option 'alpha' must be above 0"),
    ({"lora": {"layers": ["output"], "rank": 1}, "train": ["output"]}, "'output' is trained whole, by 'train'"),
    ({"lora": {"layers": ["out*", "lstm"], "rank": 1}, "freeze": ["lstm"]}, "['layers']: 'lstm' is in 'freeze', too"),
    ({"lora": {"layers": ["lstm"], "rank": 1}, "train": ["output/b"], "freeze": ["output"]}, "['train']: 'output/b' "
     "is in 'freeze', too"),
    ({"new_layers": ["out*"], "new_labels": {"old": {"labels": ["a"]}, "new": {"labels": ["a"]}, "layers": ["output"]}},
     "['new_labels']['layers']: 'output' is in 'new_layers', too"),
    ({"rates": {"lstn": 2.0}}, "fine_tune['rates']: 'lstn' fits no parameter"),
    ({"rates": {"lstm": 0.0}}, "option 'rates' must be a number above 0"),
    ({"rates": {"lstm": 2.0}, "freeze": ["lstm"]}, "fine_tune['rates']: 'lstm' is frozen"),
    ({"new_layers": ["mor"]}, "fine_tune['new_layers']: 'mor' fits no parameter"),
    ({"lorra": {}}, "Did you mean 'lora'?"),
    ({"from": ""}, "option 'from' must be the path of a checkpoint"),
]  # fmt: skip


@pytest.mark.parametrize("options, text", MISTAKES, ids=[str(options) for options, _ in MISTAKES])
def test_one_mistake(options: dict[str, Any], text: str) -> None:
    assert text in plan_error(**options)


def test_without_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match="fine_tune.*'from' is missing"):
        Network.plan(config_of(fine_tune={"freeze": ["lstm"]}), train=True)
    with pytest.raises(ConfigError, match=r"fine_tune\['from'\]: there is no checkpoint /no/base.001"):
        trainer_of("/no/base.001")


LABEL_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"old": {"labels": ["p", "q"]}}, "'old' and 'new' have no label in common: old are 'p', 'q', new are 'a', 'b'"),
    ({"layers": ["lstm"]}, "'lstm' has no parameter with an axis of 2 labels in the checkpoint and 2 here"),
    ({"layers": ["outptu"]}, "fine_tune['new_labels']['layers']: 'outptu' fits no parameter"),
    ({"further": 1}, "'output' has no parameter with an axis of 3 labels in the checkpoint and 3 here"),
    ({"new": {"vocab_file": "/no/file"}}, "fine_tune['new_labels']['new']"),
]


@pytest.mark.parametrize("options, text", LABEL_MISTAKES, ids=[str(options) for options, _ in LABEL_MISTAKES])
def test_mistakes_in_labels(options: dict[str, Any], text: str, base: str) -> None:
    labels = {"old": {"labels": ["b", "a"]}, "new": {"labels": ["a", "b"]}, "layers": ["output"], **options}
    with pytest.raises((ConfigError, DataError)) as info:
        trainer_of(base, new_labels=labels)
    assert text in str(info.value)


def test_a_network_of_other_sizes(base: str) -> None:
    network = {**LAYERS, "lstm": {**LAYERS["lstm"], "n_out": 7}}
    with pytest.raises(DataError) as info:
        trainer_of(base, network)
    for text in ("does not fit the network", "lstm/rec/W_re is [7, 28] here, stored [6, 24]", "'new_layers'"):
        assert text in str(info.value)
