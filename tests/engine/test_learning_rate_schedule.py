"""``learning_rate_schedule``: its formulas, mistakes, and the rates that a training uses and tells."""

from __future__ import annotations

import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.learning_rate.planned import planned_rates
from returnn_tf.engine.learning_rate.schedule import (
    SCHEDULES,
    described,
    highest_factor,
    schedule_from_config,
    turning_points,
)
from returnn_tf.tasks.setting_checks import contradictions
from tests.run_tasks import run_task


def schedule(name: str, **options: Any) -> Any:
    return schedule_from_config(Config({"learning_rate_schedule": {"class": name, **options}, "num_epochs": 10}))


@pytest.mark.parametrize(
    "name,options,expected",
    [
        ("warmup", {"warmup": 4}, {1: 0.25, 3: 0.75, 4: 1.0, 5: 1.0, 900: 1.0}),
        ("warmup_inverse_sqrt", {"warmup": 4}, {1: 0.25, 4: 1.0, 16: 0.5, 64: 0.25}),
        ("noam", {"warmup": 4, "model_dim": 64}, {1: 1 / 64, 4: 1 / 16, 16: 1 / 32}),
        ("noam", {}, {1: 512**-0.5 * 4000**-1.5, 4000: (512 * 4000) ** -0.5}),
        ("exponential", {"decay": 0.5, "every": 2}, {1: 1.0, 2: math.sqrt(0.5), 3: 0.5, 5: 0.25}),
        ("exponential", {"decay": 0.5, "every": 2, "staircase": True}, {1: 1.0, 2: 1.0, 3: 0.5, 4: 0.5, 5: 0.25}),
        ("exponential", {"decay": 0.5, "warmup": 2}, {1: 0.5, 2: 1.0, 3: 0.5, 4: 0.25}),
        ("exponential", {"decay": 2.0}, {1: 1.0, 11: 1024.0, 5000: math.inf}),
        ("piecewise", {"factors": {1: 1.0, 10: 0.5, 30: 0}}, {1: 1.0, 9: 1.0, 10: 0.5, 29: 0.5, 30: 0, 99: 0}),
        ("cosine", {"total": 100}, {1: 1.0, 51: 0.5, 76: 0.5 - math.sqrt(0.125), 101: 0.0, 500: 0.0}),
        ("cosine", {"total": 100, "warmup": 0.1, "final": 0.2}, {1: 0.1, 10: 1.0, 101: 0.2}),
        ("linear", {"total": 10}, {1: 1.0, 2: 0.9, 10: 0.1, 11: 0.0}),
        ("polynomial", {"total": 10, "power": 2.0, "final": 0.5}, {1: 1.0, 6: 0.625, 11: 0.5}),
        ("linear", {"total": 11, "warmup": 2, "unit": "epoch"}, {1: 0.5, 2: 1.0, 3: 0.9, 11: 0.1}),
        ("warmup_stable_decay", {"total": 100, "warmup": 10}, {5: 0.5, 10: 1.0, 91: 1.0, 96: 0.5, 100: 0.1, 101: 0}),
        ("warmup_stable_decay", {"total": 100, "shape": "sqrt"}, {1: 1.0, 91: 1.0, 96: 1 - math.sqrt(0.5), 101: 0}),
        ("warmup_stable_decay", {"total": 100, "decay": 0.2, "shape": "cosine"}, {81: 1.0, 91: 0.5, 101: 0.0}),
        ("one_cycle", {"total": 100}, {9: 0.28, 45: 1.0, 90: 0.1, 95: 0.0505, 100: 0.001, 200: 0.001}),
        ("one_cycle", {"total": 10, "initial": 0, "rise": 5, "decay": 5}, {1: 0.2, 5: 1.0, 8: 0.4, 10: 0.0}),
    ],
    ids=str,
)
def test_formulas(name: str, options: Any, expected: Any) -> None:
    curve = schedule(name, **options)
    values = [curve.at(t) for t in expected]
    np.testing.assert_allclose(values, list(expected.values()), atol=1e-12)


def test_eden_is_the_product_of_both() -> None:
    """Section 3.4 of arXiv:2310.11230."""
    eden = schedule("eden")
    assert eden.factor(1, 1) == 0.5 and eden.factor(251, 1) == pytest.approx(0.75, rel=1e-3)
    assert eden.factor(7501, 1) == pytest.approx(2**-0.25)
    t, e = 20000, 30
    expected = ((t**2 + 7500**2) / 7500**2) ** -0.25 * ((e**2 + 3.5**2) / 3.5**2) ** -0.25
    assert eden.factor(t + 1, e + 1) == pytest.approx(expected)


