"""The report in Markdown: one page, with all figures and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.cli.gpu_check.messages import Machine, Row

#: What a reader may not know about a column.
_NOTES = {
    "difference": "`difference`, `from_cpu`: the largest difference of a result or a gradient, in proportion to its "
    "largest number, from the form in TensorFlow and from the kernel for the CPU.",
    "native": "`native`, `plain`: milliseconds, forward and backward, of the kernel and of its form in TensorFlow, for "
    "8 and for 64 sequences. The kernel is `used` if it is not slower for both.",
    "ms": "`ms`: milliseconds, forward and backward.",
    "forms": "`chosen`: the kernels where they are used, with the trials of all that is new in the time.",
}


def failures(parts: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """Return a line for each row that failed.

    :param parts: title and rows of each
    """
    return [
        "%s: %s" % (", ".join([title, *_names(row)]), row["failed"])
        for title, rows in parts
        for row in rows
        if row.get("failed")
    ]


def page(
    title: str,
    machine: Machine,
    parts: Sequence[tuple[str, Sequence[Row]]],
    seconds: float,
    missing: Sequence[str] = (),
) -> str:
    """Return the report.

    :param parts: title and rows of each that has ended
    :param missing: titles of the others
    """
    failed = failures(parts)
    lines = ["# " + title, "", *_table([{"": name, "value": text} for name, text in machine.facts.items()]), ""]
    lines += [line for remark in machine.remarks for line in (_escaped(remark), "")]
    none = "Nothing so far." if missing else "Nothing."
    lines += ["## What failed", "", *(["* " + _escaped(line) for line in failed] or [none]), ""]
    lines += ["Not finished: %s." % ", ".join(missing), ""] if missing else []
    for name, rows in parts:
        lines += ["## " + name, "", *_table(rows), ""]
        for row in rows:
            if row.get("last"):
                what = ", ".join(_names(row)) or "The process"
                lines += ["%s ended with:" % what, "", *(" " * 4 + line for line in row["last"].splitlines()), ""]
        lines += [line for key, note in _NOTES.items() if any(key in row for row in rows) for line in (note, "")]
    return "\n".join([*lines, "Computed in %d:%02d minutes." % divmod(round(seconds), 60), ""])


def _names(row: Row) -> list[str]:
    return [
        str(row[key]) for key in ("op", "width", "type", "layer", "by", "test", "training", "forms") if row.get(key)
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "last"]
    columns = [key for key in columns if key not in ("failed", "left_out") or any(row.get(key) for row in rows)]
    if not columns:
        return ["It gave no row."]
    body = ["| %s |" % " | ".join(_cell(row.get(key)) for key in columns) for row in rows]
    return [
        "| %s |" % " | ".join(key.replace("left_out", "not run") for key in columns),
        "|" + "---|" * len(columns),
        *body,
    ]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "%.3g" % value
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return _escaped("" if value is None else str(value))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
