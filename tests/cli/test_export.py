"""``returnn-tf export``: options of the command and of the targets, checkpoints, and what is refused."""

from __future__ import annotations

import json
import os

import pytest

import returnn_tf
from returnn_tf.cli.main import EXIT_BAD_CONFIG, EXIT_BAD_DATA, main
from returnn_tf.export.exporters import EXPORTERS
from returnn_tf.export.sample import random_batch
from returnn_tf.export.saved_model import run
from returnn_tf.export.saved_model.exporter import SavedModelExporter
from returnn_tf.export.saved_model.run import run_in_process
from tests import processes

CONFIG = """
behavior_version = 21
extern_data = {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}}
network = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"},
    "spare": {"class": "activation", "activation": "relu", "from": "hidden"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "dropout": 0.5, "from": "hidden"}}
model = "net"
log = ["training.log"]
train = {"class": "Task12AXDataset", "num_seqs": 3}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a config and checkpoints of two epochs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.config").write_text(CONFIG)
    for epoch in (1, 2):
        net = returnn_tf.Network.from_config(returnn_tf.Config.from_file("my.config"))
        net.set_param_values({"output/b": [float(epoch), 0.0, 0.0, 0.0]})
        returnn_tf.save_checkpoint(net, "net.%03i" % epoch)
    return tmp_path


@pytest.fixture
def unchecked(monkeypatch):
    """Spare exports the check in another process, where that is not the point."""
    monkeypatch.setattr(SavedModelExporter, "check", lambda exporter, model, folder: None)


@pytest.mark.slow
def test_newest_epoch_and_load(folder, capsys, monkeypatch):
    """The newest checkpoint is exported, or that of --epoch or --load; without dropout, and without a training log."""
    monkeypatch.setattr(run, "_run_program", processes.run_check)
    with monkeypatch.context() as quick:
        quick.setattr(SavedModelExporter, "check", lambda exporter, model, folder: None)
        assert main(["export", "my.config", "--output", "old", "--epoch", "1", "--portable"]) == 0
        assert "Loaded net.001" in capsys.readouterr().out
    assert main(["export", "my.config", "--output", "new"]) == 0
    assert "Wrote new" in capsys.readouterr().out
    assert not os.path.exists("training.log")
    config = returnn_tf.Config.from_file("my.config")
    net = returnn_tf.Network.from_config(config)
    feed = random_batch(net.extern_data, ["data"], batch=2, frames=4)
    for out, epoch in (("new", 2),):
        returnn_tf.load_checkpoint(net, "net.%03i" % epoch)
        expected = net.run(
            {**feed, "classes": feed["data"][:, :, 0].astype("int32") * 0, "classes/size0": feed["data/size0"]}
        )
        got = run_in_process(out, {"data": feed["data"], "data_size0": feed["data/size0"]})
        assert abs(got["output"][0] - expected.layers["output"].value[0]).max() < 1e-6


def test_layers_that_nothing_needs(folder, unchecked):
    """--outputs names layers, also those that no other layer uses."""
    assert main(["export", "my.config", "--output", "out", "--outputs", "spare,hidden", "--load", "net.001"]) == 0
    with open("out/model.json", encoding="utf8") as file:
        facts = json.load(file)
    assert list(facts["outputs"]) == ["spare", "spare_size0", "hidden", "hidden_size0"]
    assert list(facts["inputs"]) == ["data", "data_size0"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--to", "savedmodel"], EXIT_BAD_CONFIG, "Did you mean 'saved_model'?"),
        (["--portabel"], EXIT_BAD_CONFIG, "Did you mean '--portable'?"),
        (["--portable", "maybe"], EXIT_BAD_CONFIG, "'portable' must be True or False, got 'maybe'"),
        (["--outputs", "outptu"], EXIT_BAD_CONFIG, "outputs: layer 'outptu' is not part of the network"),
        (["--epoch", "7"], EXIT_BAD_CONFIG, "7"),
        (["--load", "nothing"], EXIT_BAD_CONFIG, "nothing"),
        (["--epoch", "1", "--load", "net.001"], EXIT_BAD_CONFIG, "not allowed with argument"),
        (["--search"], EXIT_BAD_CONFIG, "no layer is of class 'choice', so the graph would be the same"),
    ],
)
def test_refused(folder, capsys, arguments, code, text):
    """One line each, and nothing is written."""
    before = sorted(os.listdir())
    assert main(["export", "my.config", "--output", "out", *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ") and text in error and "Traceback" not in error
    assert sorted(os.listdir()) == before


def test_nothing_is_overwritten(folder, capsys, unchecked):
    """A folder with files stays as it is; an empty one may be filled."""
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("x")
    assert main(["export", "my.config", "--output", "out"]) == EXIT_BAD_CONFIG
    assert "out exists already" in capsys.readouterr().err
    assert os.listdir("out") == ["mine"]
    (folder / "out" / "mine").unlink()
    assert main(["export", "my.config", "--output", "out"]) == 0


def test_checkpoint_of_another_network(folder, capsys):
    """Each parameter that does not fit is listed."""
    (folder / "my.config").write_text(CONFIG.replace('"n_out": 5', '"n_out": 6'))
    assert main(["export", "my.config", "--output", "out"]) == EXIT_BAD_DATA
    assert "hidden/W is [3, 6] here, stored [3, 5]" in capsys.readouterr().err
    assert not os.path.exists("out")


def test_help_lists_targets_and_their_options(capsys):
    """All targets, with the options that they declare."""
    assert main(["export", "--help"]) == 0
    text = capsys.readouterr().out
    assert all("--to %s\n" % name in text for name in EXPORTERS)
    assert "--portable  no native ops" in text


def test_options_with_values(folder, capsys):
    """Options of a target that take a value, a flag, and a value that is wrong."""
    command = ["export", "my.config", "--to", "tflite", "--batch", "0", "--select-tf-ops", "--output", "phone"]
    assert main(command) == 0
    with open("phone/model.json", encoding="utf8") as file:
        facts = json.load(file)
    assert (facts["target"], facts["batch"], facts["tf_ops"]) == ("tflite", None, [])
    capsys.readouterr()
    assert main([*command[:-1], "other", "--quantize", "int4"]) == EXIT_BAD_CONFIG
    assert "quantize" in capsys.readouterr().err and not os.path.exists("other")


@pytest.mark.parametrize("option", ["--select-tf-ops", "--layer=output"])
def test_option_of_another_target(folder, capsys, option):
    """The error says which target has the option."""
    assert main(["export", "my.config", "--to", "frozen", option, "--output", "other"]) == EXIT_BAD_CONFIG
    error = capsys.readouterr().err
    assert "export to frozen has no option" in error and " has it" in error and not os.path.exists("other")
