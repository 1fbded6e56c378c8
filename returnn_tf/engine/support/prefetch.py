"""A thread which converts the next batches to tensors while the current step runs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable

_DEPTH = 2  # batches ready in advance
_POLL_SECONDS = 0.1


class Prefetcher:
    """Iterator over (batch, converted batch); ``wait_seconds`` is the total time its user had to wait.

    An exception in the batches or the conversion is raised in the consumer. `close` must be called at the end.

    :param batches: read in the thread
    :param convert: called with each batch in the thread
    """

    def __init__(self, batches: Iterable[Any], convert: Callable[[Any], Any]) -> None:
        self.wait_seconds = 0.0
        self._batches = batches
        self._convert = convert
        self._queue: queue.Queue[tuple[str, Any, Any]] = queue.Queue(maxsize=_DEPTH)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        start = time.perf_counter()
        kind, first, second = self._queue.get()
        self.wait_seconds += time.perf_counter() - start
        if kind == "end":
            raise StopIteration
        if kind == "error":
            raise first
        return first, second

    def close(self) -> None:
        """Stop the thread, even if there are batches left."""
        self._stop.set()
        close = getattr(self._batches, "close", None)
        if close is not None and not self._thread.is_alive():
            close()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                pass
            self._thread.join(_POLL_SECONDS)

    def _work(self) -> None:
        try:
            for batch in self._batches:
                if not self._put(("batch", batch, self._convert(batch))):
                    return
            self._put(("end", None, None))
        except BaseException as exc:  # any kind is passed to the consumer
            self._put(("error", exc, None))

    def _put(self, item: tuple[str, Any, Any]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
