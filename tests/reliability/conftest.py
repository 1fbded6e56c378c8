"""Runs shared by the tests of reliability; how long ranks took to end after a fault."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.reliability import toy

#: A property of reports: the seconds from a fault of a rank to the end of all ranks.
SECONDS_TO_END = "seconds_to_end"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell the distribution of these seconds."""
    passed = terminalreporter.getreports("passed")
    seconds = sorted(
        float(value) for report in passed for name, value in report.user_properties if name == SECONDS_TO_END
    )
    if seconds:
        median, most = (seconds[int(part * (len(seconds) - 1))] for part in (0.5, 0.95))
        terminalreporter.line(
            "%d faults of ranks, seconds until all ranks had ended: median %.1f, 95 %% within %.1f, at most %.1f"
            % (len(seconds), median, most, seconds[-1])
        )


@pytest.fixture(scope="session")
def warm() -> Iterator[toy.Warm]:
    """Start runs of the program quickly."""
    with toy.Warm() as server:
        yield server


@pytest.fixture(scope="session")
def undisturbed(warm: toy.Warm, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of a toy run which nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    toy.write_config(folder)
    assert warm.run(folder) == 0, toy.text_of(folder)
    return folder
