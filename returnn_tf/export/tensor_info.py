"""Names and axes of the inputs and outputs of an exported graph. No TensorFlow."""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.config.errors import ExportError
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.decide import has_scores
from returnn_tf.tensor import Data

VALUE, LENGTHS, SCORES, SOURCES, STATE = "value", "lengths", "scores", "sources", "state"


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """An input or output of an exported graph; batch-major.

    :param name: in the exported graph
    :param kind: "value"; "lengths" of an axis of a value; "scores" of the hypotheses of a search, in log space;
        "sources", "state", see `returnn_tf.export.streaming`
    :param layer: path of the layer, "data:<key>" for an input
    :param axes: per axis "B" batch, "T" dynamic spatial, "S" static spatial, "F" feature, "beam" hypotheses
    :param shape: per axis the size, None where it is dynamic
    :param labels: of a sparse value: the number of labels
    :param lengths: axis -> name of its lengths
    :param beam: number of hypotheses in the batch axis, which is [batch * beam], those of a sequence side by side;
        None if the batch axis holds sequences
    :param axis: of lengths: the axis of the value, batch not counted
    """

    name: str
    kind: str
    layer: str
    axes: tuple[str, ...]
    shape: tuple[Optional[int], ...]
    dtype: str
    labels: Optional[int] = None
    lengths: Mapping[int, str] = dataclasses.field(default_factory=dict)
    beam: Optional[int] = None
    axis: Optional[int] = None

    @property
    def first_shape(self) -> tuple[Optional[int], ...]:
        """Return the shape of a state before the first frame: None for the batch axis, 0 where an axis grows."""
        return tuple(None if kind == "B" else 0 if size is None else size for kind, size in zip(self.axes, self.shape))


def graph_name(name: str) -> str:
    """Return a data key or layer path as a name in exported graphs: letters, digits and "_".

    What TensorFlow takes neither for an op nor for an argument gets "x_" in front: names that do not begin with a
    letter, and keywords of Python.
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain[:1].isalpha() and not keyword.iskeyword(plain) and plain != "self":
        return plain
    return "x_" + plain.lstrip("_")


def infos_of(base: str, layer: str, data: Data) -> list[TensorInfo]:
    """Describe a value, and the lengths of its dynamic axes.

    :param base: name of the value
    """
    order = batch_major_order(data)
    kinds, offset = data.axis_kinds, 0 if data.batch_axis is None else 1
    sizes = tuple(data.dims[axis].size for axis in order)
    beam = None if data.beam is None else data.beam.size
    lengths = {place: "%s_size%d" % (base, place - offset) for place, axis in enumerate(order)
               if data.dims[axis].is_dynamic()}  # fmt: skip
    labels = None if data.sparse_dim is None else data.sparse_dim.size
    axes = tuple(kinds[axis] for axis in order)
    found = [TensorInfo(base, VALUE, layer, axes, sizes, data.dtype, labels, lengths, beam)]
    for place, name in lengths.items():
        found.append(TensorInfo(name, LENGTHS, layer, ("B",), (None,), "int32", beam=beam, axis=place - offset))
    return found


def output_infos(nodes: Iterable[Node]) -> dict[str, TensorInfo]:
    """Describe the outputs of layers by name.

    :raises ConfigError: two have the same name
    """
    infos: list[TensorInfo] = []
    for node in nodes:
        base = graph_name(node.path)
        infos += infos_of(base, node.path, node.output)
        if has_scores(node):
            beam = 1 if node.output.beam is None else node.output.beam.size
            infos.append(TensorInfo(base + "_scores", SCORES, node.path, ("B", "beam"), (None, beam), "float32"))
    return _by_name(infos, "outputs")


def input_infos(extern_data: Mapping[str, Data], keys: Iterable[str]) -> dict[str, TensorInfo]:
    """Describe the inputs for data keys by name.

    :raises ConfigError: two have the same name
    """
    infos = [info for key in keys for info in infos_of(graph_name(key), "data:" + key, extern_data[key])]
    return _by_name(infos, "inputs")


def _by_name(infos: Iterable[TensorInfo], what: str) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for info in infos:
        other = found.setdefault(info.name, info)
        if other is not info:
            raise ExportError(
                "Export: two %s would be called %r: %s of %r and %s of %r. Rename one of them."
                % (what, info.name, other.kind, other.layer, info.kind, info.layer)
            )
    return found


def as_dict(info: TensorInfo) -> dict[str, Any]:
    """Return the description as written to the side file, without what does not apply."""
    entry: dict[str, Any] = {
        "kind": info.kind, "layer": info.layer, "dtype": info.dtype, "axes": list(info.axes), "shape": list(info.shape),
    }  # fmt: skip
    if info.kind == VALUE:
        entry["lengths"] = {str(place): name for place, name in info.lengths.items()}
    if info.labels is not None:
        entry["labels"] = info.labels
    if info.beam is not None:
        entry["beam"] = info.beam
    if info.axis is not None:
        entry["axis"] = info.axis
    return entry
