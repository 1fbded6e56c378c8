"""Every small demo runs as it is and learns what it should."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from returnn_tf.engine.learning_rate.file import read_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMOS = os.path.join(ROOT, "demos")

# demo -> largest error on the dev set after its last epoch; the second number is that of guessing
CONFIGS = {
    "12ax": 0.02,  # 0.1
    "frame_classifier": 0.08,  # 0.9
    "user_layer": 0.05,  # 0.1
    "eval_heavy": 0.02,  # 0.1
}


def config_path(name: str) -> str:
    return os.path.join(DEMOS, name, name + ".config")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["12ax", "user_layer", *(pytest.param(n, marks=pytest.mark.long) for n in ("eval_heavy", "frame_classifier"))],
)
def test_trains(name, run_demo, tmp_path):
    run_demo("-m", "returnn_tf", config_path(name))
    epochs = read_file(str(tmp_path / "out" / "learning_rates"))
    last = epochs[max(epochs)].error
    errors = {key: value for key, value in last.items() if key.startswith("dev_error")}
    assert errors and all(value <= CONFIGS[name] for value in errors.values()), errors
    assert any(file.endswith(".index") for file in os.listdir(tmp_path / "out" / "model"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CONFIGS) + ["digits"])
def test_check(name, run_demo):
    """The table has a row for the output layer, with its class. The demo of digits makes its data first."""
    options = ["--no-data"] if name == "digits" else []
    table = run_demo("-m", "returnn_tf", "check", config_path(name), *options)
    (layer_class,) = re.findall(r"(?m)^output +(\w+) +\[", table)
    assert layer_class == ("eval" if name == "eval_heavy" else "softmax")


@pytest.mark.slow
def test_framework(run_demo, tmp_path):
    output = run_demo(os.path.join(DEMOS, "framework", "train.py"), "--save", "params.npz")
    errors = [float(text) for text in re.findall(r"dev error ([\d.]+) %", output)]
    assert len(errors) == 6 and errors[-1] < 5 < errors[0]
    with np.load(tmp_path / "params.npz") as params:
        assert params["lstm/rec/W_re"].shape == (16, 64) and params["output/b"].shape == (3,)


def test_readme_names_every_demo():
    with open(os.path.join(DEMOS, "README.md"), encoding="utf8") as file:
        text = file.read()
    folders = [name for name in os.listdir(DEMOS) if os.path.isdir(os.path.join(DEMOS, name))]
    demos = set(folders) - {"common", "__pycache__"}  # what several demos share, and what Python keeps
    assert demos and all("[%s](" % name in text for name in demos)
