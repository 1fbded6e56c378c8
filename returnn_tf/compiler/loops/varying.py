"""Stateful layers of a step network: their values vary from step to step although their inputs may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.loops.analysis import Links
from returnn_tf.layers.shared.nested import varies


def varying_layers(network: Mapping[str, Any], links: Mapping[str, Links]) -> list[str]:
    """Return the layers with a memory or the step index, and those referenced by ``prev:``.

    :param network: layer name -> its options
    :param links: the references of each
    """
    prevs = {name for of in links.values() for name in of.prev}
    return [name for name, options in network.items() if name in prevs or varies(options)]
