"""The thread in front of the steps: order, errors, and no thread left at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from returnn_tf.config import DataError
from returnn_tf.engine.support.prefetch import Prefetcher


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def test_batches_come_converted_and_in_order() -> None:
    prefetcher = Prefetcher(range(20), lambda number: number * 2)
    assert list(prefetcher) == [(number, 2 * number) for number in range(20)]
    prefetcher.close()
    assert threads() == 0


def test_an_error_reaches_the_user_after_the_batches_before_it() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise DataError("seq-7 is broken")

    prefetcher, seen = Prefetcher(batches(), lambda number: number), []
    with pytest.raises(DataError, match="seq-7"):
        for batch, _ in prefetcher:
            seen.append(batch)
    prefetcher.close()
    assert seen == [1] and threads() == 0


def test_closing_in_the_middle_of_an_endless_stream_ends_the_thread() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    prefetcher: Any = Prefetcher(endless(), lambda number: number)
    next(iter(prefetcher))
    prefetcher.close()
    assert threads() == 0


def test_waiting_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock before and after each of three batches and the end."""
    now = iter([0.0, 1.0, 10.0, 12.0, 20.0, 24.0, 30.0, 38.0])
    prefetcher = Prefetcher(iter(range(3)), lambda number: number)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    assert len(list(prefetcher)) == 3 and prefetcher.wait_seconds == 1.0 + 2.0 + 4.0 + 8.0
    prefetcher.close()
