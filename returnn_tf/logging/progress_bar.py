"""A progress bar on a terminal, or in a notebook of Jupyter."""

from __future__ import annotations

import html
import math
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable, Optional, TextIO

from returnn_tf.logging.handlers import write_to
from returnn_tf.logging.lines import NO_SETUP, Setup, progress_line, score_text, time_left
from returnn_tf.logging.memory import process_memory
from returnn_tf.logging.text import bytes_text, hms


class ProgressBar:
    """A line on a terminal that shows the progress of a pass over a dataset.

    ``train epoch 3  42% ########------------  ETA 0:01:23  step 120  score 1.23  12.3k frames/s``

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
        scores: Optional[Mapping[str, float]] = None,
        frames: Optional[int] = None,
        setup: Setup = NO_SETUP,
    ) -> None:
        """Redraw the bar, at most ten times a second.

        :param step: steps done
        :param complete: fraction that is done, 0 - 1
        :param scores: of the last step by loss, per label or frame
        :param frames: all frames so far
        :param setup: the steps that do not count for the speed
        """
        now = time.monotonic()
        elapsed = now - self._started
        if self._each_minute is not None and now - self._last_line >= self.SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._each_minute(progress_line(self.phase, step, elapsed, complete=complete, scores=scores, setup=setup))
        if not self.visible or now - self._drawn < self.INTERVAL:
            return
        self._drawn = now
        self._shown = True
        self.draw(complete, self.parts(step, complete, scores, frames, elapsed, setup))

    def draw(self, complete: Optional[float], parts: list[str]) -> None:
        """Show the bar in the place of the previous one.

        :param complete: fraction that is done, 0 - 1
        :param parts: see `parts`; the last ones are left out if the terminal is too narrow for them
        """
        columns = shutil.get_terminal_size().columns
        line = self.line(complete, parts)
        while len(line) >= columns and len(parts) > 1:
            parts = parts[:-1]
            line = self.line(complete, parts)
        write_to(self.stream, "\r\x1b[K" + line[: columns - 1])

    def line(self, complete: Optional[float], parts: list[str]) -> str:
        """Return the line, without control characters."""
        if complete is not None:
            done = int(20 * min(1.0, complete))
            parts = [parts[0], "%3d%% %s%s" % (100 * complete, "#" * done, "-" * (20 - done)), *parts[1:]]
        return "  ".join(parts)

    def parts(
        self,
        step: int,
        complete: Optional[float],
        scores: Optional[Mapping[str, float]],
        frames: Optional[int],
        elapsed: float,
        setup: Setup = NO_SETUP,
    ) -> list[str]:
        """Return the texts beside the bar: the phase first, then numbers, the most important ones first."""
        left = time_left(elapsed, complete, setup)
        parts = [self.phase, "elapsed %s" % hms(elapsed) if left is None else "ETA %s" % hms(left), "step %d" % step]
        if scores:
            parts.append("score %s" % score_text(scores, digits=4))
        seconds = elapsed - setup.seconds
        if frames is not None and frames > setup.frames and seconds > 0:
            parts.append("%s frames/s" % _short((frames - setup.frames) / seconds))
        memory = process_memory()
        if memory:
            parts.append("mem %s" % bytes_text(memory))
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


_BAR = (
    "<div style='font-family:monospace;white-space:pre'><progress value='%.4f' max='1' style='width:16em'></progress>"
    "  %s</div>"
)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, where output may be HTML."""
    return getattr(_shell(), "kernel", None) is not None


def _shell() -> Any:
    """Return the shell of IPython if this process has one; nothing is imported for that."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


class NotebookBar(ProgressBar):
    """A bar below the cell; all passes of a cell share one place, which is empty at the end.

    :param phase: see `phase_text`
    """

    _place: Any = None  # of the cell
    _cell: Optional[int] = None  # its number

    def __init__(self, phase: str) -> None:
        super().__init__(phase, sys.stdout, visible=True)

    def draw(self, complete: Optional[float], parts: list[str]) -> None:
        """Show the bar in the place of the previous one."""
        self._display(_BAR % (complete or 0.0, html.escape("  ".join(parts))))

    def erase(self) -> None:
        """Show nothing in its place."""
        self._display("")

    def _display(self, text: str) -> None:
        from IPython.display import HTML, display

        cell = _shell().execution_count
        if NotebookBar._place is None or NotebookBar._cell != cell:
            NotebookBar._place, NotebookBar._cell = display(HTML(text), display_id=True), cell
        else:
            NotebookBar._place.update(HTML(text))
