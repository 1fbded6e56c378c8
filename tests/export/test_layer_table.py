"""The table of layers and targets is complete, and what it claims holds."""

from __future__ import annotations

import pytest

from returnn_tf.export.layer_table import choose_another, columns, layer_table
from tests.export.fill_table import PAGE, page
from tests.export.layer_cells import LAYERS, compute

AGAIN = "run 'python -m tests.export.fill_table', and read the diff"
#: The layers that a target can express.
CLAIMED = {
    column: sorted(layer for layer, row in layer_table().items() if row.get(column) == "")
    for column in next(iter(layer_table().values()), {})
}


def test_every_layer_is_there() -> None:
    """A new layer class needs a row, a new target a column."""
    assert sorted(layer_table()) == LAYERS, AGAIN
    for layer, row in layer_table().items():
        assert row.keys() == CLAIMED.keys(), "%s: %s" % (layer, AGAIN)
    assert CLAIMED.keys() == columns().keys(), AGAIN


def test_the_page_shows_the_table() -> None:
    table = {layer: dict(row) for layer, row in layer_table().items()}
    assert PAGE.read_text(encoding="utf8") == page(table), AGAIN


def test_reasons_are_ours() -> None:
    """A layer is refused by an error that names it or an op of it, not by an exception of a converter."""
    for layer, row in layer_table().items():
        for column, why in row.items():
            assert "Error:" not in why and "Traceback" not in why, (layer, column, why)


def _sample() -> list[tuple[str, str]]:
    """Return ten claims: of each target, layers that lie at equal distances in the list, others for each target."""
    chosen = []
    for number, (column, layers) in enumerate(sorted(CLAIMED.items())):
        count = 10 // len(CLAIMED) + (number < 10 % len(CLAIMED))
        chosen += [(layers[(number * 7 + i * len(layers) // count) % len(layers)], column) for i in range(count)]
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("layer, column", _sample())
def test_some_claims_hold(layer: str, column: str) -> None:
    assert compute(layer, column) == ""


@pytest.mark.long
@pytest.mark.parametrize("layer", LAYERS)
def test_all_entries_hold(layer: str) -> None:
    """Every layer, on every target: what is claimed works, and what is refused is refused for the same reason."""
    assert {column: compute(layer, column) for column in CLAIMED} == dict(layer_table()[layer]), AGAIN


def test_advice_names_targets_that_can() -> None:
    (refused,) = [name for name, row in layer_table().items() if name == "stft" and row["tflite"]]
    assert choose_another([refused], "tflite").startswith("Choose another target (--to ")
    assert "tflite" not in choose_another([refused], "tflite")
    assert choose_another(["kenlm"], "saved_model") == ""  # Python code, which no target has
