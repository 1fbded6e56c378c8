"""Command line flags of the suite."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RETURNN_TF_META_GRAPH", "0")  # 0.2 s for each of hundreds of trainings; tests/jobs has them

# A script which starts the suite in the background has it ignore Ctrl-C, as would all that the tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the golden files; read the diff afterwards")


@pytest.fixture(autouse=True)
def path_of_modules() -> Iterator[None]:
    """Restore ``sys.path``: a config adds its folder, and some change it on purpose."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Return whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-goldens"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for by ``-m long`` or by name."""
    if "long" in config.option.markexpr or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if not item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
