"""A run which ends anywhere goes on there, and ends with the same numbers bit for bit."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.learning_rate.file import read_file
from tests.reliability import toy
from tests.results import MEASURED

pytestmark = pytest.mark.slow  # each starts processes

TERM = 143
EPOCH_STEPS = [52, 52, 53, 52]  # of the toy


def stopped(warm: toy.Warm, folder: pathlib.Path, *fault: Any, **changes: Any) -> None:
    """Run until SIGTERM stops it."""
    toy.write_config(folder, fault=fault, **changes)
    assert warm.run(folder) == TERM, toy.text_of(folder)


def went_on(warm: toy.Warm, folder: pathlib.Path, **changes: Any) -> None:
    """Continue the run to its end."""
    toy.write_config(folder, **changes)
    assert warm.run(folder) == 0, toy.text_of(folder)


@pytest.mark.parametrize("step", [1, sum(EPOCH_STEPS[:1]), sum(EPOCH_STEPS[:2]) + 17])
def test_a_run_stopped_after_a_step_ends_as_if_it_was_not(
    warm: toy.Warm, undisturbed: pathlib.Path, tmp_path: pathlib.Path, step: int
) -> None:
    """The first step, the last one of an epoch, and one in the middle of the gradient's accumulation."""
    stopped(warm, tmp_path, "step", step, "SIGTERM")
    (key,) = find_step_checkpoints(str(tmp_path / "net/toy"))
    assert key[1] == step
    went_on(warm, tmp_path)
    toy.assert_same_end(tmp_path, undisturbed)
    assert not find_step_checkpoints(str(tmp_path / "net/toy"))
    assert sorted(find_checkpoints(str(tmp_path / "net/toy"))) == [1, 2, 3, 4]


def test_several_stops_with_an_own_form_of_all_that_can_change(warm: toy.Warm, tmp_path: pathlib.Path) -> None:
    """Without learning-rate file, few checkpoints of epochs, two losses, pretraining, other lengths each epoch."""
    changes: dict[str, Any] = {
        "learning_rate_file": None,
        "save_interval": 3,
        "inc_seq_length": 10,
        "max_seq_length": 60,
        "learning_rate_schedule": {"class": "eden", "warmup": 30, "steps": 50, "epochs": 2},
    }
    changes["network"] = {
        "masked": {"class": "specaugment", "time_mask_size": 5, "feature_mask_size": 2, "from": "data"},
        "hidden": {"class": "linear", "activation": "tanh", "n_out": 20, "from": "masked", "dropout": 0.1},
        "aux": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden", "loss_scale": 0.3},
        "second": {"class": "linear", "activation": "tanh", "n_out": 20, "from": "hidden", "dropout": 0.1},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "second"},
    }
    changes["pretrain"] = "default"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    went_on(warm, whole, **changes)
    for fault in [("step", 20), ("step", 50), ("batch", 3)]:
        stopped(warm, parts, *fault, "SIGTERM", **changes)
    went_on(warm, parts, **changes)
    text = toy.text_of(parts)
    assert "while evaluating" in text and "Now pretrain step 1" in text
    one, other = (toy.final_weights(folder) for folder in (whole, parts))
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
    rates = [checkpoint.info(str(folder / "net/toy.004")).learning_rates for folder in (whole, parts)]  # type: ignore
    assert [without_times(text) for text in rates[:1]] == [without_times(text) for text in rates[1:]]


def without_times(text: str) -> list[str]:
    """Return the lines of a learning-rate file without times."""
    return [line for line in text.splitlines() if not MEASURED.search(line)]


def test_a_checkpoint_within_an_epoch_holds_all_of_the_state(warm: toy.Warm, tmp_path: pathlib.Path) -> None:
    stopped(warm, tmp_path, "step", 70, "SIGTERM")
    info = checkpoint.info(str(tmp_path / "net/toy.002.step70"))
    assert info is not None and info.progress is not None
    assert (info.epoch, info.step, info.progress["passed"]["steps"], info.progress["first_step"]) == (2, 70, 18, 52)
    assert info.progress["passed"]["sums"]["losses"]["output"] > 0
    assert info.settings["batch_size"] == "250" and info.progress["data"]["max_seqs"] == "20"
    assert "1: EpochData(learningRate=0.02" in info.learning_rates


