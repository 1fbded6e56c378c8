"""returnn-tf sweep: trials, pruning, kills, several processes, errors. Trainings are a program that writes scores."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from returnn_tf.cli.main import main
from returnn_tf.cli.sweep import results, training
from returnn_tf.cli.sweep.description import read_sweep
from returnn_tf.cli.sweep.study import Study
from returnn_tf.config import Config
from tests.waiting import LONG, until

optuna = pytest.importorskip("optuna")

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LONG = 5 * LONG  # several processes import the package and Optuna
CONFIG = """\
network = {"lstm": {"class": "rec", "n_out": 8}}
learning_rate = 0.1
num_epochs = 4
submit = {"time": "2h", "cpus": 3}
"""
SWEEP = """\
config = "base.config"
trials = 4
prune = False


def suggest(trial):
    return {
        "learning_rate": trial.suggest_float("rate", 1e-3, 1.0, log=True),
        "network/lstm/n_out": trial.suggest_int("units", 2, 64),
    }
"""
#: Reads the configs as the program does; its score is best at a rate of 0.01 and falls by the epoch.
TRAINING = """\
import math, os, signal, sys, time
values = {}
for path in sys.argv[1:]:
    exec(open(path).read(), values)
rate, units = values["learning_rate"], values["network"]["lstm"]["n_out"]
behavior = os.environ.get("TEST_TRAINING", "")
rates = values["learning_rate_file"]
if behavior == "fails":
    sys.exit("error: units of %d are bad" % units)
signal.signal(signal.SIGTERM, lambda *args: sys.exit(143))
lines = open(rates).read().splitlines()[1:-1] if os.path.exists(rates) else []
starts = open(os.path.join(os.path.dirname(rates), "starts"), "a")
print(len(lines), file=starts, flush=True)
for epoch in range(len(lines) + 1, values["num_epochs"] + 1):
    while os.path.exists("hold") and epoch > 1:
        time.sleep(0.01)
    score = abs(math.log10(rate) + 2) + 1 / epoch
    scores = {"train_score": 1.0} if behavior == "no dev" else {"train_score": 1.0, "dev_score": score}
    if behavior == "nan":
        scores["dev_score"] = "nan"
    lines.append("%d: EpochData(learningRate=%r, error=%s)," % (epoch, rate, repr(scores).replace("'nan'", "nan")))
    with open(rates + ".new", "w") as file:
        file.write("\\n".join(["{", *lines, "}"]) + "\\n")
    os.rename(rates + ".new", rates)
    time.sleep(values.get("seconds", 0) if epoch == 2 else 0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.config").write_text(CONFIG)
    (tmp_path / "sweep.py").write_text(SWEEP)
    monkeypatch.setattr(training, "_PROGRAM", TRAINING)
    monkeypatch.setattr(training, "python_command", lambda code, *args: [sys.executable, "-c", code, *args])
    return tmp_path


def _trials(path="sweep.py"):
    return Study(read_sweep(path), create=False).trials()


@pytest.mark.slow
def test_finds_the_best_rate_and_draws_what_matters(folder, capsys):
    pytest.importorskip("matplotlib")
    (folder / "sweep.py").write_text(SWEEP.replace("trials = 4", "trials = 20\nfirst = [{'rate': 0.5, 'units': 8}]"))
    assert main(["sweep", "sweep.py", "--processes", "2"]) == 0
    out = capsys.readouterr().out
    trials = _trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 20
    assert trials[0].params == {"rate": 0.5, "units": 8}
    best = min(trials, key=lambda trial: trial.value)
    assert 0.004 < best.params["rate"] < 0.025 and best.value < trials[0].value
    assert "The best one: returnn-tf base.config sweep/%03d/trial.config\n" % best.number in out
    shares = results.importance(Study(read_sweep("sweep.py")))
    assert list(shares) == ["rate", "units"] and shares["rate"] > 0.6
    assert "Importance: rate %.0f%%" % (100 * shares["rate"]) in out
    text = (folder / "sweep" / "sweep.svg").read_text()
    assert "<svg" in text and out.endswith("Picture: sweep/sweep.svg\n")
    config: dict = {"network": {"lstm": {}}}
    exec((folder / "sweep" / "000" / "trial.config").read_text(), config)
    assert config["learning_rate"] == 0.5 and config["network"] == {"lstm": {"n_out": 8}}
    assert config["model"] == "sweep/000/network" and config["task"] == "train"


@pytest.mark.slow
def test_one_more_call_trains_no_more_and_more_trials_go_on(folder, capsys):
    assert main(["sweep", "sweep.py"]) == 0
    before = [(trial.params, trial.value) for trial in _trials()]
    capsys.readouterr()
    assert main(["sweep", "sweep.py", "--output", "x.png"]) == 0
    assert "4 trials of 4: 4 completed" in capsys.readouterr().out
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")
    assert all((folder / "sweep" / ("%03d" % n) / "starts").read_text() == "0\n" for n in range(4))
    (folder / "sweep.py").write_text(SWEEP.replace("trials = 4", "trials = 6"))
    assert main(["sweep", "sweep.py"]) == 0
    after = [(trial.params, trial.value) for trial in _trials()]
    assert len(after) == 6 and after[:4] == before


@pytest.mark.slow
def test_prunes_what_is_worse_than_the_median(folder, capsys):
    first = "first = [{'rate': rate, 'units': 8} for rate in (0.01, 0.011, 0.012, 0.013, 1.0)]"
    text = SWEEP.replace("prune = False", first).replace("trials = 4", "trials = 5")
    (folder / "sweep.py").write_text(text.replace("return {", 'return {"seconds": 60 if trial.number == 4 else 0,'))
    (folder / "base.config").write_text(CONFIG + "seconds = 0\n")
    assert main(["sweep", "sweep.py", "--processes", "2"]) == 0
    trials = _trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4 + ["PRUNED"]
    assert trials[4].intermediate_values == {1: 3.0, 2: 2.5}
    assert "trial 4: pruned after epoch 2, dev_score 2.5\n" in capsys.readouterr().out


def _process(folder, *args, **environ):
    code = (
        """\
import sys
from returnn_tf.cli.main import main
from returnn_tf.cli.sweep import training
training._PROGRAM = %r
training.python_command = lambda code, *args: [sys.executable, "-c", code, *args]
sys.exit(main(["sweep", "sweep.py", *sys.argv[1:]]))
"""
        % TRAINING
    )
    env = {**os.environ, **environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *args], cwd=folder, stdout=subprocess.PIPE, text=True, env=env)


