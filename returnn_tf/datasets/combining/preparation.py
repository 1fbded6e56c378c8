"""Datasets that are made in advance."""

from __future__ import annotations

import os
import threading
from typing import Callable, Optional

from returnn_tf.datasets.core.base import Dataset


class Preparation:
    """A dataset that is made in a thread, or where it is first needed.

    :param make: makes it
    """

    def __init__(self, make: Callable[[], Dataset]):
        self._make = make
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._result: Optional[Dataset] = None
        self._dropped = False

    @property
    def is_ours(self) -> bool:
        """Return whether this process made it; a thread is not there after a fork."""
        return self._pid == os.getpid()

    def start(self) -> None:
        """Make it in a thread; an error shows when the result is needed, where it is made again."""
        threading.Thread(target=self._try, daemon=True).start()

    def _try(self) -> None:
        try:
            self.result()
        except Exception:
            self._result = None
        if self._dropped:
            self.drop()

    def drop(self) -> None:
        """Close the files of the dataset, once it is made; they are reopened if it is still read."""
        self._dropped = True
        if self._result is not None and self.is_ours:
            self._result.close()

    def result(self) -> Dataset:
        """Return the dataset, waiting for it."""
        with self._lock:
            if self._result is None:
                self._result = self._make()
            return self._result
