"""The tools for checkpoints and their scores: averages, contents, best epochs, deletion of old ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.cli.main import main
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.learning_rate.file import EpochData, update_file

OUTPUTS = Path(__file__).parents[2] / "data" / "outputs"
BEST = json.loads((OUTPUTS / "best_epoch.json").read_text())["get_best_model_epoch_tool"]
CLEANUP = json.loads((OUTPUTS / "cleanup_old_models.json").read_text())["cases"]
TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Return checkpoints models/epoch.001 to .003, and one of another network."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("models")
    for epoch in (1, 2, 3):
        save(epoch, {"l/W": np.array([[epoch, 2.0**epoch]], "float32"), "n": np.array(7 * epoch, "int32")})
    save(9, {"other": np.zeros([1], "float32")})
    return tmp_path


def save(epoch, params):
    info = checkpoint.CheckpointInfo(epoch=epoch, step=100 * epoch, random_seed=1)
    checkpoint.save("models/epoch.%03d" % epoch, params, {}, info)


def average(*args):
    return main(["tool", "tf-avg-checkpoints", "--prefix", "models/epoch.", "--output_path", "avg/epoch.003", *args])


@pytest.mark.parametrize(
    "args, mean, last",
    [
        (["--checkpoints", "001,002"], [1.5, 3.0], 2),
        (["--checkpoints", "001, 003,"], [2.0, 5.0], 3),
        (["--checkpoints", "002.index"], [2.0, 4.0], 2),
        (["--checkpoints", "1,02"], [1.5, 3.0], 2),  # epochs, as get-best-model-epoch writes them
        (["--num_last_checkpoints", "2"], [2.5, 6.0], 3),
    ],
)
def test_average(models, args, mean, last):
    os.remove("models/epoch.009.index")
    os.mkdir("avg")
    os.symlink("epoch.003.index", "avg/average.index")  # as jobs make them before
    os.symlink("epoch.003.data-00000-of-00002", "avg/average.data-00000-of-00002")  # which never comes
    assert average(*args) == 0
    values = checkpoint.read("avg/epoch.003")
    assert values["l/W"].dtype == np.float32 and values["l/W"].tolist() == [mean]
    assert (values["n"].dtype, values["n"], values["global_step"]) == (np.int32, 7 * last, 100 * last)
    assert tf.train.latest_checkpoint("avg") == "avg/epoch.003" and os.path.exists("avg/average.index")
    assert {path.name for path in Path("avg").iterdir() if not path.is_symlink()} == {"checkpoint"} | {
        "epoch.003" + suffix for suffix in (".index", ".meta", ".data-00000-of-00001")
    }
    assert average(*args) == 0  # again, as an interrupted job


def test_the_graph_of_an_average_loads_it(models):
    assert average("--checkpoints", "001,002") == 0
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.train.import_meta_graph("avg/epoch.003.meta").restore(session, "avg/epoch.003")
        assert session.run("l/W:0").tolist() == [[1.5, 3.0]] and session.run("global_step:0") == 200


def test_numbered_checkpoints_without_a_list(models):
    os.remove("models/epoch.009.index")
    assert not os.path.exists("models/checkpoint")
    Path("models/checkpoint").write_text('model_checkpoint_path: "gone"\nall_model_checkpoint_paths: "gone"\n')
    assert average("--num_last_checkpoints", "9") == 0
    assert checkpoint.read("avg/epoch.003")["l/W"].tolist() == [[2.0, np.float32(14 / 3)]]


@pytest.mark.parametrize(
    "args, code, message",
    [
        ([], 2, "give one of --checkpoints, --num_last_checkpoints"),
        (["--checkpoints", "001,005,003,006"], 1, "no checkpoint models/epoch.005.index, models/epoch.006.index"),
        (["--checkpoints", ","], 1, "there is no checkpoint models/epoch..index"),
        (["--checkpoints", "001,009"], 1, "they are of different networks"),
        (["--num_last_checkpoints", "0"], 2, "at least 1"),
        (["--num_last_checkpoints", "2", "--prefix", "model/x"], 1, "there are no checkpoints model/x*.index"),
        (["--checkpoints", "001", "--output_path", "models/epoch.002"], 1, "is a checkpoint of a training run"),
        (["--checkpoints", "001", "--output_path", "/dev/null/x"], 1, "can't be written"),
        (["--checkpoints", "001", "--last", "3"], 2, "unrecognized arguments"),
    ],
)
def test_mistakes_in_averages(models, args, code, message, capsys):
    assert average(*args) == code
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0 and not os.path.exists("avg")


def test_averages_other_shapes_are_refused(models, capsys):
    save(4, {"l/W": np.zeros([2, 2], "float32"), "n": np.array(0, "int32")})
    assert average("--checkpoints", "001,004") == 1
    assert "'l/W' has the shape [2, 2] in the checkpoint models/epoch.004" in capsys.readouterr().err


@pytest.mark.slow
def test_average_in_an_empty_environment(models):
    """As AverageTFCheckpointsJob runs it."""
    command = [sys.executable, str(TOOLS / "tf_avg_checkpoints.py"), "--checkpoints", "001,002"]
    command += ["--prefix", "models/epoch.", "--output_path", str(models / "average")]
    done = subprocess.run(command, env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert checkpoint.read("average")["l/W"].tolist() == [[1.5, 3.0]]


def test_inspect(models, capsys):
    assert main(["tool", "tf_inspect_checkpoint", "--file_name", "models/epoch.001.index"]) == 0
    assert capsys.readouterr().out.splitlines() == ["global_step int64 []", "l/W float32 [1, 2]", "n int32 []"]
    options = ["--tensor_name", "l/W", "--printoptions", "precision=1", "floatmode=fixed"]
    assert main(["tool", "tf_inspect_checkpoint", "--file_name", "models/epoch.003", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["l/W float32 [1, 2]", "  [[3.0 8.0]]"]
    assert lines[2].startswith("  mean: 5.5, stddev: 2.5, rms: 6.04") and lines[2].endswith("min: 3.0, max: 8.0")
    assert main(["tool", "tf_inspect_checkpoint", "--file_name", "models/epoch.003", "--all_tensors"]) == 0
    assert capsys.readouterr().out.count("mean:") == 3


@pytest.mark.parametrize(
    "args, code, message",
    [
        (["--file_name", "models/epoch.007"], 1, "There is no checkpoint models/epoch.007"),
        (["--file_name", "models/epoch.001", "--tensor_name", "l/w"], 1, "Did you mean 'l/W'?"),
        (["--file_name", "models/epoch.001", "--printoptions", "precison=3"], 2, "Did you mean 'precision'?"),
        (["--file_name", "models/epoch.001", "--printoptions", "precision=x"], 2, "--printoptions precision=x"),
        ([], 2, "required: --file_name"),
    ],
)
def test_mistakes_in_inspection(models, args, code, message, capsys):
    assert main(["tool", "tf_inspect_checkpoint", *args]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("args", BEST)
def test_best_epochs_as_recorded(args, capsys, monkeypatch):
    monkeypatch.chdir(OUTPUTS)
    assert main(["tool", "get-best-model-epoch", *args.split()]) == 0
    wanted = BEST[args]
    pairs = wanted["best_first_epoch_and_value"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", ")[:1] + line.split(", ")[1:2] for line in lines] == [
        ["Epoch %d" % epoch, "%r %s" % (wanted["key_used"], value)] for epoch, value in pairs
    ]


def test_best_epochs_of_a_config(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.config").write_text(
        "learning_rate_file = %r\nlearning_rate_control_error_measure = 'dev_error'"
        % str(OUTPUTS / "newbob_example.data")
    )
    assert main(["tool", "get-best-model-epoch", "--config", "a.config", "--n", "1"]) == 0
    assert capsys.readouterr().out.startswith("Epoch 15, 'dev_error' 0.1489, ")


@pytest.mark.parametrize(
    "args, code, message",
    [
        ([], 2, "give one of --learning-rate-file, --config; got none"),
        (["--learning-rate-file", "none"], 1, "not found"),
        (["--learning-rate-file", "rates", "--key", "dev_scoer"], 1, "Did you mean 'dev_score'?"),
        (["--learning-rate-file", "empty"], 1, "has no scores at all"),
    ],
)
def test_mistakes_in_best_epochs(args, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    update_file("rates", lambda _: {1: EpochData(0.1, {"dev_score": 2.0})})
    update_file("empty", lambda _: {1: EpochData(0.1)})
    assert main(["tool", "get-best-model-epoch", *args]) == code
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0


@pytest.fixture
def cleanup(tmp_path, monkeypatch):
    """Call the tool in the folder of a recorded case; return the epochs whose checkpoints are left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "validate", lambda prefix: None)

    def call(case, *args, answer="y"):
        for epoch in case["stored_epochs"]:
            for suffix in (".index", ".meta", ".data-00000-of-00001"):
                Path("m.%03d%s" % (epoch, suffix)).touch()
        scores = case["scores"].items()
        epochs = range(1, case["num_epochs"] + 1)
        update_file(
            "rates", lambda _: {e: EpochData(0.1, {key: values[e - 1] for key, values in scores}) for e in epochs}
        )
        Path("a.config").write_text("cleanup_old_models = %r\nmodel = 'm'" % (case["cleanup_old_models"],))
        monkeypatch.setattr("builtins.input", lambda prompt: answer if answer else exec("raise EOFError"))
        code = main(["tool", "cleanup-old-models", "--config", "a.config", "--scores", "rates", *args])
        return code, sorted(int(path.name.split(".")[1]) for path in tmp_path.glob("m.*.index"))

    return call


@pytest.mark.parametrize("case", CLEANUP, ids=lambda case: case["name"])
def test_cleanup_as_recorded(case, cleanup):
    assert cleanup(case) == (0, case["kept"])


def test_cleanup_asks(cleanup, capsys):
    case = next(case for case in CLEANUP if case["deleted"])
    for args, answer, code in ((["--dry_run"], "y", 0), ([], "n", 0), ([], "", 2), (["--model", "x"], "y", 0)):
        assert cleanup(case, *args, answer=answer) == (code, case["stored_epochs"])
    assert "there is no answer, so nothing is deleted" in capsys.readouterr().err
    assert cleanup(case, "--cwd", "nowhere")[0] == 2 and cleanup(case, "--cwd", ".") == (0, case["kept"])