def _starts(folder):
    return {path.parent.name: path.read_text().split() for path in sorted((folder / "sweep").glob("*/starts"))}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_goes_on_after_a_kill_in_the_middle(number, folder, capsys):
    """The same trials as in a sweep that was not killed; the training of the interrupted one is resumed."""
    (folder / "hold").touch()
    process = _process(folder)
    until((folder / "sweep" / "000" / "learning_rates").exists, seconds=_LONG)
    process.send_signal(number)
    out, _ = process.communicate(timeout=_LONG)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert ("trial 0: stopped" in out) == (number != signal.SIGKILL)
    (folder / "hold").unlink()
    with open(folder / "sweep" / "trials.journal", "ab") as file:  # it was writing at that time
        file.write(b'{"op_code": 6, "wor')
    assert main(["sweep", "sweep.py"]) == 0
    assert _starts(folder) == {"000": ["0", "1"], **{"%03d" % n: ["0"] for n in range(1, 4)}}
    resumed = [(trial.params, trial.value, trial.intermediate_values) for trial in _trials()]
    (folder / "other.py").write_text(SWEEP)
    assert main(["sweep", "other.py"]) == 0
    assert [(trial.params, trial.value, trial.intermediate_values) for trial in _trials("other.py")] == resumed


@pytest.mark.slow
def test_several_processes_share_the_trials(folder):
    (folder / "hold").touch()
    processes = [_process(folder) for _ in range(2)]
    until(lambda: len(_starts(folder)) == 2 and all(map(len, _starts(folder).values())), seconds=_LONG)
    (folder / "hold").unlink()
    for process in processes:
        out, _ = process.communicate(timeout=_LONG)
        assert process.returncode == 0, out
    assert [trial.state.name for trial in _trials()] == ["COMPLETE"] * 4
    assert _starts(folder) == {"%03d" % n: ["0"] for n in range(4)}  # none was trained twice


def test_failed_trainings(folder, capsys, monkeypatch):
    monkeypatch.setenv("TEST_TRAINING", "fails")
    assert main(["sweep", "sweep.py"]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"trial 0: failed: error: units of \d+ are bad; see sweep/000/log\n", out)
    assert "the first 3 trials have failed" in err and "returnn-tf base.config sweep/002/trial.config" in err


@pytest.mark.slow
def test_scores_that_are_not_finite_are_no_results(folder, capsys, monkeypatch):
    monkeypatch.setenv("TEST_TRAINING", "nan")
    assert main(["sweep", "sweep.py"]) == 1
    assert "trial 0: failed: no epoch has a finite dev_score" in capsys.readouterr().out


