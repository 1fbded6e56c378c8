"""The setting ``trackers``: what is recorded of a training, and that no tracker ends one."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.monitoring.reports import Reports
from returnn_tf.engine.monitoring.trackers.base import RunFacts, TrackedRun, TrackerOfSteps, flat
from returnn_tf.engine.monitoring.tracking import Tracking, path_of, trackers_of
from returnn_tf.engine.support.signals import Stopped
from returnn_tf.util.lazy_tf import tf
from tests.run_tasks import run_task

FACTS = RunFacts("x", {"num_epochs": 2}, {})
EPOCH = EpochData(
    0.1,
    {
        "train_score": 2.0,
        "dev_error": 0.5,
        ":meta:effective_learning_rate": 0.05,
        ":meta:global_train_step": 1,
        ":meta:memory:process": 100,
        ":meta:speed:frames_per_second": 10.0,
    },
)


class _Run(TrackedRun):
    def __init__(self, calls: list[Any], identity: str, fails_in: str) -> None:
        super().__init__(identity)
        self.calls, self.fails_in = calls, fails_in

    def _called(self, *what: Any) -> None:
        self.calls.append(what)
        if what[0] == self.fails_in:
            raise ConnectionError("no route to host\nsecond line")

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        self._called("epoch", epoch, dict(values))

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._called("step", step, dict(values))

    def end(self, status: str) -> None:
        self._called("end", status)


@dataclass(frozen=True)
class _Fake(TrackerOfSteps):
    calls: list[Any] = field(default_factory=list)
    fails_in: str = ""

    def begin(self, facts: RunFacts) -> TrackedRun:
        self.calls.append(("begin", facts.previous))
        if self.fails_in == "begin":
            raise OSError("the server is gone")
        return _Run(self.calls, facts.previous or "new", self.fails_in)


def _begun(trackers: Mapping[str, Any], model: str = "", *, resumed: bool = False) -> Tracking:
    tracking = Tracking(trackers, model)
    tracking.check("trackers", None)
    tracking.begin(lambda previous: RunFacts("x", {}, {}, None, previous), resumed=resumed)
    return tracking


def test_what_is_recorded() -> None:
    """Of an epoch the scores, the rate, memory and speed; of steps every n-th, where it is asked for."""
    epochs, both = _Fake(), _Fake(every_steps=3)
    tracking = _begun({"a": epochs, "b": both})
    assert [step for step in range(1, 8) if tracking.wants(step)] == [3, 6]
    tracking.step(3, {"loss": 1.5, "grad_norm": None})
    tracking.epoch(1, EPOCH)
    tracking.end(None)
    values = {
        "train_score": 2.0, "dev_error": 0.5, "learning_rate": 0.05, "memory/process": 100,
        "speed/frames_per_second": 10.0,
    }  # fmt: skip
    assert epochs.calls == [("begin", ""), ("epoch", 1, values), ("end", "finished")]
    assert both.calls == [("begin", ""), ("step", 3, {"step/loss": 1.5}), *epochs.calls[1:]]


@pytest.mark.parametrize("fails_in", ["begin", "step", "epoch", "end"])
def test_one_that_fails_is_off(fails_in: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With one warning; the other one goes on."""
    good, bad = _Fake(every_steps=1), _Fake(every_steps=1, fails_in=fails_in)
    tracking = _begun({"bad": bad, "good": good})
    for epoch in (1, 2):
        tracking.step(epoch, {"loss": 1.0})
        tracking.epoch(epoch, EPOCH)
    tracking.end(None)
    assert [call[0] for call in good.calls] == ["begin", "step", "epoch", "step", "epoch", "end"]
    out = capsys.readouterr().out
    assert out.count("Warning: The tracker bad fails and is now off; training continues: ") == 1
    assert "second line" not in out
    calls = [call[0] for call in bad.calls]
    assert calls.count(fails_in) == (2 if fails_in == "end" else 1)  # an attempt to end it properly
    assert fails_in in ("begin", "end") or bad.calls[-1] == ("end", "failed")


