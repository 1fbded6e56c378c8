"""Mutated networks are planned or refused with a `ConfigError`; and the fuzz itself finds what it looks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import pytest

from returnn_tf.config import ConfigError
from tests import processes
from tests.compiler import fuzz, mutations

COUNT = 500


@pytest.mark.slow
@pytest.mark.parametrize(
    "start, count", [(0, COUNT), pytest.param(COUNT, 40_000, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_mutated_networks(start: int, count: int) -> None:
    """In a process of its own, because of the limits of memory and time; what is planned needs little memory."""
    arguments = ["-m", "tests.compiler.fuzz", "--start", str(start), "--count", str(count)]
    done = processes.run(arguments, cwd=processes.ROOT, timeout=7200)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-3000:]
    assert int(done.stdout.rpartition(" MiB")[0].rpartition(" ")[2]) < 200


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Apply the limits without that of memory, of which this process may have more."""
    monkeypatch.setattr(fuzz.resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(fuzz, "TIME_LIMIT", 0.2)
    monkeypatch.setattr(fuzz, "describe_plan", lambda _: None)
    with fuzz.limits():
        yield


def _hang() -> None:
    while True:
        pass


def _recurse() -> None:
    _recurse()


def _refuse(message: str) -> Callable[[], None]:
    def refuse() -> None:
        raise ConfigError(message)

    return refuse


@pytest.mark.parametrize(
    "planning, kind",
    [
        (lambda: None, None),
        (_refuse("Layer 'x': wrong.\nMore."), None),
        (_refuse("\nLayer 'x': wrong."), "unfit message"),
        (_refuse("x" * 5000), "unfit message"),
        (lambda: {}["x"], "KeyError"),
        (_recurse, "RecursionError"),
        (_hang, "TooSlow"),
    ],
)
def test_what_is_a_failure(monkeypatch: pytest.MonkeyPatch, limits: None, planning: Any, kind: Any) -> None:
    monkeypatch.setattr(fuzz, "plan_from_config", lambda config, **_: planning())
    failure = fuzz.check(0, "name", {"network": {}})
    assert (failure and failure.kind) == kind


def test_a_failure_is_reduced(monkeypatch: pytest.MonkeyPatch, limits: None) -> None:
    """To the only part of a network that planning, as it is here, cannot do with."""

    def plan(config: Any, **_: Any) -> None:
        if 7 in config.typed("network").get("b", {}).get("dims", ()):
            raise IndexError

    monkeypatch.setattr(fuzz, "plan_from_config", plan)
    network = {"a": {"class": "copy"}, "b": {"class": "copy", "from": ["a"], "dims": (1, 2, 7)}}
    failure = fuzz.check(3, "name", {"network": network, "extern_data": {"data": {"dim": 3}}})
    assert failure is not None
    assert fuzz.reduced(failure).settings == {"network": {"b": {"dims": (7,)}}}


def test_a_number_stands_for_one_network() -> None:
    """The networks themselves stay as they are, and every mutation is used."""
    networks = mutations.corpus()
    assert len(networks) > 600
    before = repr(networks)
    first, second = ([repr(mutations.mutated(networks, number)) for number in range(200)] for _ in range(2))
    assert first == second and len(set(first)) > 190
    assert repr(networks) == before