def test_other_data_within_an_epoch_is_refused_and_the_epoch_can_be_done_anew(
    warm: toy.Warm, tmp_path: pathlib.Path
) -> None:
    """A moved file is no other data; another batch size is."""
    stopped(warm, tmp_path, "step", 70, "SIGTERM")
    toy.write_config(tmp_path, batch_size=300)
    assert warm.run(tmp_path) == 2
    text = toy.text_of(tmp_path)
    assert "net/toy.002.step70 was saved in the middle of epoch 2, after 18 batches" in text
    assert "batch_size (was 250, is 300)" in text and "delete the files net/toy.002.step*" in text
    for name in os.listdir(str(tmp_path / "net")):
        if name.startswith("toy.002.step"):
            os.remove(str(tmp_path / "net" / name))
    went_on(warm, tmp_path, batch_size=300, num_epochs=2)
    assert "Loaded net/toy.001\n" in toy.text_of(tmp_path)
    assert ": batch_size (was 250, is 300)" in toy.text_of(tmp_path)


def test_a_changed_config_is_told_and_others_may_look_at_a_checkpoint_within_an_epoch(
    warm: toy.Warm, tmp_path: pathlib.Path
) -> None:
    stopped(warm, tmp_path, "step", 60, "SIGTERM")
    went_on(
        warm, tmp_path, gradient_noise=0.0, learning_rate=0.01, num_epochs=2, task="eval", load="net/toy.002.step60"
    )
    assert "Loaded net/toy.002.step60" in toy.text_of(tmp_path)
    went_on(warm, tmp_path, gradient_noise=0.0, num_epochs=2)
    text = toy.text_of(tmp_path)
    assert "The config has changed since net/toy.002.step60 was saved: gradient_noise (was 0.01, is 0.0); and" in text
    other = tmp_path / "other"
    stopped(warm, tmp_path / "first", "step", 60, "SIGTERM")
    went_on(warm, other, load=str(tmp_path / "first/net/toy.002.step60"), num_epochs=2)
    assert "Resuming within epoch 2 after 8 batches" in toy.text_of(other)


def test_files_of_learning_rates_which_were_lost_come_back(warm: toy.Warm, tmp_path: pathlib.Path) -> None:
    stopped(warm, tmp_path, "step", 170, "SIGTERM")
    before = read_file(str(tmp_path / "newbob.data"))
    os.remove(str(tmp_path / "newbob.data"))
    went_on(warm, tmp_path)
    after = read_file(str(tmp_path / "newbob.data"))
    assert {epoch: after[epoch] for epoch in (1, 2, 3)} == {epoch: before[epoch] for epoch in (1, 2, 3)}
    assert "newbob.data lacks epoch 1, 2, 3; taken from net/toy.004.step170" in toy.text_of(tmp_path)


class Code(str):
    """A value in a config file that is written as code."""

    def __repr__(self) -> str:
        return str(self)


def test_a_run_on_a_stream_goes_on_in_the_middle_of_an_epoch(warm: toy.Warm, tmp_path: pathlib.Path) -> None:
    """Sequences of unknown number are read again up to there; what is random of them is the same again."""
    corpus = {"class": "Task12AXDataset", "num_seqs": 40, "seq_ordering": "random"}
    train = Code(
        '{"class": "PostprocessingDataset", "dataset": %r, '
        '"map_seq_stream": lambda sequences, rng, **_: (s for s in sequences if rng.random_sample() < 0.8)}' % corpus
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    went_on(warm, whole, train=train, num_epochs=2)
    stopped(warm, parts, "step", 7, "SIGTERM", train=train, num_epochs=2)
    stopped(warm, parts, "step", 30, "SIGTERM", train=train, num_epochs=2)
    went_on(warm, parts, train=train, num_epochs=2)
    one, other = (toy.final_weights(folder, 2) for folder in (whole, parts))
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
