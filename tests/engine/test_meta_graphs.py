"""The file .meta beside each checkpoint: built once, in the background, without an effect on training."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
from typing import Any, Optional

import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.meta_graphs import MetaGraphs
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.training.engine import Engine
from tests.waiting import LONG

LAYER = {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}
OPTIONS: dict[str, Any] = {
    "train": {"class": "Task12AXDataset", "num_seqs": 4},
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {"output": LAYER},
    "batch_size": 300,
    "max_seqs": 2,
    "learning_rate": 0.02,
    "model": "net/toy",
    "num_epochs": 3,
    "tf_log_dir": None,
    "device": "cpu",
}

#: hidden files that a run leaves on purpose
RECORDS = (".toy.status.json", ".toy.settings.json")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Build:
    """Makes the parameters of a network its "graph"; waits before that if it is told to."""

    def __init__(self, begin: Optional[threading.Event] = None) -> None:
        self.plans: list[Plan] = []
        self.begin = begin

    def __call__(self, plan: Plan, config: Config) -> bytes:
        self.plans.append(plan)
        while self.begin is not None and not self.begin.is_set():
            time.sleep(0.001)
        return ",".join(plan.params).encode()


def train(build: Any, stop: Optional[StopRequest] = None, **changes: Any) -> None:
    with Engine(Config({**OPTIONS, **changes}), stop, build_graph=build) as engine:
        engine.train()


def written() -> dict[str, str]:
    files = sorted(pathlib.Path("net").glob("*.meta"))
    return {path.name: path.read_text() for path in files}


@pytest.mark.slow
def test_each_checkpoint_has_one_and_they_are_links() -> None:
    build = Build()
    train(build)
    assert written() == {"toy.%03i.meta" % epoch: "output/W,output/b" for epoch in (1, 2, 3)} and len(build.plans) == 1
    assert {os.stat(path).st_nlink for path in pathlib.Path("net").glob("*.meta")} == {3}
    assert not [name for name in os.listdir("net") if name.startswith(".") and name not in RECORDS]
    assert all(checkpoint.validate(path) is None for path in find_checkpoints("net/toy").values())


@pytest.mark.slow
def test_training_does_not_wait_for_it() -> None:
    """Only its end does; what was deleted meanwhile stays deleted."""
    build = Build(threading.Event())
    assert build.begin is not None
    steps: list[int] = []
    with Engine(Config({**OPTIONS, "cleanup_old_models": LAST}), build_graph=build) as engine:
        engine.train()
        steps.append(engine.trainer.step_count)
        assert written() == {} and sorted(find_checkpoints("net/toy")) == [2, 3]
        build.begin.set()
    assert sorted(written()) == ["toy.002.meta", "toy.003.meta"] and steps[0] > 0


LAST = {"keep_last_n": 1, "keep_best_n": 0, "keep": []}


@pytest.mark.slow
def test_clean_up_deletes_it_too() -> None:
    train(Build(), num_epochs=4, cleanup_old_models=LAST)
    assert sorted(written()) == ["toy.003.meta", "toy.004.meta"]


@pytest.mark.slow
def test_each_network_has_its_own() -> None:
    """Also those of pretraining, and checkpoints from within an epoch; settings of an epoch make no other network."""

    def get_network(epoch: int, **_: Any) -> dict[str, Any]:
        hidden = {"hidden": {"class": "linear", "n_out": 3, "activation": "tanh", "from": "data"}}
        net = {"output": LAYER} if epoch < 3 else {**hidden, "output": {**LAYER, "from": "hidden"}}
        return {**net, "#config": {"learning_rate": 0.01 * epoch}}

    build = Build()
    train(build, get_network=get_network, network=None, num_epochs=4, save_every_steps=1)
    contents = written()
    assert contents["toy.002.meta"] == "output/W,output/b"
    assert contents["toy.003.meta"] == contents["toy.004.meta"] == "hidden/W,hidden/b,output/W,output/b"
    assert len(build.plans) == 2 and set(contents) >= {"toy.%03i.meta" % epoch for epoch in range(1, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["build", "write"])
def test_failing_is_one_warning(
    where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(28, "No space left") if where == "write" else RuntimeError("no graph of this layer")

    if where == "write":
        monkeypatch.setattr("returnn_tf.engine.checkpoints.meta_graphs._write", fails)
    train(Build() if where == "write" else fails)
    out = capsys.readouterr().out
    assert out.count("The graph of the network can't be written beside the checkpoints") == 1
    assert ("no graph of this layer" in out or "No space left" in out) and "write_meta_graph = False" in out
    assert written() == {} and sorted(find_checkpoints("net/toy")) == [1, 2, 3]
    assert not [name for name in os.listdir("net") if name.startswith(".") and name not in RECORDS]


@pytest.mark.slow
def test_a_signal_does_not_wait_and_the_next_run_writes_what_lacks() -> None:
    """Also if there is nothing left to train."""
    stop = StopRequest()
    never = Build(threading.Event())

    def build(plan: Plan, config: Config) -> bytes:
        stop.signum = signal.SIGTERM
        return never(plan, config)

    begin = time.monotonic()
    with pytest.raises(Stopped):
        train(build, stop, num_epochs=500)
    assert time.monotonic() - begin < LONG and len(never.plans) == 1 and written() == {}
    assert not [thread for thread in threading.enumerate() if thread.name == "meta graph"]
    done = max(find_checkpoints("net/toy"), default=0)
    train(Build(), num_epochs=max(done, 1))
    assert sorted(written()) == ["toy.%03i.meta" % epoch for epoch in sorted(find_checkpoints("net/toy"))]
    for name in written():
        os.remove("net/" + name)
    train(Build(), num_epochs=max(done, 1))
    assert len(written()) == len(find_checkpoints("net/toy")) > 0


@pytest.mark.slow
def test_one_of_an_earlier_run_is_replaced() -> None:
    train(Build(), num_epochs=1)
    hidden = {"class": "linear", "n_out": 3, "activation": "tanh", "from": "data"}
    network = {"hidden": hidden, "output": {**LAYER, "from": "hidden"}}
    for name in os.listdir("net"):
        if not name.endswith(".meta"):
            os.remove("net/" + name)
    train(Build(), num_epochs=1, network=network)
    assert written() == {"toy.001.meta": "hidden/W,hidden/b,output/W,output/b"}


@pytest.mark.slow
def test_without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems have none: the content is written again."""
    link = os.link

    def links(source: str, target: str) -> None:
        if ".meta" in target:
            raise OSError(1, "Operation not permitted")
        link(source, target)

    monkeypatch.setattr(os, "link", links)
    train(Build(), num_epochs=2)
    assert len(written()) == 2 and {os.stat(path).st_nlink for path in pathlib.Path("net").glob("*.meta")} == {1}


@pytest.mark.slow
def test_nothing_is_built_without_checkpoints() -> None:
    build = Build()
    train(build, model=None)
    train(build, model="toy", write_meta_graph=False, num_epochs=1)
    graphs = MetaGraphs(None)
    net = Network.from_config(Config(OPTIONS), train=True)
    graphs.add(net.plan, net.config, "net/toy.001")
    graphs.finish()
    assert build.plans == [] and not list(pathlib.Path(".").rglob("*.meta"))