@pytest.mark.parametrize(
    "error, status",
    [
        (None, "finished"),
        (Stopped(signal.SIGTERM), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (RuntimeError(), "failed"),
    ],
)
def test_status(error: Optional[BaseException], status: str) -> None:
    fake = _Fake()
    _begun({"a": fake}).end(error)
    assert fake.calls[-1] == ("end", status)


def test_a_resumed_training_goes_on_with_its_runs(tmp_path: pathlib.Path) -> None:
    """Also if a tracker failed meanwhile; a training from scratch and a tracker that is new have new runs."""
    model = str(tmp_path / "net")
    _begun({"a": _Fake(), "b": _Fake()}, model)
    assert json.loads((tmp_path / ".net.trackers.json").read_text()) == {"a": "new", "b": "new"}
    pathlib.Path(path_of(model)).write_text('{"a": "id of a", "b": "id of b"}')
    trackers = {"a": _Fake(), "b": _Fake(fails_in="begin"), "c": _Fake()}
    _begun(trackers, model, resumed=True)
    assert [tracker.calls for tracker in trackers.values()] == [
        [("begin", "id of a")],
        [("begin", "id of b")],
        [("begin", "")],
    ]
    assert json.loads((tmp_path / ".net.trackers.json").read_text()) == {"a": "id of a", "b": "id of b", "c": "new"}
    fresh = _Fake()
    _begun({"a": fresh}, model)
    assert fresh.calls == [("begin", "")]


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "{"])
def test_a_damaged_file(content: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".net.trackers.json").write_text(content)
    fake = _Fake()
    _begun({"a": fake}, str(tmp_path / "net"), resumed=True)
    assert fake.calls == [("begin", "")]
    assert "is damaged, so trackers begin new runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given, words",
    [
        (["mlfow"], "unknown tracker 'mlfow'. Did you mean 'mlflow'"),
        ([3], 'expected names or dicts with "class"'),
        ([{"project": "x"}], 'expected names or dicts with "class"'),
        ([{"class": "wandb", "experiment": "x"}], "class 'wandb': unknown option 'experiment'"),
        ([{"class": "wandb", "mode": "of"}], "'mode'"),
        ([{"class": "mlflow", "every_steps": 0}], "'every_steps' must be at least 1"),
        ([{"class": "hparams", "every_steps": 5}], "class 'hparams': unknown option 'every_steps'"),
        (["trackio", "trackio"], "class 'trackio' is there twice"),
    ],
)
def test_mistakes(given: list[Any], words: str) -> None:
    with pytest.raises(ConfigError) as info:
        trackers_of(Config({"trackers": given}))
    assert words in str(info.value) and "'trackers'" in str(info.value)


def test_two_of_a_class_have_names() -> None:
    found = trackers_of(Config({"trackers": ["mlflow", {"class": "mlflow", "tracking_uri": "http://other"}, "wandb"]}))
    assert list(found) == ["mlflow", "mlflow 2", "wandb"]


