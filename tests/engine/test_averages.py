"""Averages of parameters: their recurrences; what evaluation, checkpoints and other tasks have of them; resume."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.training.best_model import load_best
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.training.trainer import Trainer
from returnn_tf.engine.update import averages
from returnn_tf.util.lazy_tf import tf
from tests.tiers import usual

SCHEDULE_FREE = {"optimizer": {"class": "schedulefreeadamw", "warmup_steps": 5}}
MOVING = {"optimizer": {"class": "adam"}, "weight_average": {"decay": 0.8}}
KINDS = {"moving": MOVING, "schedule_free": SCHEDULE_FREE}
LAYERS = {
    "hidden": {"class": "linear", "activation": "tanh", "from": "data", "n_out": 5},
    "normalised": {"class": "batch_norm", "from": "hidden", "masked_time": True},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "normalised"},
}


def config_of(**settings: Any) -> Config:
    data = {"class": "Task12AXDataset", "num_seqs": 12}
    config = {
        "train": data, "dev": {**data, "fixed_random_seed": 3}, "num_epochs": 2, "network": LAYERS, "max_seqs": 2,
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}, "batch_size": 100,
        "behavior_version": 21, "learning_rate": 0.05, **settings,
    }  # fmt: skip
    return Config(config)


def feed(seed: int) -> dict[str, np.ndarray]:
    random, lens = np.random.RandomState(seed), np.array([4, 3], "int32")
    return {
        "data": random.randn(2, 4, 9).astype("float32"), "data/size0": lens,
        "classes": random.randint(0, 2, (2, 4)).astype("int32"), "classes/size0": lens,
    }  # fmt: skip


def trainer_of(**settings: Any) -> StepTrainer:
    config = config_of(**settings)
    return StepTrainer(Network.from_config(config, train=True), config)


def numbers(values: Any) -> dict[str, np.ndarray]:
    return {name: tf.convert_to_tensor(value).numpy() for name, value in values.items()}


def assert_same(values: Any, expected: Any) -> None:
    assert set(values) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def train(config: Config) -> None:
    with Engine(config) as engine:
        engine.train()


def dev_score(net: Network, config: Config) -> float:
    used = {key: net.extern_data[key] for key in net.used_data_keys}
    batches = DataSource(config, "dev", used, World()).batches(1)
    return float(next(iter(Evaluator(net, config).run("dev", 1, batches).scores.values())))


@pytest.mark.parametrize(
    "every, accumulated, warmup, fused",
    [(1, 1, True, False), (1, 1, False, True), (2, 1, True, True), (1, 3, False, False), (2, 2, True, True)],
)
def test_moving_average(
    every: int, accumulated: int, warmup: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fused:
        monkeypatch.setattr(averages, "LEAST_SIZE", 0)
    options = {"decay": 0.7, "warmup": warmup, "every": every}
    trainer = trainer_of(weight_average=options, accum_grad_multiple_step=accumulated)
    assert_same(numbers(trainer.averages.values()), numbers(trainer.net.trainable_params))
    expected, done = numbers(trainer.net.trainable_params), 0
    for step in range(1, 13):
        trainer.step(feed(step))
        if step % (accumulated * every) == 0:
            decay = min(0.7, done / (done + 9)) if warmup else 0.7
            decay, done = decay if done else 0.0, done + 1
            now = numbers(trainer.net.trainable_params)
            expected = {name: decay * value + (1 - decay) * now[name] for name, value in expected.items()}
        if done:
            for name, value in trainer.averages.values().items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    assert done == 12 // (accumulated * every)


def test_a_skipped_step_does_not_count() -> None:
    trainer = trainer_of(**MOVING, stop_on_nonfinite_train_score=False)
    trainer.step(feed(1))
    before = numbers(trainer.averages.state())
    bad = feed(2)
    bad["data"][0, 0, 0] = np.nan
    assert not trainer.step(bad).updated
    assert_same(numbers(trainer.averages.state()), before)


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_of_the_parameters_for_a_while(kind: str) -> None:
    trainer = trainer_of(**KINDS[kind])
    for step in range(3):
        trainer.step(feed(step))
    before, average = numbers(trainer.net.params), numbers(trainer.averages.values())
    assert set(average) == set(trainer.net.trainable_params) and set(before) > set(average)  # with running means
    with pytest.raises(KeyError), trainer.averages.in_place():
        assert_same(numbers(trainer.net.params), {**before, **average})
        raise KeyError
    assert_same(numbers(trainer.net.params), before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_checkpoints_and_other_tasks(kind: str, tmp_path: pathlib.Path) -> None:
    given = {**KINDS[kind], "model": str(tmp_path / "net"), "learning_rate_file": str(tmp_path / "rates")}
    given["weight_average"] = {**given.get("weight_average", {}), "evaluate": "both"}
    config = config_of(**given)
    with Engine(config) as engine:
        engine.train()
        current, average = numbers(engine.net.trainable_params), numbers(engine.trainer.averages.values())
        scores = engine.learning_rates.epochs[2].error
    assert any(np.abs(current[name] - average[name]).max() > 1e-3 for name in current)
    found = {}
    for wanted, expected in [(None, average), (True, average), (False, current)]:
        task = config_of(**given, task="eval", load_average=wanted)
        net, _ = load_network(task)
        assert_same(numbers(net.trainable_params), expected)
        found[wanted] = dev_score(net, task)
    assert found[None] == found[True] == pytest.approx(scores["dev_score"], rel=1e-6)
    assert found[False] == pytest.approx(scores["current_dev_score"], rel=1e-6)
    assert found[False] != found[True]


@pytest.mark.slow
def test_current_parameters_in_evaluation_and_checkpoints(tmp_path: pathlib.Path) -> None:
    given = {**MOVING, "model": str(tmp_path / "net"), "num_epochs": 1}
    given["weight_average"] = {"decay": 0.8, "evaluate": "current"}
    with Engine(config_of(**given)) as engine:
        engine.train()
        current, average = numbers(engine.net.trainable_params), numbers(engine.trainer.averages.values())
    assert_same({name: checkpoint.read(str(tmp_path / "net.001"))[name] for name in current}, current)
    for wanted, expected in [(None, current), (False, current), (True, average)]:
        net, _ = load_network(config_of(**given, task="eval", load_average=wanted))
        assert_same(numbers(net.trainable_params), expected)


#: Those whose state differs from the parameters in shape, or is of two optimizers, too.
RESUMED = {**KINDS, **{name: {"optimizer": {"class": name}} for name in ("muon", "adafactor", "scaledadam")}}
#: Kind, steps per update.
RESUMED_AFTER = [("schedule_free", 3), ("moving", 1), ("muon", 1), ("adafactor", 1), ("scaledadam", 1), ("moving", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("case", usual(RESUMED_AFTER, RESUMED_AFTER[:3]), ids=str)
def test_exact_resume_within_an_epoch(case: tuple[str, int], tmp_path: pathlib.Path) -> None:
    kind, accumulated = case
    given = {**RESUMED[kind], "model": str(tmp_path / "net"), "save_every_steps": 4}
    given["accum_grad_multiple_step"] = accumulated
    config = config_of(**given, num_epochs=1)
    train(config)
    last = find_checkpoints(str(tmp_path / "net"))[1]
    undisturbed = checkpoint.read(last), checkpoint.read_state(last)
    assert find_step_checkpoints(str(tmp_path / "net"))
    checkpoint.delete(last)
    train(config)
    assert_same(checkpoint.read(last), undisturbed[0])
    assert_same(checkpoint.read_state(last), undisturbed[1])


@pytest.mark.parametrize("name", ["average", "current"])
def test_layers_with_the_names_of_prefixes(name: str) -> None:
    """What optimizers keep of them stays in the state."""
    layers = {name: LAYERS["hidden"], "output": {**LAYERS["output"], "from": name}}
    trainer = trainer_of(**MOVING, network=layers)
    for seed in range(3):
        trainer.step(feed(seed))
    state, current = numbers(trainer.state()), numbers(trainer.net.stored_params)
    found = averages.training_values(*map(numbers, trainer.averages.stored(trainer.net.stored_params, trainer.state())))
    assert_same(found[0], current)
    assert_same({key: found[1][key] for key in state}, state)
    plain = trainer_of(optimizer={"class": "adam"}, network=layers)
    with pytest.raises(ConfigError, match="net.001 has no averages"):
        averages.chosen_values(plain.net.stored_params, plain.state(), averages=True, source="net.001")


@pytest.mark.slow
def test_resume_with_another_setting(tmp_path: pathlib.Path) -> None:
    """Training goes on with the current parameters, whatever evaluation had; a new average begins with them."""
    given = {"model": str(tmp_path / "net"), "optimizer": {"class": "adam"}}
    train(config_of(**given, num_epochs=1, weight_average={"decay": 0.8}))
    stored = checkpoint.read_state(str(tmp_path / "net.001"))
    current = {name[len("current/") :]: value for name, value in stored.items() if name.startswith("current/")}
    with Engine(config_of(**given)) as engine:
        assert_same(numbers(engine.net.trainable_params), current)
        engine.train()
    with Engine(config_of(**given, num_epochs=3, weight_average={"decay": 0.8})) as engine:
        assert_same(numbers(engine.trainer.averages.values()), numbers(engine.net.trainable_params))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_return_to_the_model_of_an_earlier_epoch(kind: str, tmp_path: pathlib.Path) -> None:
    config = config_of(**KINDS[kind], model=str(tmp_path / "net"))
    with Engine(config) as engine:
        engine.train_epoch(1)
        engine.run.saver.wait()
        before = numbers(engine.net.params), numbers(engine.trainer.averages.values())
        engine.train_epoch(2)
        load_best(config, engine.trainer, 1, 3)
        assert_same(numbers(engine.net.trainable_params), {name: before[0][name] for name in before[1]})
        assert_same(numbers(engine.trainer.averages.values()), before[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_networks_that_change(kind: str, tmp_path: pathlib.Path) -> None:
    """A parameter that is the same stays; averages begin again where the state of the optimizer does."""

    def get_network(epoch: int) -> dict[str, Any]:
        hidden = {**LAYERS["hidden"], "n_out": 4 + epoch}
        return {**LAYERS, "hidden": hidden, "#copy_param_mode": "subset"}

    config = config_of(**KINDS[kind], model=str(tmp_path / "net"))
    config.update({"get_network": get_network, "network": None})
    with Engine(config) as engine:
        engine.train()
        average, current = numbers(engine.trainer.averages.values()), numbers(engine.net.trainable_params)
    assert average["hidden/W"].shape == (9, 6)
    assert any(np.abs(current[name] - average[name]).max() > 1e-3 for name in current)
    assert_same({name: checkpoint.read(str(tmp_path / "net.002"))[name] for name in average}, average)


@pytest.mark.slow
def test_the_average_of_what_is_trained_later_begins_with_it(tmp_path: pathlib.Path) -> None:
    """In a network of a later epoch, and in a training that is resumed."""

    def get_network(epoch: int) -> dict[str, Any]:
        return {**LAYERS, "hidden": {**LAYERS["hidden"], "trainable": epoch != 2}}

    given = {**MOVING, "model": str(tmp_path / "net"), "network": None, "learning_rates": [0.05, 0.0, 0.0]}
    with Engine(config_of(**given, get_network=get_network, num_epochs=3)) as engine:
        engine.train()
        average, current = numbers(engine.trainer.averages.values()), numbers(engine.net.trainable_params)
        np.testing.assert_allclose(average["hidden/W"], current["hidden/W"], rtol=1e-5)
        initial = engine.net.initial_value(engine.net.plan.params["hidden/W"])
        assert np.abs(current["hidden/W"] - initial).max() > 1e-2
    checkpoint.delete(str(tmp_path / "net.003"))
    given.update(network=LAYERS, num_epochs=3)
    with Engine(config_of(**given)) as engine:
        found = numbers(engine.trainer.averages.values())["hidden/W"]
        np.testing.assert_array_equal(found, numbers(engine.net.trainable_params)["hidden/W"])


@pytest.mark.slow
def test_another_training_begins_with_the_averages(tmp_path: pathlib.Path) -> None:
    train(config_of(**MOVING, num_epochs=1, model=str(tmp_path / "net")))
    average = checkpoint.read(str(tmp_path / "net.001"))
    with Engine(
        config_of(import_model_train_epoch1=str(tmp_path / "net.001"), model=str(tmp_path / "other"))
    ) as engine:
        assert_same(numbers(engine.net.trainable_params), {name: average[name] for name in engine.net.trainable_params})


@pytest.mark.slow
def test_network_of_python(tmp_path: pathlib.Path) -> None:
    config = config_of(**MOVING, num_epochs=1)
    trainer = Trainer(Network.from_config(config, train=True), config)
    trainer.fit()
    current = numbers(trainer.net.trainable_params)
    with trainer.averaged():
        average = numbers(trainer.net.trainable_params)
        assert dev_score(trainer.net, config) == pytest.approx(trainer.history["dev_score"][1], rel=1e-6)
    assert any(np.abs(current[name] - average[name]).max() > 1e-3 for name in current)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"weight_average": {"decay": 1.0}}, "'weight_average': option 'decay' must be between 0 and 1, got 1.0"),
        ({"weight_average": {"decay": 0.0}}, "must be between 0 and 1, got 0.0"),
        ({"weight_average": {"decay": 0.9, "every": 0}}, "'every' must be at least 1"),
        ({"weight_average": {"decya": 0.9}}, "Did you mean 'decay'"),
        ({"weight_average": {"decay": 0.9, "evaluate": "averages"}}, "Did you mean 'average'"),
        ({"weight_average": {}}, "'decay' is missing, e.g. weight_average = {'decay': 0.999}"),
        ({**SCHEDULE_FREE, "weight_average": {"decay": 0.9}}, "schedulefreeadamw keeps averages of its own"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        trainer_of(**settings)
    assert message in str(info.value)


@pytest.mark.slow
def test_no_averages_to_load(tmp_path: pathlib.Path) -> None:
    given = {"model": str(tmp_path / "net"), "num_epochs": 1}
    train(config_of(**given))
    with pytest.raises(ConfigError, match=r"net\.001 has no averages of parameters"):
        load_network(config_of(**given, task="eval", load_average=True))
