"""A progress bar in notebooks of Jupyter, which are no terminals."""

from __future__ import annotations

import html
import sys
from typing import Any, Optional

from returnn_tf.logging.progress_bar import ProgressBar

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
