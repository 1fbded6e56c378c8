"""What child processes of the check tell it, line by line: the machine, and rows of the report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

_ROW, _MACHINE = "ROW ", "MACHINE "

Row = dict[str, Any]
"""Figures and texts by name. ``failed``: an error, "" if there was none; ``last``: the last lines of the process that
failed; ``left_out``: why something was not run."""


@dataclass(frozen=True)
class Machine:
    """What is checked.

    :param facts: name -> text, for the report
    :param remarks: what limits the check, each with what is used instead
    :param reason: why nothing can be checked, as one line; "" if it can
    """

    facts: dict[str, str]
    remarks: list[str] = field(default_factory=list)
    reason: str = ""


def print_row(**row: Any) -> None:
    """Print a row at once: the process may crash in the next one."""
    print(_ROW + json.dumps(row), flush=True)


def is_row(line: str) -> bool:
    """Return whether a line of the output of a process is a row."""
    return line.startswith(_ROW)


def rows_of(output: str) -> list[Row]:
    """Return the rows in the output of a process."""
    return [json.loads(line[len(_ROW) :]) for line in output.splitlines() if is_row(line)]


def print_machine(machine: Machine) -> None:
    """Print what is checked."""
    print(_MACHINE + json.dumps(asdict(machine)), flush=True)


def machine_of(output: str) -> Optional[Machine]:
    """Return what is checked, from the output of a process; None if it does not tell."""
    lines = [line for line in output.splitlines() if line.startswith(_MACHINE)]
    return Machine(**json.loads(lines[-1][len(_MACHINE) :])) if lines else None
