"""`Trainer.fit` trains as the command line does; callbacks see it, and end it; notebooks show the result."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any, Optional

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.training.callbacks import Callback, EarlyStopping, TrainedEpoch, TrainedStep, callbacks_of
from returnn_tf.engine.training.history import History
from returnn_tf.engine.training.trainer import Trainer
from tests.run_tasks import run_task

SETTINGS: dict[str, Any] = {
    "behavior_version": 21,
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {
        "hidden": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data", "dropout": 0.1},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
    },
    "optimizer": {"class": "adam"},
    "learning_rate": 0.02,
    "learning_rate_control": "newbob_rel",
    "batch_size": 300,
    "max_seqs": 5,
    "tf_log_dir": None,
    "device": "cpu",
}
TRAIN = {"class": "Task12AXDataset", "num_seqs": 12}
DEV = {"class": "Task12AXDataset", "num_seqs": 4, "fixed_random_seed": 1}


def trainer(**changes: Any) -> Trainer:
    config = Config({**SETTINGS, **changes})
    return returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, Any]]:
    """Return three epochs by the command line: its folder, and the parameters."""
    folder = tmp_path_factory.mktemp("reference")
    files = {"model": str(folder / "network"), "learning_rate_file": str(folder / "learning_rates")}
    config = Config({**SETTINGS, **files, "train": TRAIN, "dev": DEV, "num_epochs": 3, "write_meta_graph": False})
    assert run_task(config) == 0
    net = returnn_tf.Network.from_config(config)
    returnn_tf.load_checkpoint(net, str(folder / "network.003"))
    return folder, net.get_param_values()


def assert_same(net: Any, expected: dict[str, Any]) -> None:
    for name, value in net.get_param_values().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.slow
def test_same_numbers_as_the_command_line(reference: tuple[pathlib.Path, dict[str, Any]]) -> None:
    """Also if a second call goes on, without any file."""
    one = trainer()
    dev = returnn_tf.Dataset.from_config(DEV)
    assert sorted(one.fit(TRAIN, dev, epochs=2).epochs) == [1, 2]
    history = one.fit(TRAIN, dev, epochs=3)
    assert_same(one.net, reference[1])
    expected = History(returnn_tf.LearningRateControl.from_config(
        Config({"learning_rate_file": str(reference[0] / "learning_rates")})
    ).epochs)  # fmt: skip
    assert all(history[name] == expected[name] for name in ["learning_rate", *expected.names])
    assert history.names == expected.names and "dev_score" in history.names


@pytest.mark.slow
def test_a_folder_is_resumed(tmp_path: pathlib.Path, reference: tuple[pathlib.Path, dict[str, Any]]) -> None:
    """A callback ends the first call within an epoch; another trainer goes on there."""

    class Stops(Callback):
        seen: list[tuple[int, int, int]] = []
        ended: list[str] = []

        def on_step_end(self, step: TrainedStep) -> Optional[bool]:
            self.seen.append((step.epoch, step.step, step.global_step))
            assert step.result.losses["output"] > 0 and step.seq_tags and step.trainer.step_count == step.global_step
            return step.epoch == 2 and step.step == 2

        def on_train_end(self, reason: str) -> None:
            self.ended.append(reason)

    first = trainer().fit(TRAIN, DEV, epochs=3, folder=tmp_path, callbacks=[Stops()])
    steps = max(step for epoch, step, _ in Stops.seen if epoch == 1)
    assert Stops.seen[-1] == (2, 2, steps + 2) and len(Stops.ended) == 1 and sorted(first.epochs) == [1]
    assert "Stops asked for it; within an epoch, whose state is saved" in first.stopped
    assert [name for name in os.listdir(tmp_path) if "step" in name and name.endswith(".index")]
    two = trainer()
    assert sorted(two.fit(TRAIN, DEV, epochs=3, folder=str(tmp_path)).epochs) == [1, 2, 3]
    assert_same(two.net, reference[1])


@pytest.mark.slow
def test_interrupt_saves_and_is_raised(tmp_path: pathlib.Path) -> None:
    def interrupt(epoch: TrainedEpoch) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    one = trainer()
    with pytest.raises(KeyboardInterrupt, match="Stopped by SIGINT within the epoch; its state is saved"):
        one.fit(TRAIN, DEV, epochs=3, folder=tmp_path, callbacks=[interrupt])
    assert sorted(one.history.epochs) == [1] and signal.getsignal(signal.SIGINT) is before
    assert [name for name in os.listdir(tmp_path) if ".002.step" in name]


@pytest.mark.parametrize(
    "scores, stops", [([3.0, 2.0, 2.5, 2.25], True), ([3.0, 2.0, 2.5, 1.9], False), ([1.0], False)]
)
def test_early_stopping(scores: list[float], stops: bool) -> None:
    """It counts the epochs of the learning-rate file, so that resuming changes nothing."""
    epochs = {n: EpochData(0.1, {"dev_score": score}) for n, score in enumerate(scores, 1)}
    done: Any = TrainedEpoch(len(scores), {"dev_score": scores[-1]}, 0.1, epochs, None)  # type: ignore[arg-type]
    callback = EarlyStopping(patience=2)
    if stops:
        with pytest.raises(returnn_tf.StopTraining, match="not become better for 2 epochs; best: epoch 2"):
            callback.on_epoch_end(done)
    else:
        assert callback.on_epoch_end(done) is None
    with pytest.raises(ConfigError, match="no score 'dev_scor'. Did you mean 'dev_score'"):
        EarlyStopping("dev_scor").on_epoch_end(done)


def test_setting_callbacks(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a config end a training of the command line, which saves its last epoch; not the one of an interval."""
    path = str(tmp_path / "net")
    config = Config({**SETTINGS, "train": TRAIN, "num_epochs": 9, "model": path, "save_interval": 5})

    def stop_at_2(epoch: TrainedEpoch) -> bool:
        return epoch.epoch == 2

    config.set("callbacks", [stop_at_2])
    assert run_task(config) == 0
    assert "Training ends early: stop_at_2 asked for it; after epoch 2." in capsys.readouterr().out
    assert sorted(name for name in os.listdir(tmp_path) if name.endswith(".index")) == [
        "net.002.index",
        "net.002.state.index",
    ]


