"""The suite's flags, its tiers, and what it costs: seconds of computing by folder, against a budget."""

from __future__ import annotations

import collections
import gc
import importlib
import itertools
import logging
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from returnn_tf.logging.log import log
from tests import processes
from tests.tiers import covering

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RETURNN_TF_META_GRAPH", "0")  # 0.2 s for hundreds of trainings; tests/compat/jobs has them

# A script which starts the suite in the background has it ignore Ctrl-C, as would all that the tests start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite the golden files; read the diff afterwards")
    parser.addoption("--fast", action="store_true", help="nothing slow, and one case of each function")
    parser.addini("budgets", "FOLDER = SECONDS of computing in a whole run, or --fast = those of all", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs")
    config.pluginmanager.register(Quickness(), "quickness")


#: Their networks are traced to be run once or few times, which TensorFlow's graph optimizer makes slower by a tenth to
#: a quarter. It is on in all other folders, as in test_parity.py, where networks with all kinds of layers have recorded
#: numbers, and in demos/ and recipes/, which train and search as users do.
_UNOPTIMIZED = tuple(
    "tests/%s/" % name for name in ("blocks", "cli", "compat", "compiler", "engine", "export", "layers", "ops", "tasks")
)
#: Of these, the trainings and tasks whose numbers are compared with recorded ones, and those of each kind.
_OPTIMIZED = ("tests/tasks/test_reference_run.py", "tests/tasks/test_training_tasks.py")


class Quickness:
    """Has the process spend less on what is not tested: garbage, stacks of ops, optimized graphs, new processes."""

    def __init__(self) -> None:
        self.unoptimized = False
        self.frozen: tuple[Any, bool] = (None, False)  # for which file, and whether TensorFlow had been imported
        processes.collect_seldom()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if "returnn_tf.datasets.processes.process" in sys.modules:
            importlib.import_module("tests.loading").fork_loading(item.get_closest_marker("own_process") is None)
        with_tensorflow = "tensorflow.python.ops.while_v2" in sys.modules
        if self.frozen != (item.path, with_tensorflow):
            # otherwise each full collection passes over what all files before have left: 5 s in the last ones
            gc.collect()
            gc.freeze()
            if with_tensorflow and not self.frozen[1]:
                processes.keep_one_stack()
                processes.trace_once()
            self.frozen = item.path, with_tensorflow
        if not with_tensorflow:
            return
        unoptimized = item.nodeid.startswith(_UNOPTIMIZED) and not item.nodeid.startswith(_OPTIMIZED)
        if unoptimized != self.unoptimized:
            processes.optimize_graphs(not unoptimized)
            self.unoptimized = unoptimized


def _path_of_modules() -> Iterator[None]:
    """Restore ``sys.path``: a config adds its folder, and some change it on purpose."""
    before = list(sys.path)
    yield
    sys.path[:] = before


path_of_modules = pytest.fixture(autouse=True)(_path_of_modules)
#: For fixtures of modules that load configs.
path_around_modules = pytest.fixture(autouse=True, scope="module")(_path_of_modules)


@pytest.fixture(autouse=True)
def log_of_the_package() -> Iterator[None]:
    """Have the log as importing networks leaves it, whatever other tests and fixtures of modules did with it."""
    _reset_log()
    yield
    _reset_log()


def _reset_log() -> None:
    log.configure()
    logging.getLogger("returnn_tf").propagate = True


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Return whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-goldens"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for by ``-m long`` or by name; with --fast, most of the rest."""
    _sample(items)
    if "long" in config.option.markexpr or any("::" in argument for argument in config.args):
        return
    kept = [item for item in items if not item.get_closest_marker("long")]
    if config.getoption("--fast"):
        kept = _some_of_each([item for item in kept if not any(map(item.get_closest_marker, ("slow", "gpu")))])
    left_out = set(items) - set(kept)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))


def _sample(items: list[pytest.Item]) -> None:
    """Make cases of functions with the marker `sampled` long, but for some with each value of each parameter.

    With `sampled(2)` those have each two values of two parameters, and so on. Those for a GPU are not sampled.
    """
    functions: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("gpu"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        (count,) = cases[0].get_closest_marker("sampled").args or (1,)
        values = {
            case: itertools.combinations([(name, id(value)) for name, value in case.callspec.params.items()], count)
            for case in cases
        }
        chosen = set(covering(values))
        for case in cases:
            if case not in chosen:
                case.add_marker(pytest.mark.long)


def _some_of_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return one case of each function, and one more for each 50.

    They stay the same, and are those with the same parameters in functions with the same, for the fixtures' sake.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = set()
    for cases in functions.values():
        by_hash = sorted(cases, key=lambda case: zlib.crc32(case.nodeid.partition("[")[2].encode()))
        chosen |= set(by_hash[: 1 + len(cases) // 50])
    return [item for item in items if item in chosen]


def _computing() -> float:
    """Return the seconds of computing of this process and of all that it started and that have ended."""
    return sum(os.times()[:4]) + processes.computing()


class Costs:
    """Seconds of computing (user and system) of the tests of each folder, and of the processes that they started.

    They don't depend on what else the machine does, unlike the time that passes.
    """

    def __init__(self, config: pytest.Config):
        lines = (line.partition("=") for line in config.getini("budgets"))
        budgets = {name.strip(): int(seconds) for name, _, seconds in lines}
        tier = budgets.pop("--fast", None)
        if config.getoption("--fast"):
            budgets = {} if tier is None else {"all": tier}
        self.budgets = {} if "long" in config.option.markexpr else budgets
        self.seconds: dict[str, float] = collections.Counter()
        self.cases: dict[str, int] = collections.Counter()
        self.before = 0.0

    def pytest_collection_finish(self) -> None:
        self.before = _computing()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """Tell a report what its phase (set-up, call, end) has cost; it may go from a worker of xdist to its master."""
        outcome = yield
        now = _computing()
        outcome.get_result().computing, self.before = now - self.before, now

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = report.nodeid.partition("::")[0].split("/")
        for name in (path[1] if len(path) > 2 else ".", "all"):
            self.seconds[name] += getattr(report, "computing", 0)  # a worker that crashed can't tell
            self.cases[name] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        over = {name for name, budget in self.budgets.items() if self.seconds[name] > budget}
        if over or (len(self.seconds) > 2 and terminalreporter.verbosity >= 0):
            terminalreporter.section("seconds of computing, by folder of tests/")
            terminalreporter.line("%-12s %6s %8s %8s" % ("folder", "cases", "seconds", "budget"))
            for name in sorted(self.seconds, key=lambda name: (name == "all", name)):
                line = "%-12s %6d %8.1f %8s" % (
                    name, self.cases[name], self.seconds[name], self.budgets.get(name, "")
                )  # fmt: skip
                terminalreporter.line(line + "   over its budget" * (name in over), yellow=name in over)