@pytest.mark.parametrize("name", ["mlflow", "trackio", "wandb", "hparams"])
def test_without_the_package(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before training begins, the error names the extra; where nothing is recorded, it is not needed."""
    module = {"hparams": "tensorboard.plugins.hparams"}.get(name, name)
    monkeypatch.setitem(sys.modules, module, None)
    config: Any = {"trackers": [name], "tf_log_dir": str(tmp_path)}
    chief, other = SimpleNamespace(is_chief=True), SimpleNamespace(is_chief=False)
    with pytest.raises(
        ConfigError, match=r"(?s)'trackers'.*: %s needs a package .*pip install .*\[%s\]" % (name, name)
    ):
        Reports(Config(config), chief)  # type: ignore[arg-type]
    Reports(Config(config), other)  # type: ignore[arg-type]
    Reports(Config({**config, "dry_run": True}), chief)  # type: ignore[arg-type]


def test_without_a_package_of_ours() -> None:
    """One of a plug-in has no extra."""

    class _Missing(_Fake):
        def load(self) -> Any:
            raise ImportError("No module named 'other'")

    with pytest.raises(ConfigError, match=r"trackers: x needs a package \(No module named 'other'\): install it$"):
        Tracking({"x": _Missing()}).check("trackers", None)


def test_hparams_need_event_files() -> None:
    with pytest.raises(ConfigError, match="hparams needs event files: set tf_log_dir, or model"):
        Reports(Config({"trackers": ["hparams"]}), SimpleNamespace(is_chief=True))  # type: ignore[arg-type]


def test_flat() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a.b.c": 1, "a.d": {}, "e": [1]}


def _train(epochs: int, trackers: list[Any]) -> dict[str, str]:
    """Train in the working directory; return the identities of the runs."""
    data = {"class": "Task12AXDataset", "num_seqs": 8, "fixed_random_seed": 1}
    config: dict[str, Any] = {
        "behavior_version": 21,
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
        "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
        "train": data,
        "dev": data,
        "batch_size": 200,
        "learning_rate": 0.01,
        "num_epochs": epochs,
        "model": "out/net",
        "learning_rate_file": "out/rates",  # else the last epoch is evaluated again, and recorded twice
        "device": "cpu",
        "write_meta_graph": False,
        "trackers": trackers,
    }
    assert run_task(Config(config)) == 0
    found: dict[str, str] = json.loads(pathlib.Path("out/.net.trackers.json").read_text())
    return found


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for variable in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(variable, "1")  # else the tracker sets them
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(folder: pathlib.Path) -> None:
    """Two trainings, of which the second goes on with the run; a setting that changed is a tag."""
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    trackers = [{"class": "mlflow", "tracking_uri": "runs", "every_steps": 2}]
    identity = _train(1, trackers)["mlflow"]
    assert _train(2, trackers) == {"mlflow": identity}
    client = mlflow.MlflowClient(tracking_uri="runs")
    run = client.get_run(identity)
    assert run.info.status == "FINISHED" and run.data.params["num_epochs"] == "1"
    assert run.data.tags["resumed_with.num_epochs"] == "2"
    assert [metric.step for metric in client.get_metric_history(identity, "dev_score")] == [1, 2]
    assert {metric.step % 2 for metric in client.get_metric_history(identity, "step/loss")} == {0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio(folder: pathlib.Path) -> None:
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    name = _train(1, ["trackio"])["trackio"]
    assert _train(2, ["trackio"]) == {"trackio": name}
    with sqlite3.connect(str(folder / "trackio" / "returnn_tf.db")) as database:
        rows = database.execute("select run_name, metrics from metrics order by step").fetchall()
    database.close()
    assert {row[0] for row in rows} == {name}
    values = [json.loads(row[1]) for row in rows]
    assert [value["epoch"] for value in values if "dev_score" in value] == [1, 2]
    assert [value["status"] for value in values if "status" in value] == ["finished", "finished"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_beside_hparams(folder: pathlib.Path) -> None:
    """Two trackers at once; offline, both parts of the run have its id."""
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    pytest.importorskip("tensorboard", reason="the extra hparams is not installed")
    trackers = [{"class": "wandb", "mode": "offline"}, "hparams"]
    identities = _train(1, trackers)
    assert _train(2, trackers) == identities
    parts = [name for name in os.listdir("wandb") if name.startswith("offline-run-")]
    assert len(parts) == 2 and all(name.endswith("-" + identities["wandb"]) for name in parts)


@pytest.mark.slow
def test_hparams(folder: pathlib.Path) -> None:
    """The settings and the end are in the folder of the event files."""
    pytest.importorskip("tensorboard", reason="the extra hparams is not installed")
    from tensorboard.plugins.hparams import plugin_data_pb2

    _train(1, ["hparams"])
    (file,) = [path for path in (folder / "out" / "events").iterdir() if path.is_file()]
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            content = value.metadata.plugin_data.content
            found[value.tag] = plugin_data_pb2.HParamsPluginData.FromString(content)
    start = found["_hparams_/session_start_info"].session_start_info
    assert start.hparams["num_epochs"].number_value == 1 and start.hparams["train.num_seqs"].number_value == 8
    assert found["_hparams_/session_end_info"].session_end_info.status == 1  # STATUS_SUCCESS
