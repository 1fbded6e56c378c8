"""The end of training between two steps: of several processes, none ends before the state is on disk."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from returnn_tf.engine.distributed.control import Control
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.training.step_boundary import EndRequested, StepBoundary


@pytest.mark.parametrize("by_signal", [True, False], ids=["signal", "callback"])
def test_all_wait_until_the_state_is_saved(by_signal: bool) -> None:
    """In a phase that may take long, so that the watchdog does not take a large checkpoint for a hang."""
    calls = MagicMock()
    world: Any = SimpleNamespace(
        size=2,
        gather=lambda value: [value, value],
        committed=lambda: None,
        barrier=calls.barrier,
        heartbeat=SimpleNamespace(long_phase=calls.long_phase),
    )
    saver: Any = SimpleNamespace(check=lambda: None, wait=calls.wait, due=lambda step: False, model="net/toy")
    stop = StopRequest()
    control = Control(any_pause=True)
    nothing: Any = MagicMock()
    boundary = StepBoundary(saver, stop, nothing, world, nothing)
    boundary.begin(control, lambda: 1)
    if by_signal:
        stop.signum = signal.SIGTERM
    else:
        boundary.request_end("enough")
    with pytest.raises(Stopped if by_signal else EndRequested):
        boundary.after_step(calls.save)
    assert [call[0] for call in calls.mock_calls] == ["save", "long_phase", "wait", "barrier"]
