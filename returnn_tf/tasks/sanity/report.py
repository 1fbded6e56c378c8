"""Findings of the checks: a table, then each problem with its fix."""

from __future__ import annotations

import dataclasses

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "not checked"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check.

    :param check: what was looked at
    :param result: OK, WARNING, FAILED or SKIPPED
    :param found: figures, in a few words
    :param problem: what is wrong, where, and what to do
    :param topic: page of ``returnn-tf explain`` on it
    """

    check: str
    result: str
    found: str
    problem: str = ""
    topic: str = ""


def ok(check: str, found: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding(check, OK, found)


def table(findings: list[Finding]) -> str:
    """Return the table of all checks, and the problems behind it."""
    rows = [("check", "result", "found"), *((each.check, each.result, each.found) for each in findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = ["%-*s  %-*s  %s" % (widths[0], row[0], widths[1], row[1], row[2]) for row in rows]
    for each in findings:
        if each.problem:
            lines += ["", "%s, %s: %s" % (each.result, each.check, each.problem)]
            lines += ["More: returnn-tf explain %s" % each.topic] if each.topic else []
    failed = sum(each.result == FAILED for each in findings)
    warned = sum(each.result == WARNING for each in findings)
    return "\n".join([line.rstrip() for line in lines] + ["", "%d failed, %d warnings" % (failed, warned)])
