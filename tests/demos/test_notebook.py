"""The tutorial notebook runs from top to bottom, and is stored without outputs."""

from __future__ import annotations

import ast
import json
import pathlib
from typing import Any

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "demos" / "notebooks" / "tutorial.ipynb"
NOTEBOOK = json.loads(PATH.read_text(encoding="utf8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

SHORTER = {
    "epochs=12": "epochs=1",
    "epochs=2": "epochs=1",
    "corpus(1, 600)": "corpus(1, 20)",
    "corpus(2, 60)": "corpus(2, 6)",
}


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as Jupyter does: the value of the last expression is what it shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(PATH), "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), str(PATH), "eval"), namespace)


def test_it_is_stored_without_outputs() -> None:
    assert NOTEBOOK["nbformat"] == 4
    assert not [cell for cell in NOTEBOOK["cells"] if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
def test_cells_run(capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer epochs and sequences; each object that a cell shows has a rich form."""
    pytest.importorskip("matplotlib")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for source in CELLS:
        short = source.replace("epochs=12", "epochs=1").replace("epochs=2", "epochs=1")
        shown.append(
            run_cell(
                short.replace("corpus(1, 600)", "corpus(1, 20)").replace("corpus(2, 60)", "corpus(2, 6)"), namespace
            )
        )
    out = capsys.readouterr().out
    assert "unknown layer class 'sofmax'. Did you mean 'softmax'?" in out and out.count("sent") == 3
    rich = [value for value in shown if hasattr(value, "_repr_html_") or hasattr(value, "_repr_png_")]
    assert len(rich) == 5 and "StaticDataset" in rich[0]._repr_html_() and "<svg" in rich[1]._repr_html_()
    assert "dev_error" in rich[2]._repr_html_() and rich[3]._repr_png_().startswith(b"\x89PNG")
    assert "label errors" in rich[4]._repr_html_() and namespace["found"][0].reference
    assert list(pathlib.Path(namespace["folder"]).rglob("*.pb"))
