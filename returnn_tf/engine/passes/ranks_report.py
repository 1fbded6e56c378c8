"""Time statistics of each process in a pass, and detection of stragglers."""

from __future__ import annotations

from dataclasses import asdict

from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.logging.log import log

_DIFFERENCE = 1.2  # relative work, compared to the fastest rank, that makes a straggler
_FEWEST_STEPS = 10  # with fewer, a difference is not significant


def gather(world: World, state: PassState) -> list[PassState]:
    """Return the pass states of all processes, by rank."""
    names = PassState.__dataclass_fields__
    here = {name: value for name, value in asdict(state).items() if name in names}
    return [PassState(**values) for values in world.gather(here)]


def write(phase: str, world: World, by_rank: list[PassState], level: int) -> None:
    """Log a line for each rank of `gather` (on the chief), and a warning of a straggler."""
    if len(by_rank) < 2 or not world.is_chief:
        return
    hosts = world.hosts()
    for rank, state in enumerate(by_rank):
        log.write(level, "%s, rank %d on %s: %s" % (phase, rank, hosts[rank], _times(state)))
    line = straggler(by_rank, hosts)
    if line:
        log.warn("%s, %s" % (phase, line))


def straggler(by_rank: list[PassState], hosts: list[str]) -> str:
    """Return a warning of a rank with 20 % more work per step than the fastest, or ""."""
    work = [work_per_step(state) for state in by_rank]
    slow, quick = work.index(max(work)), work.index(min(work))
    if min(state.steps for state in by_rank) < _FEWEST_STEPS:
        return ""
    if work[slow] <= _DIFFERENCE * work[quick] or not work[quick]:
        return ""
    return "straggler: rank %d on %s works %.4f sec/step, rank %d on %s %.4f; the others wait for it" % (
        slow,
        hosts[slow],
        work[slow],
        quick,
        hosts[quick],
        work[quick],
    )


def work_per_step(state: PassState) -> float:
    """Return the seconds per step for data and computing, without communication."""
    found = times_of(state)
    return found["compute"] + found["data_wait"]


def times_of(state: PassState) -> dict[str, float]:
    """Return the seconds per step, and their parts, of the steps in which no graph was made."""
    steps = max(state.steps - state.setup_steps, 1)
    return {
        "seconds_per_step": state.seconds_per_step or 0.0,
        "compute": (state.compute_seconds - state.communication_seconds) / steps,
        "communication": state.communication_seconds / steps,
        "data_wait": state.wait_seconds / steps,
    }


def values(by_rank: list[PassState]) -> dict[str, float]:
    """Return the times of each rank by name, for event files."""
    return {
        "time/rank%d/%s" % (rank, name): seconds
        for rank, state in enumerate(by_rank if len(by_rank) > 1 else [])
        for name, seconds in times_of(state).items()
    }


def _times(state: PassState) -> str:
    whole, *parts = times_of(state).values()
    text = "%.4f sec/step: compute %.4f, communication %.4f, waiting for data %.4f; %d steps, %d frames"
    return text % (whole, *parts, state.steps, state.frames)
