"""Layers of a step network whose values differ from step to step although what they depend on does not."""

from __future__ import annotations

from typing import Any, List, Mapping

from returnn_tf.network.loops.analysis import Links

#: Classes with a memory of the steps before, or which count them.
_WITH_MEMORY = frozenset(
    (
        "cum_concat", "cumsum", "edit_distance", "edit_distance_table", "masked_computation", "optimal_completions",
        "positional_encoding", "rec", "rnn_cell", "self_attention", "twod_lstm", "unmask", "window",
    )
)  # fmt: skip


def varying_layers(network: Mapping[str, Any], links: Mapping[str, Links]) -> List[str]:
    """Those with a memory or with the number of the step, and those whose ``prev:`` value is asked for.

    :param network: layer name -> its options
    :param links: what each refers to
    """
    prevs = {name for of in links.values() for name in of.prev}
    return [name for name, options in network.items() if name in prevs or _varies(options)]


def _varies(value: Any) -> bool:
    if isinstance(value, str):
        return value == ":i"
    if isinstance(value, (list, tuple)):
        return any(_varies(v) for v in value)
    if not isinstance(value, Mapping):
        return False
    if value.get("class") == "rec" and isinstance(value.get("unit"), Mapping):
        return False  # a loop of its own, anew in each step
    return value.get("class") in _WITH_MEMORY or any(_varies(v) for v in value.values())
