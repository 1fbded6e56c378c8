"""Where audio with ``augment`` may be used: in training only, with labels that need not belong to its frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.data.augmented import check_lengths_kept
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed.world import World
from returnn_tf.tensor import SpatialDim, parse_extern_data
from tests.datasets import utterances
from tests.datasets.test_augmentation import corpus
from tests.run_tasks import run_task

SPEED = [{"class": "speed"}]
ENCODER = {"class": "linear", "from": "data", "n_out": 4}
HALVES = {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": "encoder"}
LOSS = {"class": "softmax", "loss": "ce", "target": "classes"}
TIME = SpatialDim("frames")
APART = {"data": {"dim": 1}, "classes": {"dim": 256, "sparse": True}}
TOGETHER = {
    "data": {"dim": 1, "same_dim_tags_as": {"t": TIME}},
    "classes": {"dim": 256, "sparse": True, "same_dim_tags_as": {"t": TIME}},
}


def source(dataset: Any, name: str, **options: Any) -> DataSource:
    """Return the source of a dataset of a config."""
    return DataSource(Config({name: dataset}), name, parse_extern_data({"data": {"dim": 1}}), World(), **options)


@pytest.mark.parametrize("form", ["dict", "inner", "function"])
@pytest.mark.parametrize(("name", "options"), [("dev", {}), ("train", {"finite": True})])
def test_evaluation_is_not_changed(name: str, options: dict[str, Any], form: str, tmp_path: Path) -> None:
    """Also inside of another dataset; a task that does not train gives ``finite``."""
    given: Any = corpus(tmp_path, SPEED)
    allowed = {**given, "audio": {**given["audio"], "augment_evaluation": True}}
    if form == "inner":
        given, allowed = ({"class": "VariableDataset", "get_dataset": lambda d=d, **_: d} for d in (given, allowed))
    elif form == "function":
        given, allowed = (lambda d=d: d for d in (given, allowed))
    with pytest.raises(ConfigError, match="dataset '%s' has audio with 'augment'.*augment_evaluation" % name):
        source(given, name, **options)
    source(allowed, name, **options)


def test_training_is(tmp_path: Path) -> None:
    source(corpus(tmp_path, SPEED), "train")


def test_a_training_does_not_start(tmp_path: Path) -> None:
    """With labels of frames and another speed, before a step is run."""
    config = {"network": {"output": {**LOSS, "from": "data"}}, "extern_data": APART, "behavior_version": 21}
    dataset = corpus(tmp_path, SPEED, targets=utterances.CHARS)
    with pytest.raises(ConfigError, match="Layer 'output': the loss 'ce' needs a label"):
        run_task(Config({**config, "task": "train", "train": dataset, "model": str(tmp_path / "model")}))


NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any], Optional[str]]] = {
    "hybrid": ({"output": {**LOSS, "from": "encoder"}}, APART, "output"),
    "hybrid, one time axis": ({"output": {**LOSS, "from": "encoder"}}, TOGETHER, "output"),
    "hybrid, subsampled": ({"half": HALVES, "output": {**LOSS, "from": "half"}}, APART, "output"),
    "ctc": ({"output": {"class": "softmax", "loss": "ctc", "target": "classes", "from": "encoder"}}, APART, None),
    "audio as its own target": ({
        "output": {"class": "linear", "loss": "mse", "target": "data", "from": "encoder", "n_out": 1},
    }, APART, None),
    "decoder": ({"decoder": {"class": "rec", "from": [], "target": "classes", "unit": {
        "embedded": {"class": "linear", "from": "prev:output", "n_out": 3},
        "probabilities": {**LOSS, "from": "embedded"},
        "output": {
            "class": "choice", "from": "probabilities", "target": "classes", "beam_size": 2, "initial_output": 0,
        },
        "end": {"class": "compare", "from": "output", "value": 0},
    }}, "output": {"class": "copy", "from": "decoder"}}, APART, None),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("steps", [SPEED, [{"class": "tempo", "probability": 0}, {"class": "pitch"}]])
def test_labels_of_frames(steps: list[dict[str, Any]], name: str, tmp_path: Path) -> None:
    """Labels for each frame do not go with another speed."""
    network, extern_data, layer = NETWORKS[name]
    config = Config({"network": {"encoder": ENCODER, **network}, "extern_data": extern_data, "behavior_version": 21})
    dataset = Dataset.from_config(corpus(tmp_path, steps, targets=utterances.CHARS))
    plan = plan_from_config(config, train=True)
    if layer is None or steps is not SPEED:
        check_lengths_kept(dataset, [plan])
        return
    with pytest.raises(ConfigError, match="Layer '%s': the loss 'ce' needs a label .* for each frame" % layer):
        check_lengths_kept(dataset, [plan])
