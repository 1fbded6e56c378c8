"""Which checkpoint is loaded, and where training starts, against recorded choices."""

import json
import os

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.engine.checkpoints.selection import (
    ModelChoice,
    checkpoint_exists,
    epoch_of_path,
    find_checkpoints,
    find_step_checkpoints,
    select_model,
)

DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "config")
with open(os.path.join(DATA, "model_selection.json"), encoding="utf8") as _f:
    CASES = json.load(_f)["cases"]


def choose_model(config):
    """Return the choice among the existing checkpoints."""
    model = CheckpointSettings(config).model
    return select_model(config, find_checkpoints(model), checkpoint_exists, find_step_checkpoints(model))


def config_for(folder, options):
    """Return a config whose model is net in the folder."""
    options = {k: v.replace("DIR", str(folder)) if isinstance(v, str) else v for k, v in options.items()}
    return Config(dict(options, model=str(folder / "net"), num_epochs=20))


@pytest.mark.parametrize("case", CASES, ids=lambda c: "%s %s" % (c["existing_epochs"], c["config"]))
def test_recorded_choice(case, tmp_path):
    """The same file, epoch and start epoch, or an error."""
    names = ["net.%03d" % e for e in case["existing_epochs"]] + ["other.050"]
    names += ["net.pretrain.%03d" % e for e in case["existing_pretrain_epochs"]]
    for name in names:
        (tmp_path / (name + ".index")).touch()
    config = config_for(tmp_path, case["config"])
    if isinstance(case["epoch_model"], str):
        with pytest.raises(ConfigError, match="there is no checkpoint"):
            choose_model(config)
        return
    choice = choose_model(config)
    assert [choice.epoch, choice.path and os.path.basename(choice.path)] == case["epoch_model"]
    assert choice.start_epoch == case["train_start_epoch"]


def test_only_pretrain_checkpoints(tmp_path):
    """They count where there is no other of that epoch."""
    for name in ("net.pretrain.001", "net.pretrain.002", "net.001", "net.x", "nets.003"):
        (tmp_path / (name + ".index")).touch()
    found = find_checkpoints(str(tmp_path / "net"))
    assert {e: os.path.basename(p) for e, p in found.items()} == {1: "net.001", 2: "net.pretrain.002"}
    assert find_checkpoints(str(tmp_path / "no" / "net")) == find_checkpoints("") == {}


def test_load_by_any_file_of_the_checkpoint(tmp_path):
    """The suffix may be there; a name without number is epoch 0, so training starts at 1."""
    (tmp_path / "best.index").touch()
    choice = choose_model(config_for(tmp_path, {"task": "train", "load": "DIR/best.index"}))
    assert choice == ModelChoice(0, str(tmp_path / "best"), 1)
    assert epoch_of_path("a/model.pretrain.012") == 12


def test_load_of_a_running_training_may_be_gone(tmp_path):
    """With own checkpoints, load has no effect; the file needn't be there any more."""
    (tmp_path / "net.003.index").touch()
    assert choose_model(config_for(tmp_path, {"load": "DIR/gone.001"})).epoch == 3


def test_start_epoch_errors(tmp_path):
    """Epochs count from 1; "auto" is the default."""
    with pytest.raises(ConfigError, match="start_epoch"):
        choose_model(config_for(tmp_path, {"start_epoch": 0}))
    assert choose_model(config_for(tmp_path, {"start_epoch": "auto"})) == ModelChoice()


def test_epoch_is_another_name(tmp_path):
    """epoch says which model to evaluate."""
    for epoch in (1, 2):
        (tmp_path / ("net.%03d.index" % epoch)).touch()
    assert choose_model(config_for(tmp_path, {"task": "eval", "epoch": 1})).epoch == 1


def test_the_epoch_of_a_link_is_that_of_the_real_name(tmp_path):
    """As links to the best checkpoint have it."""
    real = tmp_path / "net.012"
    for suffix in (".index", ".data-00000-of-00001"):
        (tmp_path / ("net.012" + suffix)).write_text("")
        os.symlink(tmp_path / ("net.012" + suffix), tmp_path / ("best" + suffix))
    for name in ("best", "best.index"):
        choice = choose_model(Config({"task": "eval", "load": str(tmp_path / name)}))
        assert (choice.epoch, choice.path) == (12, os.path.realpath(real))
    choice = choose_model(Config({"task": "eval", "load": str(tmp_path / "best"), "load_epoch": 3}))
    assert (choice.epoch, choice.path) == (3, os.path.realpath(real))
