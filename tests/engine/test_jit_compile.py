"""``jit_compile``: the same numbers, one compilation per shape, what is kept between processes, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.ops.xla import keep_compiled

OUTPUT = {"class": "softmax", "from": "h", "target": "classes", "loss": "ce"}
HIDDEN = {"class": "linear", "activation": "relu", "n_out": 3, "from": "data"}
LSTM = {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"}
STEP = {"class": "linear", "n_out": 3, "from": ["data:source", "prev:output"]}
LOOP = {"class": "rec", "unit": {"output": STEP}, "from": "data"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("RETURNN_TF_XLA_CACHE", str(tmp_path / "xla"))
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_max_cluster_size=9")


def config(network: dict[str, Any], **settings: Any) -> Config:
    extern = {"data": {"dim": 5}, "classes": {"dim": 1200, "sparse": True}}
    given = {"behavior_version": 21, "extern_data": extern, "network": network, "learning_rate": 0.1}
    return Config({**given, "optimizer": {"class": "adam"}, **settings})


def trainer(network: dict[str, Any], **settings: Any) -> StepTrainer:
    given = config(network, **settings)
    return StepTrainer(Network.from_config(given, train=True), given)


def feed(frames: int = 4) -> dict[str, Any]:
    rng = np.random.RandomState(1)
    lengths = np.array([frames, frames - 1], "int32")
    labels = rng.randint(0, 1200, (2, frames)).astype("int32")
    data = rng.normal(size=(2, frames, 5)).astype("float32")
    return {"data": data, "data/size0": lengths, "classes": labels, "classes/size0": lengths}


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden", [HIDDEN, pytest.param(LSTM, marks=pytest.mark.long), LOOP], ids=["linear", "lstm", "a loop of layers"]
)
def test_same_numbers_for_all_shapes(hidden: dict[str, Any]) -> None:
    """Many labels, a native op, a loop over time, each in a form for XLA; ragged batches of two shapes."""
    network = {"h": hidden, "output": OUTPUT}
    plain, compiled = trainer(network), trainer(network, jit_compile=True)
    for frames in (4, 3):
        expected, got = plain.step(feed(frames)), compiled.step(feed(frames))
        np.testing.assert_allclose(got.total_loss, expected.total_loss, rtol=1e-5)
        assert got.errors == expected.errors
    for name, value in plain.net.get_param_values().items():
        np.testing.assert_allclose(compiled.net.get_param_values()[name], value, atol=1e-4, err_msg=name)
    assert len(compiled.function.graphs) == 1
    result = Evaluator(compiled.net, config(network, jit_compile=True)).step(feed())
    np.testing.assert_allclose(result.total_loss, Evaluator(plain.net, config(network)).step(feed()).total_loss, 1e-4)


ENDS_ITSELF = {
    "output": {"class": "linear", "n_out": 3, "from": "prev:output"},
    "sum": {"class": "reduce", "mode": "sum", "axes": "f", "from": "output"},
    "end": {"class": "compare", "kind": "greater", "value": 2.0, "from": "sum"},
}
LOOP_WITH_END = {
    "h": {"class": "rec", "unit": ENDS_ITSELF, "from": [], "max_seq_len": 5},
    "output": {"class": "reduce", "mode": "sum", "axes": ["t", "f"], "from": "h", "loss": "as_is"},
}


@pytest.mark.parametrize(
    "network, message",
    [
        ({"output": {**OUTPUT, "from": "data", "loss": "ctc"}}, r"no kernel of \w+ \(op output_loss/\w+\)"),
        (LOOP_WITH_END, "must be a compile-time constant"),
    ],
    ids=["an op", "a loop that ends itself"],
)
def test_what_xla_cannot_compile(network: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="jit_compile: XLA cannot compile this network: .*%s.*Remove" % message):
        trainer(network, jit_compile=True).step(feed())


def test_not_with_several_processes(monkeypatch: Any) -> None:
    given = config({"output": {**OUTPUT, "from": "data"}}, jit_compile=True)
    net = Network.from_config(given, train=True)
    world = World()
    monkeypatch.setattr(type(world), "size", 2, raising=False)
    monkeypatch.setattr("returnn_tf.engine.passes.step_trainer.ranks_for", lambda *_: None)
    with pytest.raises(ConfigError, match="jit_compile: XLA can't exchange gradients between processes"):
        StepTrainer(net, given, world)


@pytest.mark.parametrize("which", ["ops", "on_output"])
def test_not_with_checks_that_are_left_out(which: str) -> None:
    with pytest.raises(ConfigError, match="jit_compile: XLA leaves out the checks of debug_add_check_numerics"):
        trainer({"output": {**OUTPUT, "from": "data"}}, jit_compile=True, **{"debug_add_check_numerics_" + which: True})


def test_folder() -> None:
    """Flags of the user stay, as does a folder given by them."""
    folder = keep_compiled()
    base = os.environ["RETURNN_TF_XLA_CACHE"]
    assert os.path.dirname(folder) == base and os.path.isdir(folder) and keep_compiled() == folder
    assert os.environ["TF_XLA_FLAGS"].split() == [
        "--tf_xla_max_cluster_size=9",
        "--tf_xla_persistent_cache_directory=" + folder,
    ]


def test_a_folder_that_others_can_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in it is executed."""
    folder = keep_compiled()
    monkeypatch.delenv("TF_XLA_FLAGS")
    os.chmod(folder, 0o770)
    with pytest.raises(ConfigError, match="others may write to it.*set RETURNN_TF_XLA_CACHE to another folder"):
        keep_compiled()
    os.chmod(folder, 0o700)


SCRIPT = """
import sys, numpy
sys.path.insert(0, %r)
from tests.engine.test_jit_compile import OUTPUT, feed, trainer
trainer({"output": {**OUTPUT, "from": "data"}}, jit_compile=True).step(feed())
"""


@pytest.mark.long
def test_kept_for_the_next_process(tmp_path: Any) -> None:
    """The second run writes no file."""
    times = []
    for _ in range(2):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        done = subprocess.run([sys.executable, "-c", SCRIPT % root], capture_output=True, text=True, check=True)
        assert "jit_compile: XLA compiles a step for each shape of a batch and keeps it in " in done.stdout
        files = [entry for folder in (tmp_path / "xla").iterdir() for entry in folder.iterdir()]
        times.append([(entry.name, entry.stat().st_mtime_ns) for entry in files])
    assert len(times[0]) == 1 and times[0] == times[1]
