"""Faults of one rank at all moments of a run, with either engine: all ranks end in time, say why, and resume."""

from __future__ import annotations

import importlib.util

import pytest

from tests.reliability import toy
from tests.reliability.conftest import SECONDS_TO_END
from tests.reliability.ranks_faults import FAULTS, LIMIT, Runs

pytestmark = pytest.mark.slow  # each starts processes

#: Engine, number of ranks, what they sum.
WORLDS = [
    (engine, number, reduce)
    for engine in ("tensorflow", "horovod")
    for number, reduce in ((2, "grad"), (2, "param"), (3, "param"), (4, "grad"))
]
CASES = [(world, name) for world in WORLDS for name, fault in FAULTS.items() if world[0] in fault.engines]
#: Those of `make test`: the ways in which ranks notice a fault.
_NAMES = (
    *("killed-evaluation", "stopped-step", "hangs-step", "terminated-step", "data_fails-step", "nan-step"),
    *("full_disk-saving", "differs-layer", "differs-version", "fewer_hosts"),
)
USUAL = [case for case in CASES if case[0] == WORLDS[0] and case[1] in _NAMES]


def _name(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, warm: toy.Warm, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return the runs of a world, each of which goes on where the one before has ended."""
    engine, number, reduce = request.param
    if engine == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed: make horovod tries to build it")
    return Runs(warm, tmp_path_factory.mktemp("ranks") / "run", engine, number, reduce)


@pytest.mark.parametrize(
    "runs, name",
    [pytest.param(*case, marks=[] if case in USUAL else pytest.mark.long) for case in CASES],
    indirect=["runs"],
    ids=_name,
)
def test_a_fault_of_one_rank(runs: Runs, name: str, request: pytest.FixtureRequest) -> None:
    seconds = runs.run(FAULTS[name])
    request.node.user_properties.append((SECONDS_TO_END, seconds))
    assert seconds < LIMIT


@pytest.mark.long
@pytest.mark.parametrize("runs", WORLDS, indirect=True, ids=_name)
@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_a_damaged_share(runs: Runs, how: str) -> None:
    """Of the newest checkpoint: it is named, and the one before is taken."""
    runs.run(FAULTS["terminated-step"].sharded())
    name = runs.damage(how)
    runs.run(FAULTS["terminated-step"].sharded())
    assert name in runs.text()
