"""Task ``search``: the beam from the command line, and hypotheses that never end."""

from __future__ import annotations

import ast
import copy
import pathlib
import shutil
from typing import Any

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.search.beam import with_beam_size
from tests.run_tasks import run_task
from tests.tasks.test_search import REFERENCE, SETTINGS


@pytest.fixture
def model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    for path in REFERENCE.glob("network.080.*"):
        shutil.copy(path, tmp_path / "net")
    return tmp_path


def settings(**loop: Any) -> dict[str, Any]:
    result = copy.deepcopy(SETTINGS)
    result["network"]["output"].update(loop)
    return result


@pytest.mark.slow
def test_beam_size_of_the_command_line(model: pathlib.Path) -> None:
    config = Config({**settings(), "beam_size": 3})
    config.set_text("beam_size", "2")
    assert run_task(config) == 0
    beams = [ast.literal_eval(line) for line in (model / "out").read_text().splitlines()]
    assert [len(beam) for beam in beams] == [2] * 4


def choices(network: dict[str, Any]) -> Any:
    return with_beam_size(Config({"network": network})), with_beam_size(overridden({"network": network}))


def overridden(values: dict[str, Any], text: str = "5") -> Config:
    config = Config(values)
    config.set_text("beam_size", text)
    return config


def test_choices_at_any_depth() -> None:
    choice = {"class": "choice", "beam_size": 3}
    masked = {"class": "masked_computation", "unit": {"class": "subnetwork", "subnetwork": {"c": dict(choice)}}}
    network = {"loop": {"class": "rec", "unit": {"output": choice, "m": masked}}, "l": {"class": "linear"}}
    plain, changed = choices(network)
    assert plain.typed("network") == network
    unit = changed.typed("network")["loop"]["unit"]
    assert unit["output"]["beam_size"] == unit["m"]["unit"]["subnetwork"]["c"]["beam_size"] == 5
    assert changed.typed("network")["l"] == {"class": "linear"}
    assert choice["beam_size"] == 3


def test_a_file_sets_its_own_name() -> None:
    config = Config({"network": {}, "beam_size": 5})
    assert with_beam_size(config) is config


@pytest.mark.parametrize("text", ["0", "-1"])
def test_no_beam(text: str) -> None:
    with pytest.raises(ConfigError, match="'beam_size' .the command line.* must be at least 1"):
        with_beam_size(overridden({"network": {}}, text))


@pytest.mark.slow
@pytest.mark.parametrize("limit, count", [(1, 3), (6, 0)])
def test_hypotheses_without_end_are_counted(
    model: pathlib.Path, capsys: pytest.CaptureFixture[str], limit: int, count: int
) -> None:
    assert run_task(Config(settings(max_seq_len=limit))) == 0
    shown = capsys.readouterr()
    lines = [line for line in (shown.out + shown.err).splitlines() if "had not ended" in line]
    assert len(lines) == (1 if count else 0)
    if count:
        assert "of 4 sequences the best hypothesis of %d had not ended after max_seq_len" % count in lines[0]
