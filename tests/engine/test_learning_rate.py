"""Learning-rate control against recorded runs; its file; errors."""

import errno
import glob
import json
import math
import os
import threading

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.learning_rate.control import LearningRateControl, choose_measure
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, format_epochs, parse, read_file, update_file
from returnn_tf.engine.learning_rate.schemes import SCHEMES
from tests.waiting import LONG

DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")
CASES = sorted(glob.glob(os.path.join(DATA, "lr_control", "*.json")))
OUTPUTS = os.path.join(DATA, "outputs")


def load(path):
    """Return a JSON file."""
    with open(path, encoding="utf8") as f:
        return json.load(f)


SIMULATIONS = load(os.path.join(OUTPUTS, "learning_rate_control.json"))
BEST = load(os.path.join(OUTPUTS, "best_epoch.json"))


@pytest.mark.parametrize("path", CASES, ids=[os.path.basename(p)[:-5] for p in CASES])
def test_recorded_case(path, tmp_path, monkeypatch):
    """Rates, the score that decides, the file and what a restart makes of it."""
    monkeypatch.chdir(tmp_path)
    case = load(path)
    with open("x.config", "w", encoding="utf8") as f:
        f.write(case["config_text"])
    config = Config.from_file("x.config")
    filename = config.str("learning_rate_file")
    if "initial_file" in case:
        with open(filename, "w", encoding="utf8") as f:
            f.write(case["initial_file"])
    control = LearningRateControl.from_config(config)
    rates, keys = [], []
    for epoch, errors in enumerate(case["epoch_errors"], case["first_epoch"]):
        rates.append(control.learning_rate(epoch))
        if errors is not None:
            control.set_errors(epoch, errors)
        keys.append(control.error_key(epoch))
    if "file_content" in case:
        with open(filename, encoding="utf8") as f:
            assert f.read() == case["file_content"]
    next_epoch = case["first_epoch"] + len(rates)
    assert control.learning_rate(next_epoch) == case["next_learning_rate"]
    assert rates == case["learning_rates"]
    assert keys == case["error_keys"]
    assert control.last_best_epoch() == case["last_best_epoch_excluding_final"]
    if "file_parsed" in case:
        parsed = {str(e): (d.learning_rate, d.error) for e, d in control.epochs.items()}
        assert parsed == {e: (d["learningRate"], d["error"]) for e, d in case["file_parsed"].items()}
        again = LearningRateControl.from_config(config)
        for epoch, rate in case["after_reload_learning_rates"].items():
            assert again.learning_rate(int(epoch)) == rate


@pytest.mark.parametrize("simulation", SIMULATIONS["simulations"], ids=lambda s: s["name"])
def test_simulation(simulation):
    """Rates over 16 epochs."""
    control = LearningRateControl.from_config(Config(simulation["options"]))
    rates = []
    for epoch, score in enumerate(SIMULATIONS["scores"], 1):
        rates.append(control.learning_rate(epoch))
        control.set_errors(epoch, {"train_score": score - 0.3, "dev_score": score, "dev_error": score / 10})
    rates.append(control.learning_rate(len(rates) + 1))
    assert rates == simulation["learning_rate_per_epoch_from_1"]
    keys = {control.error_key(epoch) for epoch in range(1, len(rates))}
    assert sorted(keys) == simulation["error_keys_used"]


@pytest.mark.parametrize("name, kind", sorted(SIMULATIONS["type_names"].items()))
def test_scheme_names(name, kind):
    """The same names are known and unknown."""
    if kind == "error":
        with pytest.raises(ConfigError, match="learning_rate_control.*unknown.*Did you mean 'newbob"):
            LearningRateControl.from_config(Config({"learning_rate_control": name}))
    else:
        assert SCHEMES.find(name)


@pytest.mark.parametrize("name", ["newbob_example.data", "newbob_multi_output.data", "run_newbob.data"])
def test_recorded_file_is_written_the_same(name, tmp_path):
    """Read and written again, a file stays the same, byte for byte."""
    path = os.path.join(OUTPUTS, name)
    update_file(str(tmp_path / "out"), lambda _: read_file(path))
    with open(path, encoding="utf8") as f:
        assert (tmp_path / "out").read_text(encoding="utf8") == f.read()
    assert os.listdir(str(tmp_path)) == ["out"]


@pytest.mark.parametrize("name, key", sorted(BEST["error_key_for"].items()))
def test_measure_of_recorded_file(name, key):
    """Which score decides."""
    assert choose_measure(read_file(os.path.join(OUTPUTS, name))[1].error, []) == key


@pytest.mark.parametrize("arguments, found", sorted(BEST["get_best_model_epoch_tool"].items()))
def test_best_epochs(arguments, found):
    """The best epochs of a score, best first."""
    words = arguments.split()
    epochs = read_file(os.path.join(OUTPUTS, words[1]))
    key = words[words.index("--key") + 1] if "--key" in words else choose_measure(epochs[1].error, [])
    assert key == found["key_used"]
    expected = found["best_first_epoch_and_value"]
    best = best_epochs(epochs, key, len(expected))
    assert [[e, epochs[e].error[key]] for e in best] == expected


