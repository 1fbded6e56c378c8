"""``returnn-tf status --watch FOLDER``: all runs below folders, shown again and again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, TextIO, Union

from returnn_tf.cli.status.facts import progress_of, runs_below, state_of
from returnn_tf.engine.learning_rate.file import leading_score
from returnn_tf.engine.monitoring.status_file import ABORTED
from returnn_tf.logging.text import counted, hms, is_terminal, paint, printable, wants_color

_SECONDS = 2.0  # from picture to picture
_SEARCH_SECONDS = 10.0  # from search to search for new runs: it lists every folder
_NARROWEST = 12  # columns of a name
_GAP = "  "
_COLORS = {"running": "green", "dead": "red", "failed": "red", "silent": "yellow"}
_ORDER = ("running", "probably running", "silent", "dead", "failed", "stopped", "finished")


@dataclass(frozen=True)
class RunRow:
    """One run, as it is shown.

    :param name: its path below the folder
    :param state: of `_ORDER`
    :param cells: what follows in the table, by column
    """

    name: str
    state: str
    cells: Mapping[str, str]

    def news(self) -> str:
        """Return what is worth a line where lines can't be replaced: neither steps nor times."""
        shown = [self.cells[column] for column in ("epoch", "best") if self.cells[column]]
        return "%s: %s" % (self.name, ", ".join([self.state, *shown]))


#: Columns after name and state, the one that a narrow terminal loses last first.
_COLUMNS = ("epoch", "best", "done", "loss", "s/step", "updated")


def run(folders: Sequence[str], stream: TextIO, wait: Callable[[float], None] = time.sleep) -> int:
    """Show all runs below folders until Ctrl-C.

    On a terminal a table is redrawn in its place; elsewhere, a line is written when the state, the epoch or the best
    score of a run has changed.

    :param stream: the standard output
    :param wait: called with the seconds between two looks at the files
    :return: 0
    """
    screen: Union[_Screen, _Lines] = (
        _Screen(stream) if is_terminal(stream) and os.environ.get("TERM") != "dumb" else _Lines(stream)
    )
    models: list[tuple[str, str]] = []
    due = 0.0
    try:
        while True:
            if time.monotonic() >= due:
                models = [(folder, model) for folder in folders for model in runs_below(folder)]
                due = time.monotonic() + _SEARCH_SECONDS
            screen.show([row_of(model, folder if len(folders) == 1 else os.curdir) for folder, model in models])
            wait(_SECONDS)
    except KeyboardInterrupt:
        return 0
    finally:
        screen.close()


def row_of(model: str, folder: str) -> RunRow:
    """Return the row of a run.

    :param model: path prefix of its checkpoints
    :param folder: its name is relative to this one
    """
    facts = progress_of(model)
    status = facts["status"]
    cells = dict.fromkeys(_COLUMNS, "")
    if "epoch" in status:
        cells["epoch"] = "%s/%s" % (status["epoch"], status.get("num_epochs", "?"))
    state = _state(facts)
    if state in _ORDER[:3]:
        for column, key, text in (
            ("done", "complete", "%.0f%%"),
            ("loss", "loss", "%.4g"),
            ("s/step", "seconds_per_step", "%.3g"),
        ):
            value = status.get(key)
            if isinstance(value, (int, float)):
                cells[column] = text % (100 * value if key == "complete" else value)
        cells["updated"] = hms(facts["silence"])
    best = facts.get("best", {})
    score = leading_score(best)
    if score is not None:
        epoch, value = best[score]
        cells["best"] = "%s %.4g (%d)" % (score, value, epoch)
    elif facts["problems"]:
        cells["best"] = facts["problems"][0]
    return RunRow(
        printable(os.path.relpath(model, folder)), state, {column: printable(text) for column, text in cells.items()}
    )


def _state(facts: Mapping[str, Any]) -> str:
    """Return one of `_ORDER`: an end is divided into finished, stopped and failed."""
    if not facts["status"]:
        return "dead"
    state = state_of(dict(facts))
    if state != "ended":
        return state
    reason, code = (facts["status"]["ended"].get(key) for key in ("reason", "exit_code"))
    if reason == "finished":
        return "finished"
    # an error has no exit code yet, or that of a rank that failed: 1
    return "stopped" if reason == ABORTED or code not in (None, 1) else "failed"


