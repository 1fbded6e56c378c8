"""Gradients of ops are registered once, whichever threads trace graphs with them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import pytest

from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf


def test_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the call of either thread returns, the gradient is there."""
    done, start = set(), threading.Barrier(2)

    def register(name: str) -> Callable[[Any], None]:
        time.sleep(0.05)
        return lambda _: done.add(name)

    def run(_: int) -> set[str]:
        start.wait()
        register_once(OpOfTwoThreads=lambda op, dy: [dy])
        return set(done)

    monkeypatch.setattr(tf, "RegisterGradient", register)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [{"OpOfTwoThreads"}] * 2
