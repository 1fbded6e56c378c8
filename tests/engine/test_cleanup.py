"""Which checkpoints go, against recorded choices."""

import json
import os

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.checkpoints.cleanup import CleanupOptions, epochs_to_delete, options_from_config
from returnn_tf.engine.learning_rate.file import EpochData, read_file

OUTPUTS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "outputs")
with open(os.path.join(OUTPUTS, "cleanup_old_models.json"), encoding="utf8") as _f:
    CASES = json.load(_f)["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_recorded_choice(case):
    """The same epochs go."""
    scores = {
        epoch: EpochData(0.1, {key: values[epoch - 1] for key, values in case["scores"].items()})
        for epoch in range(1, case["num_epochs"] + 1)
    }
    options = options_from_config(Config({"cleanup_old_models": case["cleanup_old_models"]}))
    deleted = epochs_to_delete(case["stored_epochs"], scores, options)
    assert deleted == case["deleted"]
    assert sorted(set(case["stored_epochs"]) - set(deleted)) == case["kept"]


def test_recorded_run():
    """The file of a real run, with several data sets."""
    scores = read_file(os.path.join(OUTPUTS, "run_newbob.data"))
    deleted = epochs_to_delete(range(1, 13), scores, CleanupOptions(2, 2, [3, 6]))
    assert deleted == [2, 9, 10]


@pytest.mark.parametrize("value", [None, False, 0])
def test_off(value):
    """Nothing is deleted unless asked for."""
    assert options_from_config(Config({"cleanup_old_models": value})) is None
    assert options_from_config(Config()) is None


@pytest.mark.parametrize(
    "value, message",
    [
        ({"keep_last": 3}, "Did you mean 'keep_last_n'"),
        ({"keep_last_n": -1}, "keep_last_n must be"),
        ({"keep_best_n": "all"}, "keep_best_n must be"),
        ({"keep": "all"}, "keep must be a list"),
        ("yes", "expected True, False or a dict"),
    ],
)
def test_errors(value, message):
    """Wrong options."""
    with pytest.raises(ConfigError, match="cleanup_old_models.*" + message):
        options_from_config(Config({"cleanup_old_models": value}))
