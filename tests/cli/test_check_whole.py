"""returnn-tf check: every part of a config is looked at, and all mistakes are told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_tf.cli.main import main
from tests.datasets.test_augmentation import corpus
from tests.datasets.utterances import CHARS

GOOD = """
behavior_version = 21
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "from": "data", "n_out": 2}}
train = {"class": "Task12AXDataset", "num_seqs": 10}
dev = {"class": "Task12AXDataset", "num_seqs": 5}
optimizer = {"class": "adam"}
"""

#: Lines added to the config, what the error says, and the exit code.
MISTAKES = [
    ("num_epochs = 'x'", ["config key 'num_epochs'", "expected a whole number"], 2),
    ("task = 'trian'", ["Did you mean 'train'?"], 2),
    ("optimizer = {'class': 'adm'}", ["Did you mean 'adam'?"], 2),
    ("optimizer = {'class': 'adam', 'beta': 0.9}", ["beta"], 2),
    ("optimizer = {'class': 'muon'}", ["none of the parameters is a matrix of a hidden layer: output/W, output/b"], 2),
    ("weight_average = {'decay': 2}", ["'decay' must be between 0 and 1"], 2),
    ("weight_average = {}", ["'decay' is missing"], 2),
    ("network['output']['updater_opts'] = {'gradient_clipp': 1}", ["output/W", "Did you mean 'gradient_clip'"], 2),
    ("dev = {'class': 'Task12AXDatset'}", ["'dev'", "Did you mean 'Task12AXDataset'?"], 2),
    ("dev = {'class': 'Task12AXDataset', 'num_seq': 3}", ["Did you mean 'num_seqs'?"], 2),
    ("eval_datasets = {'x': {'class': 'HDFDataset', 'files': ['/no/such.hdf']}}", ["/no/such.hdf"], 1),
    ("extern_data['data']['dim'] = 8", ["9 features for data key 'data'", "declares 8"], 2),
    ("extern_data['more'] = {'dim': 1}\nnetwork['output']['from'] = 'data:more'", ["no data key 'more'"], 2),
    ("learning_rate_control = 'newbobb'", ["newbob"], 2),
    ("learning_rates = ['x']", ["learning_rates"], 2),
    ("use_horovod = True\nhorovod_reduce_type = 'sum'", ["horovod_reduce_type"], 2),
    ("preload_from_files = {'lm': {'filename': '/no/model.001'}}", ["/no/model.001"], 1),
    ("preload_from_files = {'lm': {'filname': '/no/model.001'}}", ["Did you mean 'filename'?"], 2),
    ("fine_tune = {'from': '/no/model.001'}", ["fine_tune['from']: there is no checkpoint /no/model.001"], 2),
    ("fine_tune = {'form': '/no/model.001'}", ["Did you mean 'from'?"], 2),
    ("fine_tune = {'from': 'x', 'freeze': ['outptu']}", ["fine_tune['freeze']: 'outptu' fits no parameter"], 2),
    ("cleanup_old_models = {'keep_best': 3}", ["keep_best"], 2),
    ("pretrain = {'repetition': 3}", ["Did you mean 'repetitions'?"], 2),
    ("task = 'search'\nsearch_output_layer = 'outptu'", ["Did you mean 'output'?"], 2),
    ("del network\ndef get_network(epoch):\n    return {}[epoch]", ["KeyError: 1", "return {}[epoch]"], 2),
]


def _check(tmp_path: Path, text: str, *options: str) -> int:
    path = tmp_path / "my.config"
    path.write_text(text)
    return main(["check", str(path), *options])


def test_good(tmp_path, capsys):
    """A config without mistakes: the table, and nothing else."""
    assert _check(tmp_path, GOOD) == 0
    captured = capsys.readouterr()
    assert "softmax" in captured.out and not captured.err


@pytest.mark.parametrize("lines, texts, code", MISTAKES, ids=[lines[:60] for lines, _, _ in MISTAKES])
def test_one_mistake(lines, texts, code, tmp_path, capsys):
    """Each part of a config is looked at."""
    assert _check(tmp_path, GOOD + lines + "\n") == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "Traceback" not in err
    for text in texts:
        assert text in err


def test_all_mistakes_at_once(tmp_path, capsys):
    """A mistake in the settings, in the network and in each dataset: four errors, the exit code of a wrong config."""
    lines = "num_epochs = 'x'\nnetwork['output']['clas'] = 1\ntrain['num_seq'] = 1\ndev = {'class': 'None'}\n"
    assert _check(tmp_path, GOOD + lines) == 2
    err = capsys.readouterr().err
    assert "error: 4 mistakes:" in err
    for text in ("num_epochs", "unknown option 'clas'", "num_seq", "'None'"):
        assert text in err


def test_without_data(tmp_path, capsys):
    """On a machine without the data, the files are not looked for."""
    lines = (
        "dev = {'class': 'HDFDataset', 'files': ['/no/such.hdf']}\npreload_from_files = {'a': {'filename': '/no/m'}}\n"
    )
    assert _check(tmp_path, GOOD + lines) == 1
    assert _check(tmp_path, GOOD + lines, "--no-data") == 0
    assert _check(tmp_path, GOOD + lines, "--no-dat") == 2
    assert "Did you mean '--no-data'?" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["", ".index", ".meta"])
def test_checkpoint_to_load(suffix, tmp_path):
    """A checkpoint may have the name of one of its files, as in a training."""
    (tmp_path / "old.001.index").touch()
    path = "%s/old.001%s" % (tmp_path, suffix)
    assert _check(tmp_path, GOOD + "preload_from_files = {'a': {'filename': %r, 'init_for_train': True}}\n" % path) == 0


@pytest.mark.parametrize("written", ["", "net.001.index", "net.001.step20.index"])
def test_a_resumed_training_does_not_need_the_checkpoint_to_fine_tune(written, tmp_path, capsys):
    lines = "model = %r\nfine_tune = {'from': '/no/base.001'}\n" % str(tmp_path / "net")
    if written:
        (tmp_path / written).touch()
    assert _check(tmp_path, GOOD + lines) == (0 if written else 2)
    assert ("fine_tune['from']: there is no checkpoint /no/base.001" in capsys.readouterr().err) == (not written)
    assert _check(tmp_path, GOOD + lines + "task = 'eval'\n") == 0


def test_notes(tmp_path, capsys):
    """What does not stop the task of the config is a warning."""
    assert _check(tmp_path, GOOD.replace("train =", "_train =") + "search_output_layer = 'decision'\n") == 0
    err = capsys.readouterr().err
    assert "Warning: there is no dataset to train on" in err and "Warning: task search would fail: " in err


FORWARD = "task = 'forward'\nforward_data = 'dev'\n"


@pytest.mark.parametrize(
    "lines, texts",
    [
        (FORWARD + "forward_output_layer = 'nope'", ["layer 'nope' is not part of the network"]),
        (
            FORWARD + "dev = {'class': 'DummyDataset', 'input_dim': 4, 'output_dim': 2, 'num_seqs': 2}",
            ["'dev' has 4 features"],
        ),
        (
            FORWARD.replace("'dev'", "{'class': 'DummyDataset', 'input_dim': 4, 'output_dim': 2, 'num_seqs': 2}"),
            ["'forward_data' has 4 features"],
        ),
        ("task = 'compute_priors'\nforward_output_layer = 'outptu'", ["Did you mean 'output'?"]),
    ],
)
def test_the_task(lines, texts, tmp_path, capsys):
    """The layer that a task writes is looked up, and its dataset is compared with what this layer needs."""
    assert _check(tmp_path, GOOD + lines + "\n") == 2
    err = capsys.readouterr().err
    for text in texts:
        assert text in err


def test_augmented_audio_and_labels_of_frames(tmp_path, capsys):
    """Speed is refused where labels belong to frames, and dev must not be changed at all."""
    train = corpus(tmp_path, [{"class": "speed"}], targets=CHARS)
    lines = [
        "extern_data = {'data': {'dim': 1}, 'classes': {'dim': 256, 'sparse': True}}",
        "network = {'output': {'class': 'softmax', 'loss': 'ce', 'from': 'data'}}",
        "train = dev = %r" % train,
    ]
    assert _check(tmp_path, GOOD + "\n".join(lines)) == 2
    error = capsys.readouterr().err
    assert "Layer 'output': the loss 'ce' needs a label of 'classes' for each frame" in error
    assert "The dataset 'dev' has audio with 'augment'" in error
