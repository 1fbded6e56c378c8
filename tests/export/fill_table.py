"""Makes the table of layers and targets: ``python -m tests.export.fill_table``, from the root of the checkout.

It exports the example of each layer class to each target, notes what comes out in ``returnn_tf/export/layers.json``,
and writes the page ``docs/export_layers.md`` from it. Only what is missing is computed, so that it goes on after an
interruption. ``--again`` computes all that the other options choose.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from returnn_tf.export.layer_table import PATH, columns
from tests.export.layer_cells import LAYERS, compute

PAGE = Path(__file__).parents[2] / "docs" / "export_layers.md"
HEAD = """\
# Which layer can be exported where

For each layer class, the example in its documentation (`returnn-tf layers NAME`) was exported to each
[target](export.md#which-target), loaded as another program would load it, and compared with the network: within 1e-5
for floats, equal for labels and lengths. Examples with `choice` were also exported as they search. Another use of a
layer than in its example may need other ops; then `returnn-tf export` says so, and writes nothing.

This page is generated, by `python -m tests.export.fill_table`.
"""


def read() -> dict[str, dict[str, str]]:
    """Return the table; empty if there is none."""
    path = Path(PATH)
    content: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    return content


def write(table: dict[str, dict[str, str]]) -> None:
    """Write the table and the page, without what no longer exists."""
    known = columns()
    table = {layer: {c: why for c, why in row.items() if c in known} for layer, row in table.items() if layer in LAYERS}
    temp = Path(PATH + ".tmp")
    temp.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf8")
    os.replace(temp, PATH)  # a process that exports may be reading it
    PAGE.write_text(page(table), encoding="utf8")


def page(table: dict[str, dict[str, str]]) -> str:
    """Return the page of a table."""
    known = [column for column in columns() if any(column in row for row in table.values())]
    lines = [HEAD]
    lines.append("| layer class | %s |" % " | ".join("`%s`" % column for column in known))
    lines.append("|---|%s" % ("---|" * len(known)))
    for layer, row in sorted(table.items()):
        marks = ["" if column not in row else "no" if row[column] else "yes" for column in known]
        lines.append("| `%s` | %s |" % (layer, " | ".join(marks)))
    lines += ["", "## Why not"]
    for column in known:
        reasons = {layer: row[column] for layer, row in sorted(table.items()) if row.get(column)}
        if reasons:
            lines += ["", "`--to %s`" % column, ""]
            lines += ["* `%s`: %s" % (layer, reason.replace("<", "&lt;")) for layer, reason in reasons.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", metavar="A,B", help="these layer classes")
    parser.add_argument("--targets", metavar="A,B", help="these targets")
    parser.add_argument("--again", action="store_true", help="also what was checked before")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="number of processes at the same time")
    given = parser.parse_args()
    layers = given.layers.split(",") if given.layers else LAYERS
    targets = given.targets.split(",") if given.targets else sorted({target for target, _ in columns().values()})
    unknown = {*layers} - {*LAYERS} | {*targets} - {target for target, _ in columns().values()}
    if unknown:
        parser.error("unknown: %s" % ", ".join(sorted(unknown)))
    table, lock = read(), threading.Lock()
    todo = [
        (layer, column)
        for column, (target, _) in columns().items()
        for layer in layers
        if target in targets and (given.again or column not in table.get(layer, {}))
    ]

    def one(cell: tuple[str, str]) -> Any:
        layer, column = cell
        why = compute(layer, column)
        with lock:
            table.setdefault(layer, {})[column] = why
            write(table)
        print("%s, --to %s: %s" % (layer, column, why or "yes"), flush=True)

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(one, todo))
    write(table)


if __name__ == "__main__":
    main()