@pytest.mark.parametrize("unit", ["step", "epoch"])
@pytest.mark.parametrize("name", sorted({name for name, _ in SCHEDULES.items()}))
def test_each_is_between_0_and_1_and_ends(name: str, unit: str) -> None:
    """Also the smallest and largest values of the options; the highest factor is that of a peak."""
    given: dict[str, dict[str, Any]] = {"piecewise": {"factors": {1: 0.5, 7: 1.0}}, "exponential": {"decay": 0.9}}
    options = {**given.get(name, {}), **({} if name == "eden" else {"unit": unit})}
    options.update({"total": 50} if "total" in SCHEDULES.get(name, "").__dataclass_fields__ else {})
    curve = schedule(name, **options)
    factors = [curve.factor(t, t) for t in [*range(1, 200), 10**4, 10**7]]
    assert all(0 <= factor <= 1 for factor in factors)
    own, points = turning_points(curve)
    assert own == ("step" if name == "eden" else unit)
    assert list(points) == sorted(points) and max(points.values()) == pytest.approx(highest_factor(curve))
    assert highest_factor(curve) == pytest.approx({"noam": 512**-0.5 * 4000**-0.5}.get(name, 1.0), rel=0.03)


def test_total_by_epoch_is_num_epochs() -> None:
    assert schedule("linear", unit="epoch").total == 10
    assert schedule("linear", unit="epoch", total=20).total == 20


@pytest.mark.parametrize(
    "given,message",
    [
        ({"warmup": 3}, r'learning_rate_schedule.* must be a dict with "class"'),
        ({"class": "cosin"}, "unknown schedule 'cosin'. Did you mean 'cosine'?"),
        ({"class": "cosine"}, "class 'cosine': total is missing: the number of all steps.*num_epochs"),
        ({"class": "cosine", "total": 9, "warm_up": 3}, "unknown option 'warm_up'.*Did you mean 'warmup'"),
        ({"class": "cosine", "total": 9, "warmup": 10}, r"warmup \(10\) are longer than total, 9"),
        ({"class": "one_cycle", "total": 9, "rise": 0.6, "decay": 0.5}, "rise .* and decay .* are longer than total"),
        ({"class": "cosine", "total": 9, "warmup": 1.5}, "'warmup' must be a whole number, or as a float a share"),
        ({"class": "cosine", "total": 9, "unit": "batch"}, "option 'unit' is 'batch'"),
        ({"class": "exponential"}, "'decay'"),
        ({"class": "piecewise", "factors": {10: 1.0}}, "'factors' must be a dict .* the first for 1"),
        ("cosine", "learning_rate_schedule"),
    ],
    ids=str,
)
def test_mistakes(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule_from_config(Config({"learning_rate_schedule": given}))


def test_a_forgotten_rate_is_told() -> None:
    config = Config({"learning_rate_schedule": {"class": "cosine", "total": 10}})
    assert "learning_rate is not set, so the highest rate is 1. Set learning_rate." in contradictions(config)[0]
    assert not contradictions(Config({"learning_rate_schedule": {"class": "noam"}}))
    config.update({"learning_rate": 0.1})
    assert not contradictions(config)


SETTINGS: dict[str, Any] = {
    "train": {"class": "Task12AXDataset", "num_seqs": 12},
    "dev": {"class": "Task12AXDataset", "num_seqs": 4, "fixed_random_seed": 1},
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}},
    "batch_size": 10000,
    "max_seqs": 4,
    "optimizer": {"class": "sgd"},
    "learning_rate": 0.5,
}


def trained(folder: pathlib.Path, **changes: Any) -> dict[str, Any]:
    """Return the parameters after a training in a folder."""
    files = {"model": str(folder / "net"), "learning_rate_file": str(folder / "rates")}
    config = Config({**SETTINGS, **files, **changes})
    run_task(config)
    return {
        name: value.tobytes()
        for name, value in checkpoint.read(str(folder / ("net.%03d" % config.int("num_epochs")))).items()
    }


