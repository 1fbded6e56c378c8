"""The tasks on a small problem, as a user runs them: training, going on, evaluation, forwarding, clean up."""

from __future__ import annotations

import ast
import errno
import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.monitoring import run_settings
from returnn_tf.engine.support.nonfinite import NonFiniteError
from returnn_tf.util.lazy_tf import tf
from tests.results import reproducible
from tests.run_tasks import run_task

EXTERN_DATA: dict[str, Any] = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
TEXT = """
train = {"class": "Task12AXDataset", "num_seqs": 12}
dev = {"class": "Task12AXDataset", "num_seqs": 4, "fixed_random_seed": 1}
eval_datasets = {"devtrain": {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 3}}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
}
batch_size = 300
max_seqs = 5
optimizer = {"class": "adam"}
learning_rate = 0.02
learning_rate_control = "newbob_rel"
learning_rate_file = "newbob.data"
model = "net/network"
num_epochs = 3
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.config").write_text(TEXT)
    return tmp_path


def run(**changes: Any) -> int:
    config = Config.from_file("my.config")
    config.update(changes)
    return run_task(config)


@pytest.mark.slow
def test_status_tells_an_error_before_the_first_step(capsys: Any) -> None:
    """Also of a run that goes on: the status file of the one before says that it has finished."""
    run(num_epochs=1)
    network = {**Config.from_file("my.config").typed("network")}
    network["hidden"] = {**network["hidden"], "n_out": 7}
    with pytest.raises(DataError, match="shape"):
        run(num_epochs=2, network=network)
    capsys.readouterr()
    assert main(["status", "net"]) == 0
    text = capsys.readouterr().out
    assert "net/network: ended (DataError: " in text and "stored [9, 5]" in text and "dead" not in text


@pytest.mark.slow
def test_a_full_disk_is_no_mistake_of_the_config(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Exit code 1, and nothing of the file is left."""
    run(num_epochs=1)
    before = sorted(os.listdir("."))
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):

        def full(handle: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            why = "can't be written: %s" % os.strerror(number)
            if number == errno.ENOSPC:
                with pytest.raises(DataError, match="eval_output_file = 'scores' " + why):
                    run(task="eval", eval_output_file="scores")
            for command in (
                ["plot", "newbob.data", "curve.png"],
                ["report", "net", "--no-model", "--output", "r.html"],
            ):
                assert main(command) == 1
                error = capsys.readouterr().err
                assert why + ". " in error and "run the same command again" in error
            values, info = {"W": np.zeros(3, "float32")}, checkpoint.CheckpointInfo(1, 5, 1)
            with pytest.raises(DataError, match="The checkpoint new " + why):
                checkpoint.save("new", values, {}, info, retry_waits=())
        assert sorted(os.listdir(".")) == before


def test_an_error_of_tensorflow_while_saving_is_told_without_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{{function_node __wrapped__SaveV2_dtypes_5_device_/job:localhost}} net/m.data; File too large [Op:SaveV2]"

    def full(*args: Any) -> None:
        raise tf.errors.OutOfRangeError(None, None, text)

    monkeypatch.setattr(checkpoint, "write_bundle", full)
    with pytest.raises(DataError) as info:
        checkpoint.save("m", {}, {}, checkpoint.CheckpointInfo(1, 5, 1), retry_waits=())
    assert str(info.value).startswith("The checkpoint m can't be written: net/m.data; File too large")
    assert "{{" not in str(info.value) and "Op:" not in str(info.value)


RATES = "{1: EpochData(learningRate=0.02, error={}),\n2: EpochData(learningRate=%s, error={}),\n}\n"


@pytest.mark.parametrize(
    "rate, message",
    [
        ("nan", "the rate of epoch 2, nan, is not a finite number of 32 bits. Correct it, or remove the entry"),
        ("1e300", "the rate of epoch 2, 1e+300, is not a finite number of 32 bits"),
        ("float('-inf')", "the rate of epoch 2, -inf, is not a finite number"),
        ("-0.01", "the rate of epoch 2, -0.01, is negative"),
    ],
)
def test_rates_that_no_training_can_have(rate: str, message: str) -> None:
    """In the file, in the setting, or made by a function: refused, and no layer is blamed."""
    pathlib.Path("newbob.data").write_text(RATES % rate)
    with pytest.raises(DataError, match=re.escape("learning-rate file newbob.data: " + message)):
        run()
    assert pathlib.Path("newbob.data").read_text() == RATES % rate and not os.path.exists("net")
    os.remove("newbob.data")
    value = float(rate.replace("float('", "").rstrip("')"))
    with pytest.raises(ConfigError, match="learning_rates.*the rate of epoch 2, "):
        run(learning_rates=[0.02, value])

    def function(*, network: Any, global_train_step: Any, learning_rate: Any) -> Any:
        return tf.where(global_train_step == 5, tf.cast(tf.constant(value, "float64"), "float32"), learning_rate)

    with pytest.raises(DataError) as info:
        run(dynamic_learning_rate=function, save_every_steps=1)
    text = "Step 5: the learning rate can't be used: that of the epoch is 0.02, and dynamic_learning_rate makes "
    assert str(info.value).startswith(text) and "NaN" not in str(info.value)
    last = everything(2, ".step6") if os.path.exists("net/network.002.step6.index") else everything(2, ".step5")
    assert all(np.isfinite(values).all() for values in last.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "interval, message",
    [
        (1000, "Warning: accum_grad_multiple_step = 1000: after all 4 steps of the training, no update was due, so"),
        (3, "accum_grad_multiple_step = 3: the gradients of the last 1 of 4 steps are not applied."),
        (2, None),
    ],
)
def test_gradients_that_are_left_at_the_end_are_told(interval: int, message: Any, capsys: Any) -> None:
    run(accum_grad_multiple_step=interval, num_epochs=1)
    text = " ".join(capsys.readouterr().out.split())
    assert message in text if message else "accum_grad" not in text


def everything(epoch: int, within: str = "") -> dict[str, np.ndarray]:
    prefix = "net/network.%03i%s" % (epoch, within)
    return {**checkpoint.read(prefix), **checkpoint.read_state(prefix)}


def test_training_writes_checkpoints_scores_and_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert sorted(find_checkpoints("net/network")) == [1, 2, 3]
    epochs = read_file("newbob.data")
    assert sorted(epochs) == [1, 2, 3]
    names = ["%s_%s" % (name, kind) for name in ("train", "dev", "devtrain") for kind in ("score", "error")]
    assert set(names) <= set(epochs[3].error)
    assert epochs[3].error["train_score"] < epochs[1].error["train_score"]
    assert epochs[2].error[":meta:global_train_step"] == epochs[1].error[":meta:epoch_num_train_steps"]
    assert (
        epochs[3].error[":meta:speed:frames_per_second"] > 0 and 0 < epochs[3].error[":meta:speed:compute_share"] <= 1
    )
    assert epochs[3].error[":meta:memory:process"] > 1 << 20
    assert sorted(os.listdir("net/events")) == ["dev", "devtrain", "train"]
    facts = run_settings.read(run_settings.path_of("net/network"))
    assert facts["network"]["hidden"]["n_out"] == 5 and facts["settings"]["train"]["num_seqs"] == 12
    assert facts["files"] == [os.path.abspath("my.config")]
    text = capsys.readouterr().out
    for expected in (
        "start train epoch 1, learning rate 0.02\n",
        "train epoch 3, finished after ",
        "% computing time)\n",
        "epoch 3 score: 0.",
        "'dev' eval epoch 3, finished after 2 steps",
        "dev: score 0.",
        "Saved net/network.003\n",
        "% waiting for data, ",
    ):
        assert expected in text
    assert re.search(
        r"^dev_score 0\.\d+: (best so far \(previous best:|not better than) 0\.\d+ in epoch 1\)?$", text, re.M
    )
    assert re.search(r"^train epoch 1, .* compiling, .*, memory .*, 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$", text, re.M)
    assert " compiling" not in text[text.index("start train epoch 2") :]
    for line in re.findall(r"^(?:epoch \d |dev: ).*", text, re.M):
        assert all(len(number.replace(".", "").lstrip("0")) <= 6 for number in re.findall(r"\d+\.\d+", line))


def test_the_log_tells_the_rates_of_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """If another setting changes that of the epoch."""
    run(num_epochs=2, dynamic_learning_rate=lambda *, global_train_step, learning_rate, **_: learning_rate * 0.1)
    text = capsys.readouterr().out
    assert "start train epoch 1, learning rate 0.02\n" in text
    assert text.count(", learning rate of the steps 0.002, ") == 2


@pytest.mark.slow
def test_names_of_several_losses(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the learning-rate file: those of the layers."""
    hidden = {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}
    run(num_epochs=1, network={"a": hidden, "output": hidden})
    number = r"\d\.\d+"
    pattern = r"^epoch 1 score: a %s output %s error: a %s output %s elapsed: " % ((number,) * 4)
    text = capsys.readouterr().out
    assert re.search(pattern, text, re.M)
    assert re.search(
        r"^dev: score a %s output %s error a %s output %s devtrain: score a " % ((number,) * 4), text, re.M
    )


@pytest.mark.slow
def test_a_run_which_goes_on_ends_with_the_same_numbers() -> None:
    run(num_epochs=3)
    whole = everything(3)
    scores = read_file("newbob.data")
    for name in os.listdir("."):
        if name != "my.config":
            os.rename(name, "first-" + name)
    run(num_epochs=1)
    run(num_epochs=3)
    again = everything(3)
    assert sorted(whole) == sorted(again)
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
    for epoch, data in read_file("newbob.data").items():
        assert reproducible(data.error) == reproducible(scores[epoch].error)


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    run(num_epochs=2)
    path = pathlib.Path("net/network.002.data-00000-of-00001")
    path.write_bytes(path.read_bytes()[:-3])
    run(num_epochs=3)
    text = capsys.readouterr().out
    assert "The checkpoint net/network.002 is skipped: " in text and "Loaded net/network.001" in text
    assert sorted(find_checkpoints("net/network")) == [1, 2, 3] and checkpoint.validate("net/network.002") is None


@pytest.mark.slow
def test_an_epoch_without_scores_is_evaluated_when_going_on() -> None:
    run(num_epochs=1)
    text = pathlib.Path("newbob.data").read_text()
    expected = read_file("newbob.data")[1].error
    pathlib.Path("newbob.data").write_text("\n".join(line for line in text.splitlines() if "'dev_" not in line))
    assert "dev_score" not in read_file("newbob.data")[1].error
    run(num_epochs=1)
    assert read_file("newbob.data")[1].error["dev_score"] == pytest.approx(expected["dev_score"], rel=1e-5)


@pytest.mark.slow
def test_a_learning_rate_file_of_another_run_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run(num_epochs=2)
    assert "newbob.data has" not in capsys.readouterr().out
    run(num_epochs=3)
    assert "newbob.data" not in capsys.readouterr().out
    run(num_epochs=1, model="other/network", learning_rate=0.005, random_seed=7)
    out = capsys.readouterr().out
    assert "newbob.data has the rates and scores of epoch 1 to 3 from an earlier run" in out
    assert "To start over, delete or move the file, or set another learning_rate_file" in out
    assert "start train epoch 1, learning rate 0.02" in out
    run(num_epochs=4)
    out = capsys.readouterr().out
    assert "net/network.003 have different rates or training scores of epoch 1, so the file is that of another" in out


@pytest.mark.slow
def test_only_some_epochs_are_saved_and_old_ones_deleted() -> None:
    run(num_epochs=5, save_interval=2, tf_log_dir=None, save_epoch1_initial_model=True)
    assert sorted(find_checkpoints("net/network")) == [0, 2, 4, 5] and not os.path.exists("net/events")
    assert run(task="cleanup_old_models", cleanup_old_models={"keep_last_n": 1, "keep_best_n": 0, "keep": [0]}) == 0
    assert sorted(find_checkpoints("net/network")) == [0, 5]


@pytest.mark.slow
def test_clean_up_while_training_keeps_two() -> None:
    run(num_epochs=4, cleanup_old_models={"keep_last_n": 1, "keep_best_n": 0, "keep": []})
    assert sorted(find_checkpoints("net/network")) == [3, 4]


@pytest.mark.slow
def test_clean_up_that_a_killed_run_has_not_done_is_done_when_going_on() -> None:
    """It follows the last evaluation, so that a run killed within that has all epochs, and nothing to train."""
    run(num_epochs=4)
    run(num_epochs=4, cleanup_old_models={"keep_last_n": 1, "keep_best_n": 0, "keep": []})
    assert sorted(find_checkpoints("net/network")) == [3, 4]


@pytest.mark.slow
def test_evaluation_of_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    run(num_epochs=2)
    trained = read_file("newbob.data")[1].error
    assert run(task="eval", load_epoch=1, eval_output_file="scores.txt") == 0
    scores = ast.literal_eval(pathlib.Path("scores.txt").read_text())
    assert scores["dev"]["score"]["cost:output"] == pytest.approx(trained["dev_score"], rel=1e-5)
    assert sorted(scores) == ["dev", "devtrain"]
    assert "Loaded net/network.001" in capsys.readouterr().out


@pytest.mark.slow
def test_initial_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(task="initialize_model", model="net/init") == 0
    values = checkpoint.read("net/init")
    assert values["global_step"] == 0 and values["hidden/W"].shape == (9, 5)
    run(load="net/init", num_epochs=1)
    assert "Loaded net/init\n" in capsys.readouterr().out
    assert sorted(find_checkpoints("net/network")) == [1]


@pytest.mark.slow
def test_a_nan_in_the_data_stops_with_step_and_sequence_and_keeps_the_checkpoint() -> None:
    data = [{"data": np.ones((4, 9), "float32"), "classes": np.zeros(4, "int32")} for _ in range(4)]
    good = {"class": "StaticDataset", "data": data, "output_dim": {"data": (9, 2), "classes": (2, 1)}}
    run(num_epochs=1, train=good, max_seqs=1)
    before = everything(1)
    data[2]["data"][1, 3] = float("nan")
    with pytest.raises(NonFiniteError) as info:
        run(num_epochs=2, train=good, max_seqs=1)
    assert "Step 6: " in str(info.value) and "seq-2" in str(info.value) and "'data'" in str(info.value)
    assert sorted(find_checkpoints("net/network")) == [1]
    for name, value in everything(1).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"train": None}, ConfigError, "no dataset 'train'"),
        ({"optimizer": {"class": "adamm"}}, ConfigError, "Did you mean 'adam'"),
        ({"model": "my.config/net"}, ConfigError, "can't be written"),
        (
            {"learning_rate_file": "my.config/rates"},
            ConfigError,
            "learning_rate_file 'my.config/rates' can't be written",
        ),
        ({"tf_log_dir": "my.config"}, ConfigError, "tf_log_dir 'my.config' can't be created: File exists."),
        ({"learning_rate": -1}, ConfigError, "'learning_rate' must be at least 0, got -1"),
        ({"requeue_exit_code": "soon"}, ConfigError, "'requeue_exit_code': expected a whole number, got 'soon'"),
        ({"num_epochs": -1}, ConfigError, "'num_epochs' must be from 0 to 100000, got -1"),
        (
            {"batch_size": "abc"},
            ConfigError,
            "must be a number or 'auto', for all data keys or in a dict by key, got 'abc'",
        ),
        ({"batch_size": {"dta": 3}}, ConfigError, "no data key 'dta'. Did you mean 'data'?"),
        ({"dev": "Task12AXDataset:num_seqs=0"}, DataError, "The dataset 'dev' is empty"),
        (
            {"extern_data": {**EXTERN_DATA, "data": {"dim": 7}}},
            ConfigError,
            "The dataset 'train' has 9 features for data key 'data', but extern_data declares 7. "
            "Write extern_data['data'] = {'dim': 9}",
        ),
        (
            {"extern_data": {**EXTERN_DATA, "classes": {"dim": 2}}},
            ConfigError,
            "gives label indices of 2, 1 axis with time for data key 'classes', but extern_data declares 2 features, "
            "2 axes with time. Write extern_data['classes'] = {'dim': 2, 'sparse': True}",
        ),
        ({"eval": None, "task": "forward", "load": "none"}, ConfigError, "there is no checkpoint 'none'"),
        ({"task": "eval"}, ConfigError, "no checkpoint to load"),
        ({"task": "forward", "eval": "Task12AXDataset:num_seqs=1"}, ConfigError, "no checkpoint to load"),
        ({"task": "trainn"}, ConfigError, "Did you mean 'train'"),
        ({"load": "net/other.003"}, ConfigError, "no checkpoint"),
        ({"max_seq_length": 1}, DataError, "there is no batch. Either the dataset has no sequences, or max_seq_length"),
        ({"use_last_best_model": {"modulo": 0}}, ConfigError, "'modulo' must be at least 1, got 0"),
        ({"network": {"output": {"class": "linear", "n_out": 2, "from": "data"}}}, ConfigError, "no loss"),
        (
            {"network": {"output": {"class": "softmax", "loss": "ce", "from": "data", "loss_scale": 0}}},
            ConfigError,
            "All losses ('output') have the scale 0, so there is nothing to train. Change a 'loss_scale'",
        ),
    ],
)
def test_mistakes_are_explained_and_nothing_is_written(changes: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error) as info:
        run(**changes)
    assert message in str(info.value)
    assert not find_checkpoints("net/network") and not os.path.exists("newbob.data")


@pytest.mark.slow
def test_a_checkpoint_of_another_network_is_an_error() -> None:
    run(num_epochs=1)
    network = dict(Config.from_file("my.config").typed("network"))
    network["hidden"] = {**network["hidden"], "n_out": 6}
    with pytest.raises(DataError) as info:
        run(network=network)
    assert "shape: hidden/W is [9, 6] here, stored [9, 5]" in str(info.value)


def test_forwarding_writes_the_outputs_by_sequence() -> None:
    run(num_epochs=1)
    data = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
    assert run(task="forward", eval=data, output_file="out.hdf", forward_output_layer="hidden") == 0
    with pytest.raises(ConfigError, match="exists already"):
        run(task="forward", eval=data, output_file="out.hdf")
    net = Network.from_config(Config.from_file("my.config"))
    net.set_param_values({name: value for name, value in everything(1).items() if name in net.params})
    written = {seq.tag: seq.data["data"] for seq in Dataset.from_config("out.hdf").sequences()}
    for seq in Dataset.from_config(data).sequences():
        hidden = np.tanh(seq.data["data"] @ net.params["hidden/W"].numpy() + net.params["hidden/b"].numpy())
        np.testing.assert_allclose(written[seq.tag], hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        (
            {"task": "forward", "forward_data": "dev", "output_file": "my.config/out.hdf"},
            DataError,
            "can't be written: File exists. Choose another path",
        ),
        ({"task": "forward", "forward_data": "dve"}, ConfigError, "no dataset 'dve'. Did you mean 'dev'? Task forward"),
        ({"task": "forward"}, ConfigError, "uses the dataset named by forward_data, 'eval' by default"),
        (
            {"task": "forward", "forward_data": "dev", "forward_output_layer": "hiden"},
            ConfigError,
            "Did you mean 'hidden'",
        ),
        (
            {"task": "eval", "eval_output_file": "my.config/scores"},
            ConfigError,
            "eval_output_file = 'my.config/scores' can't be written",
        ),
    ],
)
def test_mistakes_with_a_trained_model(changes: dict[str, Any], error: Any, message: str) -> None:
    run(num_epochs=1)
    before = sorted(os.listdir("."))
    with pytest.raises(error) as info:
        run(**changes)
    assert message in str(info.value)
    assert sorted(os.listdir(".")) == before
