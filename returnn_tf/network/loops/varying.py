"""Stateful layers of a step network: their values vary from step to step although their inputs may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.graph.registry import LAYERS
from returnn_tf.network.loops.analysis import Links


def varying_layers(network: Mapping[str, Any], links: Mapping[str, Links]) -> list[str]:
    """Return the layers with a memory or the step index, and those referenced by ``prev:``.

    :param network: layer name -> its options
    :param links: the references of each
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
    cls = LAYERS.find(value.get("class"))
    if cls is not None and cls.has_memory:
        return bool(cls.varies_by_step(value))
    return any(_varies(v) for v in value.values())