def test_rates_of_steps_in_the_log_and_the_file(tmp_path: pathlib.Path, capsys: Any) -> None:
    """The rate of the epoch, of ``learning_rates``, times the factor of the step; the file has both."""
    options = {"class": "linear", "total": 9, "warmup": 2}
    trained(tmp_path, num_epochs=3, learning_rate_schedule=options, learning_rates={2: 0.7})
    text = capsys.readouterr().out
    assert [int(n) for n in re.findall(r"^train .* after (\d+) steps", text, re.M)] == [3, 3, 3]
    assert "start train epoch 1, learning rate 0.25\n" in text and "start train epoch 2, learning rate 0.525\n" in text
    told = re.findall(r"learning rate of the steps ([^,]*),", text)
    assert told == ["0.25 to 0.438 (at most 0.5)", "0.525 to 0.35", "0.262 to 0.0875"]
    epochs = read_file(str(tmp_path / "rates"))
    assert [epochs[e].learning_rate for e in (1, 2, 3)] == [0.5, 0.7, 0.7]
    effective = [epochs[e].error[":meta:effective_learning_rate"] for e in (1, 2, 3)]
    np.testing.assert_allclose(effective, [0.4375, 0.35, 0.0875])


def test_rates_by_epoch(tmp_path: pathlib.Path, capsys: Any) -> None:
    """Within an epoch they stay the same; `newbob` decides about the rate that the factor multiplies."""
    options = {"class": "piecewise", "unit": "epoch", "factors": {1: 1.0, 2: 0.1}}
    trained(tmp_path, num_epochs=2, learning_rate_schedule=options, learning_rate_control="newbob_abs")
    text = capsys.readouterr().out
    assert "start train epoch 1, learning rate 0.5\n" in text and "start train epoch 2, learning rate 0.05\n" in text
    assert "learning rate of the steps" not in text


def test_the_update_uses_the_rate_and_a_resumed_run_is_the_same(tmp_path: pathlib.Path) -> None:
    options = {"class": "cosine", "total": 9, "warmup": 2}
    whole = trained(tmp_path / "whole", num_epochs=3, learning_rate_schedule=options)
    parts = tmp_path / "parts"
    trained(parts, num_epochs=1, learning_rate_schedule=options)
    assert trained(parts, num_epochs=3, learning_rate_schedule=options) == whole
    curve = schedule("cosine", total=9, warmup=2)
    same = {"class": "piecewise", "factors": {t: curve.at(t) for t in range(1, 10)}}
    other = trained(tmp_path / "other", num_epochs=3, learning_rate_schedule=same)
    assert other == whole != trained(tmp_path / "plain", num_epochs=3)


def test_plot_of_planned_rates(tmp_path: pathlib.Path) -> None:
    """By step, where the schedule counts these; else by epoch, from the rates that the config gives."""
    by_step = Config({"learning_rate": 2.0, "learning_rate_schedule": {"class": "warmup", "warmup": 10}})
    unit, places, rates = planned_rates(by_step)
    assert unit == "step" and places[0] == 1 and places[-1] == 40 and rates[:2] == [0.2, 0.4] and rates[-1] == 2.0
    options = {"class": "linear", "unit": "epoch", "final": 0.5}
    by_epoch = Config({"learning_rates": {1: 0.1, 3: 0.2}, "num_epochs": 4, "learning_rate_schedule": options})
    unit, places, rates = planned_rates(by_epoch)
    assert (unit, places) == ("epoch", [1, 2, 3, 4])
    np.testing.assert_allclose(rates, [0.1, 0.0875, 0.15, 0.125])
    (tmp_path / "my.config").write_text("learning_rates = [0.1, 0.2]\nnum_epochs = 4\n")
    assert main(["plot", str(tmp_path / "my.config"), str(tmp_path / "rates.png"), "--planned"]) == 0
    assert (tmp_path / "rates.png").stat().st_size > 1000
    with pytest.raises(ConfigError, match="dynamic_learning_rate.* computed in each step .* not planned"):
        planned_rates(Config({"dynamic_learning_rate": {"interval": 5, "decay": 0.5}}))


def test_check_tells_the_rates(tmp_path: pathlib.Path, capsys: Any) -> None:
    text = "".join("%s = %r\n" % item for item in SETTINGS.items())
    (tmp_path / "my.config").write_text(
        text + "learning_rate_schedule = {'class': 'warmup_inverse_sqrt', 'warmup': 100}\n"
    )
    assert main(["check", str(tmp_path / "my.config")]) == 0
    expected = "0.005 in step 1, 0.5 in step 100, 0.25 in step 400"
    assert "note: learning rate by learning_rate_schedule: %s\n" % expected in capsys.readouterr().out
    assert described(schedule("linear", unit="epoch"), 2.0).endswith(": 2 in epoch 1, 0.2 in epoch 10")
