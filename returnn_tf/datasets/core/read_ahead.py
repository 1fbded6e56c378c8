"""Reading the next sequences of an epoch in threads, for datasets whose reading costs much time outside of Python."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Generic, Optional, TypeVar

from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core.base_options import BaseOptions

T = TypeVar("T")

#: More threads than this hold each other up, since the part of reading that is Python runs in one at a time.
_MOST_THREADS = 4
#: Sequences per thread that are read, or being read, before they are requested.
_PER_THREAD = 3


def default_threads() -> int:
    """Return the number of threads for reading: one per core that this process may use, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)


@dataclass
class ReadAheadOptions(BaseOptions):
    """Options of a dataset that reads in threads: the base of its ``Options``.

    Such a dataset returns the number of threads as its property ``read_threads``. Then `Epoch` calls ``read``, ``tag``,
    ``lengths`` and ``file_of`` in several threads, for different sequences in any order, but delivers in the order of
    the epoch. So ``read`` must depend on nothing but its arguments: random numbers come from a generator per sequence,
    made from the seed of the epoch and the index in the corpus, and what is shared (an open zip file, a cache, a
    vocabulary that samples) needs a lock or one object per thread::

        class SpokenDataset(Dataset):
            @dataclass
            class Options(ReadAheadOptions):
                audio: Mapping[str, Any] = option(help="...")

            def setup(self):
                self._features = AudioFeatures.make(self.opts.audio, owner=self._owner())

            @property
            def read_threads(self):
                return self._features.threads(self.opts.read_threads)

            def read(self, index, epoch, keys):
                samples, rate = read_audio(self._content(index), name=self.file_of(index))
                rng = numpy.random.RandomState([self.epoch_seed(epoch), index])
                return {"data": self._features.extract(samples, rate, rng=rng, seq_name=self.tag(index))}
    """

    read_threads: Optional[int] = option(
        None,
        check=at_least(1),
        help="threads that read the next sequences; default: one per core, at most %d" % _MOST_THREADS,
    )


class ReadAhead(Generic[T]):
    """Reads items in threads before they are requested; from the second successive position on.

    :param read: reads the item at a position; called in several threads
    :param has: returns whether there is an item at a position
    :param threads: number of threads
    """

    def __init__(self, read: Callable[[int], T], has: Callable[[int], bool], threads: int):
        self._read = read
        self._has = has
        self._num_ahead = _PER_THREAD * threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reading")
        self._futures: dict[int, Future[T]] = {}
        self._last: Optional[int] = None

    def get(self, position: int) -> T:
        """Return the item at a position, or raise what reading it raised."""
        future = self._futures.pop(position, None)
        if position - 1 == self._last:
            self._expect(position + 1)
        self._last = position
        return self._read(position) if future is None else future.result()

    def _expect(self, start: int) -> None:
        """Begin to read the items from a position on, and drop others."""
        wanted = range(start, start + self._num_ahead)
        for position in [position for position in self._futures if position not in wanted]:
            self._futures.pop(position).cancel()
        for position in wanted:
            if position not in self._futures:
                if not self._has(position):
                    break
                self._futures[position] = self._pool.submit(self._read, position)

    def close(self) -> None:
        """Drop all items, and wait until no thread reads."""
        self._futures.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
