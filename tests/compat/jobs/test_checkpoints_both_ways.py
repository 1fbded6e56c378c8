"""Checkpoints that the other program wrote, and reading ours as it does: by TensorFlow's older saver."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from tests.run_tasks import run_task

DATA = {"class": "Task12AXDataset", "num_seqs": 6, "fixed_random_seed": 1}
SETTINGS: dict[str, Any] = {
    "train": DATA,
    "dev": DATA,
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {
        "hidden": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"},
        "norm": {"class": "batch_norm", "masked_time": True, "from": "hidden"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "norm"},
    },
    "batch_size": 400,
    "max_seqs": 4,
    "learning_rate": 0.01,
    "optimizer": {"class": "adam"},
    "model": "models/epoch",
    "num_epochs": 3,
    "device": "cpu",
    "tf_log_dir": None,
    "behavior_version": 21,
}
v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()


def run(task: str, **changes: Any) -> None:
    assert run_task(Config({**SETTINGS, "task": task, **changes})) == 0


def some_values() -> dict[str, NDArray[Any]]:
    """Return parameters of the network by name, those of another seed than the config's."""
    return Network.from_config(Config({**SETTINGS, "random_seed": 5}), train=True).get_param_values()


def save(prefix: str, values: dict[str, NDArray[Any]], step: int) -> None:
    """Write a checkpoint as the other program does, with its graph and the list of checkpoints."""
    with tf.Graph().as_default(), v1.Session() as session:
        made = {
            name: v1.get_variable(name, initializer=tf.constant(value), use_resource=True)
            for name, value in {**values, "global_step": np.int64(step)}.items()
        }
        session.run(v1.global_variables_initializer())
        v1.train.Saver(list(made.values()), max_to_keep=2**31 - 1).save(session, prefix)


def restore(prefix: str, shapes: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Read a checkpoint as the other program does: variables of its own, each by name, type and shape."""
    with tf.Graph().as_default(), v1.Session() as session:
        made = {
            name: v1.get_variable(name, shape, tf.as_dtype(dtype), initializer=v1.zeros_initializer())
            for name, (shape, dtype) in {**shapes, "global_step": ((), "int64")}.items()
        }
        v1.train.Saver(list(made.values())).restore(session, prefix)
        found: dict[str, NDArray[Any]] = session.run(made)
        return found


@pytest.mark.slow
def test_theirs_resumes_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Also that of an epoch of pretraining. The state of the optimizer starts anew, unless all of it is there."""
    name, given = "epoch.pretrain.002", some_values()
    part = {"optimize/hidden/rec/W/Adam": np.ones_like(given["hidden/rec/W"]), "optimize/beta1_power": np.float32(0.5)}
    save("models/" + name, {**given, **part}, 17)
    assert os.path.exists("models/%s.meta" % name) and not os.path.exists("models/%s.manifest.json" % name)
    run("train")
    out = capsys.readouterr().out
    assert "Loaded models/%s\n" % name in out and "start train epoch 3" in out
    assert "The optimizer state is not in %s and starts from scratch" % name in out
    trained = checkpoint.read("models/epoch.003")
    assert set(trained) == {*given, "global_step"} and int(trained["global_step"]) > 17


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda: v1.train.AdamOptimizer(0.01, epsilon=1e-16),
    "momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.9),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, epsilon=1e-16),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_their_optimizer_goes_on_here(name: str) -> None:
    """`debug_save_updater_vars` saves its variables, too: three updates there and one here are four there."""
    inputs = np.random.RandomState(1).normal(size=[5, 9]).astype("float32")
    initial = {"output/W": np.ones([9, 2], "float32"), "output/b": np.zeros([2], "float32")}
    with tf.Graph().as_default(), v1.Session() as session:
        weights = {key: v1.get_variable(key, initializer=value, use_resource=True) for key, value in initial.items()}
        step = v1.get_variable("global_step", initializer=np.int64(0), use_resource=True)
        loss = tf.reduce_sum(tf.tanh(inputs @ weights["output/W"] + weights["output/b"]) ** 2)
        with v1.variable_scope("optimize"):
            update = OPTIMIZERS[name]().minimize(loss, step)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(update)
        v1.train.Saver(v1.global_variables()).save(session, "models/epoch.001")
        session.run(update)
        expected = session.run(weights)
    network = {
        "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": "data"},
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"},
    }
    run(
        "train",
        train={"class": "StaticDataset", "data": [{"data": inputs}], "output_dim": {"data": (9, 2)}},
        dev=None,
        extern_data={"data": {"dim": 9}},
        network=network,
        optimizer={"class": name, **({"momentum": 0.9} if name == "momentum" else {})},
        num_epochs=2,
    )
    found = checkpoint.read("models/epoch.002")
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_theirs_is_used_here(tmp_path: pathlib.Path) -> None:
    """By the name of any of its files."""
    save(str(tmp_path / "theirs.007"), some_values(), 17)
    load = str(tmp_path / "theirs.007")
    run("eval", load=load + ".index", eval_output_file="scores")
    run("compute_priors", load=load + ".meta", output_file="priors")
    assert np.exp(np.loadtxt("priors")).sum() == pytest.approx(1)
    run("train", load=load, num_epochs=8)
    assert sorted(find_checkpoints("models/epoch")) == [8]


@pytest.mark.slow
def test_ours_is_used_there() -> None:
    """All parameters by their names and the step as int64; what else there is, is in files of its own."""
    run("train", num_epochs=1)
    params = Network.from_config(Config(SETTINGS), train=True).get_param_values()
    found = restore("models/epoch.001", {name: (value.shape, value.dtype.name) for name, value in params.items()})
    ours = checkpoint.read("models/epoch.001")
    assert set(found) == set(ours) and found["global_step"].dtype == np.int64 and found["global_step"] > 0
    for name, value in found.items():
        np.testing.assert_array_equal(value, ours[name])
    assert v1.train.latest_checkpoint("models") == "models/epoch.001"


@pytest.mark.slow
def test_there_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    """What that program goes on with ours comes back; the state beside the old files does not go with the new ones."""
    run("train", num_epochs=1)
    ours = checkpoint.read("models/epoch.001")
    values = {name: value * 2 for name, value in ours.items() if name != "global_step"}
    save("models/epoch.002", values, 99)
    run("train", num_epochs=3)
    assert "Loaded models/epoch.002\n" in capsys.readouterr().out
    assert int(checkpoint.read("models/epoch.003")["global_step"]) > 99