def test_metric_that_does_not_exist(folder, capsys, monkeypatch):
    monkeypatch.setenv("TEST_TRAINING", "no dev")
    assert main(["sweep", "sweep.py"]) == 2
    assert "metric: there is no score 'dev_score'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "old, new, error",
    [
        ("trials = 4", "trials = 0", "sweep.py: option 'trials' must be at least 1, got 0"),
        ("trials = 4", "trails = 6", "sweep.py:2: there is no setting 'trails'. Did you mean 'trials'?"),
        ("trials = 4", "trials = 1 / 0", "ZeroDivisionError"),
        ("base.config", "none.config", "config file 'none.config' not found"),
        ("def suggest", "def suggestion", "expected a function that names what to try"),
        (
            '"learning_rate":',
            '"learnin_rate":',
            "no setting 'learnin_rate', and there is none. Did you mean 'learning_rate'?",
        ),
        ('"network/lstm/n_out":', '"network//n_out":', "no setting 'network//n_out'"),
        ('"network/lstm/n_out":', '"model":', "'model' is set by the sweep itself"),
        ('"learning_rate":', '"learning_rate": object(), "x":', "the value of 'learning_rate' must be numbers, texts"),
        ("return {", 'return {"learning_rates": {1, 2},', "the value of 'learning_rates' must be numbers, texts"),
        ("return {", "return 5 or {", "returns a dict of settings"),
        ("1e-3, 1.0", "1.0, 1e-3", "sweep.py:8: ValueError"),
        (
            "trials = 4",
            "first = [{'rat': 0.1}]",
            "suggest asks for no value of the name 'rat'. Did you mean 'rate'?",
        ),
        ("suggest(trial)", "suggest()", "takes 0 positional arguments"),
        ("trials = 4", "folder = 'base.config'", "is a file"),
    ],
)
def test_mistakes(old, new, error, folder, capsys):
    (folder / "sweep.py").write_text(SWEEP.replace(old, new))
    assert main(["sweep", "sweep.py"]) == 2
    err = capsys.readouterr().err
    assert error in err and "Traceback" not in err


@pytest.mark.slow
def test_other_sweeps_in_the_same_folder(folder, capsys):
    (folder / "sweep.py").write_text(SWEEP.replace("trials = 4", "trials = 1"))
    assert main(["sweep", "sweep.py"]) == 0
    (folder / "sweep.py").write_text(SWEEP.replace("trials = 4", "trials = 1\nmetric = 'train_score'"))
    assert main(["sweep", "sweep.py"]) == 2
    assert "metric is 'train_score', but the trials in the folder 'sweep' had 'dev_score'" in capsys.readouterr().err
    (folder / "sweep" / "trials.journal").write_text("no json\n")
    (folder / "sweep.py").write_text(SWEEP)
    assert main(["sweep", "sweep.py"]) == 1
    assert "sweep/trials.journal is damaged" in capsys.readouterr().err


def test_show_and_submit(folder, capsys):
    assert main(["sweep", "sweep.py", "--show"]) == 2
    assert "has not begun" in capsys.readouterr().err
    assert main(["sweep", "sweep.py", "--submit", "3", "--dry-run"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --array=0-2\n" in script and "#SBATCH --cpus-per-task=3\n" in script
    assert "program=(returnn-tf sweep)\n" in script and "configs=(sweep.py sweep.py sweep.py)\n" in script
    assert not (folder / "sweep").exists()
    assert main(["sweep", "sweep.py", "--dry-run"]) == 2
    (folder / "base.config").write_text(CONFIG.replace('"cpus": 3', '"tasks": 3'))
    assert main(["sweep", "sweep.py", "--submit", "3", "--dry-run"]) == 2
    assert "tasks = 3" in capsys.readouterr().err


def test_without_optuna(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["sweep", "sweep.py"]) == 2
    assert "sweep needs optuna: pip install " in capsys.readouterr().err


def test_picture_with_choices_and_trials_without_a_parameter():
    pytest.importorskip("matplotlib")
    distributions = optuna.distributions
    kinds = {"unit": distributions.CategoricalDistribution(["lstm", "a name of many letters"])}
    make = optuna.trial.create_trial
    trials = [
        make(params={"unit": unit}, distributions=kinds, value=value)
        for unit, value in (("lstm", 100.0), ("a name of many letters", 0.5))
    ]
    trials.append(make(state=optuna.trial.TrialState.PRUNED, intermediate_values={1: 3.0, 2: 2.0}))
    history, values = results.picture(trials, "dev_error", {}).figure.axes
    assert [label.get_text() for label in values.get_xticklabels()] == ["lstm", "... many letters"]
    assert [line.get_text() for line in history.get_legend().get_texts()] == ["completed", "pruned", "best so far"]
    assert history.get_yscale() == "log" and history.get_ylabel() == "dev_error"


@pytest.mark.slow
def test_real_trainings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.config").write_text(
        'train = dev = {"class": "Task12AXDataset", "num_seqs": 20}\n'
        'extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}\n'
        'network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}\n'
        'batch_size, num_epochs, optimizer = 500, 5, {"class": "adam"}\n'
    )
    (tmp_path / "sweep.py").write_text(
        'config, trials, epochs = "base.config", 2, 2\n'
        "def suggest(trial):\n"
        '    return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1), "network/output/L2": 0.0}\n'
    )
    assert main(["sweep", "sweep.py"]) == 0
    trials = _trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    assert all(set(trial.intermediate_values) == {1, 2} for trial in trials)
    assert json.loads((tmp_path / "sweep" / "001" / ".network.status.json").read_text())["num_epochs"] == 2


def test_sweep_of_the_demo(monkeypatch):
    """Its first trial changes nothing in the config."""
    monkeypatch.chdir(ROOT)
    sweep = read_sweep("demos/12ax/sweep.py")
    config = Config.from_file(sweep.config)
    for key, value in sweep.overrides(optuna.trial.FixedTrial(sweep.options.first[0])).items():
        head, *rest = key.split("/")
        given = config.typed_value(head)
        for part in rest:
            given = given[part]
        assert given == value
