"""A progress bar on a terminal."""

from __future__ import annotations

import math
import shutil
import time
from typing import Callable, Optional, TextIO

from returnn_tf.logging.handlers import write_to
from returnn_tf.logging.lines import progress_line
from returnn_tf.logging.memory import process_memory
from returnn_tf.logging.text import bytes_text, hms


class ProgressBar:
    """A line on a terminal that shows the progress of a pass over a dataset.

    ``train epoch 3  42% ########------------  step 120  loss 1.23  12.3k frames/s  ETA 0:01:23``

    :param phase: see `phase_text`
    :param visible: whether it is drawn
    :param each_minute: receives a line for the log, for readers without the bar
    """

    INTERVAL = 0.1
    SECONDS_BETWEEN_LINES = 60.0

    def __init__(
        self, phase: str, stream: TextIO, visible: bool, each_minute: Optional[Callable[[str], None]] = None
    ) -> None:
        self.phase = phase
        self.stream = stream
        self.visible = visible
        self._each_minute = each_minute
        self._started = self._last_line = time.monotonic()
        self._drawn = -math.inf
        self._shown = False

    def update(
        self,
        step: int,
        complete: Optional[float] = None,
        loss: Optional[float] = None,
        frames: Optional[int] = None,
    ) -> None:
        """Redraw the bar, at most ten times a second.

        :param step: steps done
        :param complete: fraction that is done, 0 - 1
        :param loss: the current one
        :param frames: all frames so far
        """
        now = time.monotonic()
        if self._each_minute is not None and now - self._last_line >= self.SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._each_minute(progress_line(self.phase, step, now - self._started, complete=complete, loss=loss))
        if not self.visible or now - self._drawn < self.INTERVAL:
            return
        self._drawn = now
        self._shown = True
        self.draw(complete, self.parts(step, complete, loss, frames, now - self._started))

    def draw(self, complete: Optional[float], parts: list[str]) -> None:
        """Show the bar in the place of the previous one.

        :param complete: fraction that is done, 0 - 1
        :param parts: see `parts`
        """
        columns = shutil.get_terminal_size().columns
        write_to(self.stream, "\r\x1b[K" + self.line(complete, parts)[: columns - 1])

    def line(self, complete: Optional[float], parts: list[str]) -> str:
        """Return the line, without control characters."""
        if complete is not None:
            done = int(20 * min(1.0, complete))
            parts = [parts[0], "%3d%% %s%s" % (100 * complete, "#" * done, "-" * (20 - done)), *parts[1:]]
        return "  ".join(parts)

    def parts(
        self, step: int, complete: Optional[float], loss: Optional[float], frames: Optional[int], elapsed: float
    ) -> list[str]:
        """Return the texts beside the bar: the phase first, then numbers."""
        parts = [self.phase, "step %d" % step]
        if loss is not None:
            parts.append("loss %.4g" % loss)
        if frames is not None and elapsed > 0:
            parts.append("%s frames/s" % _short(frames / elapsed))
        memory = process_memory()
        if memory:
            parts.append("mem %s" % bytes_text(memory))
        parts.append("ETA %s" % hms(elapsed / complete - elapsed) if complete else "elapsed %s" % hms(elapsed))
        return parts

    def clear(self) -> None:
        """Erase the bar, so that a line can be written in its place."""
        if self._shown:
            self.erase()
            self._shown = False

    def erase(self) -> None:
        """Show nothing in its place."""
        write_to(self.stream, "\r\x1b[K")

    def close(self) -> None:
        """End the bar with the pass."""
        self.clear()
        self.visible = False


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return "%.1f%s" % (number / size, unit)
    return "%.0f" % number