@pytest.mark.parametrize("options, expected", sorted(BEST["last_best_epoch"].items()))
def test_last_best_epoch(options, expected):
    """With all its options."""
    options = json.loads(options)
    if "only_last_epochs" in options:
        options["only_last_n"] = options.pop("only_last_epochs")
    filename = os.path.join(OUTPUTS, "newbob_example.data")
    control = LearningRateControl.from_config(Config({"learning_rate_file": filename}))
    assert control.last_best_epoch(**options) == expected


def test_nonfinite_values_survive(tmp_path):
    """NaN and Inf are written as float('nan'), and read in all forms which occur."""
    path = str(tmp_path / "f")
    update_file(path, lambda _: {1: EpochData(0.1, {"dev_score": math.nan, "dev_error": -math.inf})})
    with open(path, encoding="utf8") as f:
        assert "float('nan')" in f.read()
    data = read_file(path)[1]
    assert math.isnan(data.error["dev_score"]) and data.error["dev_error"] == -math.inf
    data = parse("{1: EpochData(learningRate=np.float64(0.5), error={'a': nan, 'b': -np.inf, 'c': [1, 2.]}), }")[1]
    assert data.learning_rate == 0.5 and math.isnan(data.error["a"])
    assert data.error["b"] == -math.inf and data.error["c"] == [1, 2.0]
    assert parse("") == {} and format_epochs({}) == "{\n}\n"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/x')",
        "{1: __import__('os').system('true')}",
        "{1: EpochData(learningRate=open('x'), error={})}",
        "{1: EpochData(learningRate=[].__class__, error={})}",
        "{1: EpochData(learningRate=0.1, error={1: 2})}",
        "{1: EpochData(learningRate='a', error={})}",
        "{1: EpochData(0.1, {}, 3)}",
        "{1: EpochData(learningRate=0.1, other=3)}",
        "{'a': EpochData(learningRate=0.1, error={})}",
        "{1: 0.1}",
        "[1, 2]",
        "{1: EpochData(learningRate=0.1, error={",
        "{**x}",
        "float('a')",
        "(" * 3000,
    ],
)
def test_file_is_only_data(text, tmp_path):
    """Nothing in it is executed; anything unknown is an error that names the file."""
    path = tmp_path / "lr"
    path.write_text(text, encoding="utf8")
    with pytest.raises(DataError, match="learning-rate file .*lr"):
        read_file(str(path))


def test_file_that_cannot_be_written(tmp_path):
    """The old file stays, the error names the setting."""
    with pytest.raises(ConfigError, match="learning_rate_file.*can't be written"):
        LearningRateControl.from_config(Config({"learning_rate_file": str(tmp_path / "no" / "f")})).set_errors(1, {})
    with pytest.raises(DataError, match="not found"):
        read_file(str(tmp_path / "none"))


@pytest.mark.parametrize("value", [[0.1, "a"], {"x": 0.1}, "fast"])
def test_wrong_rates(value):
    """learning_rates of a wrong type."""
    with pytest.raises(ConfigError, match="learning_rates"):
        LearningRateControl.from_config(Config({"learning_rates": value}))


def test_given_rates_for_later_epochs():
    """A run which starts later goes on from the last given rate; asking twice gives the same."""
    control = LearningRateControl.from_config(Config({"learning_rates": [0.3, 0.2, 0.1], "learning_rate": 1.0}))
    assert control.learning_rate(5) == 0.1 and control.learning_rate(2) == 0.2 and control.learning_rate(5) == 0.1


@pytest.mark.parametrize("count", [2, 3])
def test_a_new_rate_stays_for_a_number_of_epochs(count):
    """With scores that grow, the rate decays as soon as it may."""
    options = {"learning_rate": 1.0, "learning_rate_control": "newbob", "learning_rate_decay": 0.5}
    control = LearningRateControl.from_config(
        Config({**options, "learning_rate_control_min_num_epochs_per_new_lr": count})
    )
    rates = []
    for epoch in range(1, 3 * count + 1):
        rates.append(control.learning_rate(epoch))
        control.set_errors(epoch, {"dev_score": float(epoch)})
    assert rates == [1.0] * count + [0.5] * count + [0.25] * count


def test_numpy_scores_are_plain_numbers(tmp_path):
    """The file holds no numpy types."""
    path = str(tmp_path / "f")
    control = LearningRateControl.from_config(Config({"learning_rate_file": path}))
    control.set_errors(1, {"dev_score": np.float64(2.5), ":meta:steps": np.int64(3)})
    with open(path, encoding="utf8") as f:
        assert "error={':meta:steps': 3, 'dev_score': 2.5}" in f.read()


