"""Which steps are traced, and that the traces are there."""

from __future__ import annotations

import glob

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.monitoring.profiling import ProfileOptions, Profiler, profile_options
from returnn_tf.util.lazy_tf import tf


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, None),
        ({"profile": False}, None),
        ({"profile": "True"}, ProfileOptions()),
        ({"profile": {"first_step": 3, "steps": 2, "every": 7}}, ProfileOptions(3, 2, 7)),
        ({"store_metadata_mod_step": 100}, ProfileOptions(100, 1, 100)),
        ({"store_metadata_mod_step": None}, None),
    ],
)
def test_options(settings, expected):
    config = Config({})
    for key, value in settings.items():
        config.set(key, value)
    if settings.get("profile") == "True":  # as the command line gives it
        config = Config({"profile": True})
    assert profile_options(config) == expected


@pytest.mark.parametrize(
    "given, message",
    [
        ("all", "expected True or a dict"),
        ({"step": 3}, "unknown option 'step'.*'steps'"),
        ({"steps": 0}, "'steps' must be at least 1, got 0"),
        ({"first_step": 1.5}, "'first_step' must be a whole number, got 1.5"),
        ({"steps": 5, "every": 5}, "every must be more than steps"),
    ],
)
def test_wrong_options(given, message):
    with pytest.raises(ConfigError, match=message):
        profile_options(Config({"profile": given}))


def test_a_folder_is_needed():
    with pytest.raises(ConfigError, match="need a folder: set tf_log_dir"):
        Profiler.from_config(Config({"profile": True}), None)


@pytest.mark.parametrize(
    "options, steps, traced",
    [
        (ProfileOptions(2, 3), 8, [2, 3, 4]),
        (ProfileOptions(1, 1, 3), 8, [1, 4, 7]),
        (ProfileOptions(6, 5), 8, [6, 7]),
        (ProfileOptions(20, 5), 8, []),
    ],
)
def test_which_steps(options, steps, traced, tmp_path, monkeypatch, capsys):
    running, seen = [], []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: running.append(folder))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: running.clear())
    profiler = Profiler(options, str(tmp_path))
    for step in range(steps):
        with profiler.step():
            if running:
                seen.append(step)
    profiler.close()
    assert seen == traced and not running
    assert ("tensorboard --logdir" in capsys.readouterr().out) == bool(traced)


def test_a_trace_is_written(tmp_path):
    profiler = Profiler(ProfileOptions(0, 1), str(tmp_path))
    with profiler.step():
        tf.reduce_sum(tf.ones([10, 10])).numpy()
    assert glob.glob(str(tmp_path / "plugins" / "profile" / "*" / "*.xplane.pb"))
