"""Notes on a planned network: what is probably not meant, and mistakes in layers that nothing needs.

These are no errors: layers that nothing needs are not planned, and the others can be computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Optional

from returnn_tf.graph.node import Node
from returnn_tf.network.planning.parse import LayerSpec, describe_place


def unneeded_mistakes(
    networks: Iterable[Mapping[str, LayerSpec]], planned: Collection[str], inputs: Collection[str]
) -> list[str]:
    """Return one text for each mistake in a layer that was not planned.

    :param networks: the parsed layers of all networks, nested ones included
    :param planned: the paths of all planned layers
    :param inputs: the data keys
    """
    notes: dict[str, None] = {}
    for specs in networks:
        for spec in specs.values():
            if spec.path not in planned:
                notes.update(dict.fromkeys(_mistakes(spec, specs, inputs)))
    return list(notes)


def remarks(nodes: Iterable[Node]) -> list[str]:
    """Return one text for each planned layer that probably does not do what is meant."""
    found = {describe_place(node.path, node.layer.class_name): node.layer.remark() for node in nodes}
    return ["%s: %s" % each for each in found.items() if each[1]]


def _mistakes(spec: LayerSpec, specs: Mapping[str, LayerSpec], inputs: Collection[str]) -> Iterator[str]:
    if spec.error is not None:
        yield "%s\n  (Nothing needs this layer, so it is left out.)" % spec.error
    for ref in spec.references():
        name = _local_name(ref)
        if name is not None and name not in inputs and not _has(specs, name):
            yield "%s: there is no layer %r. (Nothing needs this layer, so it is left out.)" % (spec.where, ref)


def _local_name(ref: str) -> Optional[str]:
    """Return the name of a layer of the same network; None for data keys, outer layers and other special names."""
    if ref.startswith("prev:"):
        return ref[len("prev:") :]
    return None if ":" in ref else ref


def _has(specs: Mapping[str, LayerSpec], name: str) -> bool:
    """Return whether the network has the layer, or one that the name may be a part of."""
    parts = name.split("/")
    return any("/".join(parts[:i]) in specs for i in range(1, len(parts) + 1))
