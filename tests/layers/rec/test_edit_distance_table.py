"""`edit_distance_table` and `optimal_completions`, with and without a blank label: against plain Python."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim

LABELS, FRAMES, LENS = 4, 6, [6, 3, 5]
REFERENCE, REFERENCE_LENS = np.array([[1, 2, 2, 3], [3, 1, 0, 0], [2, 0, 1, 0]], "int32"), [4, 2, 3]
HYPOTHESES = np.random.default_rng(5).integers(0, LABELS + 1, (3, FRAMES)).astype("int32")


def _config(inside: bool = True, **options: Any) -> Config:
    target = {"target": "layer:base:data:classes"}
    unit = {
        "table": {"class": "edit_distance_table", "from": "data:source", **target, **options},
        "output": {"class": "optimal_completions", "from": "prev:table", **target, **options},
        "row": {"class": "copy", "from": "table", "is_output_layer": True},
    }
    loop = {"class": "rec", "from": "data", "unit": unit, "optimize_move_layers_out": not inside}
    return Config({
        "behavior_version": 21,
        "extern_data": {
            "data": {"dim": LABELS + 1, "sparse": True},
            "classes": {"dim": LABELS, "sparse": True},
        },
        "network": {
            "output": loop,
            "rows": {"class": "copy", "from": "output/row", "is_output_layer": True},
        },
    })  # fmt: skip


def _rows(labels: list[int], reference: list[int], blank: Optional[int]) -> list[list[int]]:
    """Return the rows of the table after 0, 1, ... labels."""
    rows = [list(range(len(reference) + 1))]
    for label in labels:
        old = rows[-1]
        if label == blank:
            rows.append(old)
            continue
        new = [old[0] + 1]
        for j, other in enumerate(reference):
            new.append(min(old[j + 1] + 1, new[j] + 1, old[j] + (label != other)))
        rows.append(new)
    return rows


@pytest.mark.sampled
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("blank", [None, 0, 2, LABELS, LABELS + 1])
def test_table_and_completions(blank: Optional[int], inside: bool) -> None:
    feed = {"data": HYPOTHESES, "data/size0": LENS, "classes": REFERENCE, "classes/size0": REFERENCE_LENS}
    net = Network.from_config(_config(inside, **({} if blank is None else {"blank_idx": blank})))
    layers = net.run(feed).layers
    count = LABELS if blank is None else max(LABELS, blank + 1)
    assert layers["output"].value.shape == (3, FRAMES, count) and layers["rows"].axes == ("B", "T", "T")
    for i, (n, m) in enumerate(zip(LENS, REFERENCE_LENS)):
        reference = REFERENCE[i, :m].tolist()
        rows = _rows(HYPOTHESES[i, :n].tolist(), reference, blank)
        np.testing.assert_array_equal(layers["rows"].value[i, :n, : m + 1], rows[1:])
        # What remains possible after a label is the minimum of the row that it leads to.
        best = [
            [min(_rows([*HYPOTHESES[i, :t].tolist(), label], reference, blank)[-1]) for label in range(count)]
            for t in range(n)
        ]
        np.testing.assert_array_equal(layers["output"].value[i, :n], best)


def test_dims_of_the_results() -> None:
    labels, places = FeatureDim("labels", 7), SpatialDim("places")
    config = _config(blank_idx=6)
    unit = config.typed_value("network")["output"]["unit"]
    unit["output"]["out_dim"], unit["table"]["out_dim"] = labels, places
    unit["row"].update({"class": "reduce", "mode": "min", "axis": places})
    plan = plan_from_config(config)
    assert plan.outputs["output"].output.feature_dim is labels
    assert sorted(plan.outputs["rows"].output.axis_kinds) == ["B", "T"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"blank_idx": -1}, "blank_idx.*at least 0"),
        ({"blank_idx": "last"}, "blank_idx"),
        ({"n_out": 9}, "n_out is 9, but there are 4 labels"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_from_config(_config(**options))