class _TwoArguments(Callback):
    def on_epoch_end(self, epoch: Any, logs: Any) -> None:  # type: ignore[override]
        pass


class _OfKeras(Callback):
    def on_batch_end(self, batch: Any) -> None:
        pass


@pytest.mark.parametrize(
    "given, words",
    [
        ([3], "expected objects of returnn_tf.Callback, or functions, not 3"),
        ([EarlyStopping], "write EarlyStopping()"),
        ([lambda: None], "the function <lambda> takes no argument, but is called with one argument, epoch. Write def"),
        ([lambda epoch, scores: None], "<lambda> takes 2 arguments (epoch, scores), but is called with one"),
        (
            [_TwoArguments()],
            "_TwoArguments.on_epoch_end takes 2 arguments (epoch, logs), but is called with one argument, "
            "epoch. Write def on_epoch_end(self, epoch).",
        ),
        ([_OfKeras()], "_OfKeras.on_batch_end is never called. Did you mean 'on_epoch_end'? Callbacks have on_train_"),
    ],
)
def test_wrong_callbacks(given: list[Any], words: str) -> None:
    with pytest.raises(ConfigError) as info:
        callbacks_of(Config({"callbacks": given}))
    assert words in str(info.value) and "'callbacks'" in str(info.value)


@pytest.mark.parametrize(
    "changes, arguments, words",
    [
        ({}, {"train": [{"data": 1}]}, "expected a Dataset"),
        ({"pretrain": {"construction_algo": lambda idx, net: {**net} if idx < 1 else None}}, {"train": TRAIN}, None),
        ({}, {}, "no dataset 'train'"),
    ],
)
def test_refused(changes: dict[str, Any], arguments: dict[str, Any], words: Optional[str]) -> None:
    other = {"hidden": {**SETTINGS["network"]["hidden"], "n_out": 2}, "output": SETTINGS["network"]["output"]}
    if words is None:
        changes["pretrain"]["construction_algo"] = lambda idx, net: other if idx == 0 else None
        words = "changes it from epoch to epoch"
    with pytest.raises(ConfigError, match=words):
        trainer(**changes).fit(**arguments, epochs=4)


def test_right_callbacks() -> None:
    """Defaults, any arguments, functions in C, and methods of other names are no mistakes."""

    class Own(Callback):
        def on_epoch_end(self, *args: Any) -> None:
            pass

        def on_train_end(self, why: str, more: int = 3) -> None:
            pass

        def on_new_best(self, one: int, two: int) -> None:
            pass

    assert callbacks_of(Config({"callbacks": [Own(), print, [].append, lambda epoch, more=1: None]}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "measure, network, words",
    [
        ("dev_scor", {}, "EarlyStopping: there is no score 'dev_scor'. Did you mean 'dev_score'?"),
        ("nope", {}, "no score 'nope'. Known: dev_error, dev_score, train_error, train_score."),
        ("eval_score", {}, "no score 'eval_score'. Did you mean"),
        ("dev_score", {"second": {"class": "softmax", "loss": "ce", "from": "data"}}, "'dev_score_(output|second)'"),
        ("dev_score_second", {"second": {"class": "softmax", "loss": "ce", "from": "data"}}, ""),
    ],
)
def test_scores_of_callbacks(measure: str, network: dict[str, Any], words: str) -> None:
    """A name is checked before the first step."""
    steps: list[TrainedStep] = []

    class Steps(Callback):
        def on_step_end(self, step: TrainedStep) -> None:
            steps.append(step)

    one = trainer(network={**SETTINGS["network"], **network})
    if not words:
        assert one.fit(TRAIN, DEV, epochs=1, callbacks=[EarlyStopping(measure)])[measure]
        return
    with pytest.raises(ConfigError, match=words):
        one.fit(TRAIN, DEV, epochs=1, callbacks=[Steps(), EarlyStopping(measure)])
    assert not steps


@pytest.mark.slow
def test_network_of_another_config() -> None:
    wider = {**SETTINGS["network"], "hidden": {**SETTINGS["network"]["hidden"], "n_out": 7}}
    net = returnn_tf.Network.from_config(Config({**SETTINGS, "network": wider}), train=True)
    with pytest.raises(ConfigError, match="not that of its config: hidden/W, hidden/b, output/W"):
        returnn_tf.Trainer(net, Config(SETTINGS)).fit(TRAIN, epochs=1)


@pytest.mark.slow
def test_history_in_notebooks() -> None:
    """The best value of each score is bold; curves are a picture."""
    history = History(
        {1: EpochData(0.1, {"dev_score": 2.0}), 2: EpochData(0.05, {"dev_score": 2.5}), 3: EpochData(0.01)}
    )
    assert history["dev_score"] == {1: 2.0, 2: 2.5} and history.best("dev_score") == (1, 2.0) and len(history) == 2
    text = history._repr_html_()
    assert "<b>2</b>" in text and "<b>2.5</b>" not in text and ">2.5<" in text
    assert repr(history) == "<History 2 epochs, dev_score 2.5 (best: epoch 1)>"
    with pytest.raises(ConfigError, match="Did you mean 'dev_score'"):
        history["dev_scor"]
    pytest.importorskip("matplotlib")
    assert history.plot()._repr_png_().startswith(b"\x89PNG")