def test_several_measures():
    """The first one that is there, with _output appended, too."""
    errors = {"dev_score": 1.0, "dev_error_output": 2.0, ":meta:x": 3}
    assert choose_measure(errors, ["dev_wer", "dev_error"]) == "dev_error_output"
    assert choose_measure({":meta:x": 3}, []) is None
    assert choose_measure({"b_score": 1.0, "a_score": 2.0}, []) == "a_score"
    assert choose_measure({"dev_score_output/a": 1, "dev_score_output/output_b": 1}, []) == "dev_score_output/output_b"


def test_what_others_write_stays(tmp_path):
    """As of an evaluation beside a training: each adds what it has found to what is in the file then."""
    path = str(tmp_path / "rates")
    config = Config({"learning_rate": 0.5, "learning_rate_file": path})
    training = LearningRateControl.from_config(config)
    training.set_errors(1, {"train_score": 1.0, "dev_score": 2.0})
    other = LearningRateControl.from_config(config)
    training.set_errors(2, {"train_score": 0.5})
    other.set_errors(1, {"eval_score": 3.0, "dev_score": 4.0})
    training.set_errors(2, {"dev_score": 1.5})
    training.set_errors(3, {"train_score": 0.25})
    other.set_errors(3, {"eval_score": 3.5})
    found = {epoch: data.error for epoch, data in read_file(path).items()}
    assert found == {
        1: {"train_score": 1.0, "dev_score": 4.0, "eval_score": 3.0},
        2: {"train_score": 0.5, "dev_score": 1.5},
        3: {"train_score": 0.25, "eval_score": 3.5},
    }
    assert training.epochs[1].error["dev_score"] == 2.0  # nothing changes what a run decides
    os.remove(path)
    training.set_errors(3, {"dev_score": 1.0})
    assert sorted(read_file(path)) == [1, 2, 3]


def test_many_write_at_once(tmp_path):
    path = str(tmp_path / "rates")
    config = Config({"learning_rate": 0.5, "learning_rate_file": path})
    failed = []

    def write(name):
        try:
            control = LearningRateControl.from_config(config)
            for epoch in range(1, 11):
                control.set_errors(epoch, {name: 1.0})
        except Exception as exc:
            failed.append(exc)

    names = ["%s_score" % name for name in "abcd"]
    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not failed and os.listdir(str(tmp_path)) == ["rates"]
    assert {epoch: sorted(data.error) for epoch, data in read_file(path).items()} == dict.fromkeys(range(1, 11), names)


def test_a_file_that_became_unreadable_does_not_end_a_training(tmp_path, capsys):
    path = tmp_path / "rates"
    control = LearningRateControl.from_config(Config({"learning_rate": 0.5, "learning_rate_file": str(path)}))
    control.set_errors(1, {"dev_score": 2.0})
    path.write_text("{1: Epoch")
    control.set_errors(2, {"dev_score": 1.0})
    assert "It is replaced." in " ".join("".join(capsys.readouterr()).split())
    assert sorted(read_file(str(path))) == [1, 2]


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_full_disk_is_tried_again(failures, tmp_path, monkeypatch):
    """Space may be free some seconds later; if not, what was there stays."""
    path, waits, sync = str(tmp_path / "rates"), [], os.fsync
    update_file(path, lambda _: {1: EpochData(0.5)})

    def full(handle):
        if len(waits) < failures:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(os, "fsync", full)
    if failures < 3:
        update_file(path, lambda _: {1: EpochData(0.25)})
    else:
        with pytest.raises(DataError, match="can't be written: No space left on device. Free some space and run"):
            update_file(path, lambda _: {1: EpochData(0.25)})
    assert waits == [2.0, 10.0][:failures] and os.listdir(str(tmp_path)) == ["rates"]
    assert read_file(path)[1].learning_rate == (0.25 if failures < 3 else 0.5)


@pytest.mark.parametrize(
    "measures, told",
    [
        (["dev_eror"], "epoch 1 has no score 'dev_eror', so dev_score decides. Did you mean 'dev_error'?"),
        (["x", "y"], "epoch 1 has no score 'x' or 'y', so dev_score decides."),
    ],
)
def test_another_score_than_that_of_the_config_decides(measures, told, capsys):
    """Told once, not for each epoch."""
    assert _told_of_scores(measures, capsys).count(told) == 1


@pytest.mark.parametrize("measures", [[], ["dev_score"], ["dev_eror", "dev_error"]], ids=str)
def test_a_score_of_the_config_decides(measures, capsys):
    assert "so dev_score decides" not in _told_of_scores(measures, capsys)


def _told_of_scores(measures, capsys):
    config = {"learning_rate": 0.1, "learning_rate_control_error_measure": measures}
    control = LearningRateControl.from_config(Config(config))
    for epoch in (1, 2):
        control.set_errors(epoch, {"train_score": 2.0, "dev_score": 1.0, "dev_error": 0.5})
        control.learning_rate(epoch + 1)
    return " ".join("".join(capsys.readouterr()).split())