def table(rows: Sequence[RunRow], width: int, height: int, *, color: bool = False) -> list[str]:
    """Return the lines of a table that fits into a terminal.

    What does not fit in width are the last columns, then parts of names; in height, the runs that ended.

    :param width: the most letters of a line
    :param height: the most lines
    """
    rows = sorted(rows, key=lambda row: _ORDER.index(row.state))  # stable: those of a state stay in the order of names
    counts = ["%d %s" % (sum(row.state == s for row in rows), s) for s in _ORDER if any(r.state == s for r in rows)]
    head = "%s: %s" % (counted(len(rows), "run"), ", ".join(counts)) if rows else "no run yet"
    lines = [head[:width]]
    if len(rows) + 2 > height:
        lines, left = [lines[0]], max(height - 3, 0)
        hidden = len(rows) - left
        rows = rows[:left]
    else:
        hidden = 0
    if rows:
        lines += _body(rows, width, color=color)
    if hidden:
        lines.append(("... and %d more" % hidden)[:width])
    return lines[:height]


def _body(rows: Sequence[RunRow], width: int, *, color: bool) -> list[str]:
    columns = [column for column in _COLUMNS if any(row.cells[column] for row in rows)]
    widths = {column: max(len(column), *(len(row.cells[column]) for row in rows)) for column in columns}
    state_width = max(len(row.state) for row in rows)
    name_width = max(len("run"), *(len(row.name) for row in rows))

    def room() -> int:
        return width - state_width - len(_GAP) - sum(widths[column] + len(_GAP) for column in columns)

    while columns and room() < min(name_width, _NARROWEST):
        columns.pop()
    name_width = max(min(name_width, room()), 3)
    titles = ["run".ljust(name_width), "state".ljust(state_width), *(c.ljust(widths[c]) for c in columns)]
    lines = [_GAP.join(titles).rstrip()[:width]]
    for row in rows:
        cells = [_shortened(row.name, name_width), row.state.ljust(state_width)]
        cells += [row.cells[column].ljust(widths[column]) for column in columns]
        line = _GAP.join(cells).rstrip()[:width]
        start, end = name_width + len(_GAP), name_width + len(_GAP) + len(row.state)
        if color and row.state in _COLORS and end <= len(line):
            line = line[:start] + paint(line[start:end], _COLORS[row.state]) + line[end:]
        lines.append(line)
    return lines


def _shortened(name: str, width: int) -> str:
    """Return a name in a number of columns; its end tells runs apart, not its beginning."""
    return name.ljust(width) if len(name) <= width else "..."[:width] + name[len(name) - max(width - 3, 0) :]


class _Screen:
    """A table on a terminal that replaces the one before.

    It takes neither the alternate screen nor the cursor away, so that the terminal is in order also after a kill.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines = 0
        self._size: tuple[int, ...] = (0, 0)

    def show(self, rows: Sequence[RunRow]) -> None:
        """Replace the table."""
        size = shutil.get_terminal_size()
        columns, height = size
        lines = table(rows, columns - 1, height - 1, color=wants_color(self._stream))
        # after a change of the width, the terminal may have broken the lines, and their number is not known
        back = (
            "\x1b[2J\x1b[H" if self._lines and size != self._size else "\x1b[%dA" % self._lines if self._lines else ""
        )
        self._stream.write("%s\r%s\x1b[J" % (back, "".join("%s\x1b[K\n" % line for line in lines)))
        self._stream.flush()
        self._lines, self._size = len(lines), tuple(size)

    def close(self) -> None:
        """Leave the last table, and begin a new line after the ``^C`` of the terminal."""
        self._stream.write("\r\x1b[K")
        self._stream.flush()


class _Lines:
    """A line for each news."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: dict[str, str] = {}

    def show(self, rows: Sequence[RunRow]) -> None:
        """Write what has changed."""
        for row in rows:
            if self._shown.get(row.name) != row.news():
                self._shown[row.name] = row.news()
                self._stream.write("%s %s\n" % (time.strftime("%H:%M:%S"), row.news()))
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: all is written."""
