"""Values of several layers for a batch, without losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.decide import scores_of
from returnn_tf.loops.frame import loop_of
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf

_EMITTED = ("all of ", "prev:")  # beginnings of names that are not of the config


class SeqValue(NamedTuple):
    """The value of a layer for one sequence, or for one hypothesis of it.

    :param value: without batch axis: the axes with lengths, cut to them, then the others
    :param num_dynamic: number of axes with lengths
    """

    value: NDArray[Any]
    num_dynamic: int


def layers_with_values(net: Network) -> list[str]:
    """Return the paths of all layers of the config which have values outside of loops, in the order of computation."""
    found = []
    for path, node in net.plan.by_path().items():
        emitted = any(part.startswith(_EMITTED) for part in path.split("/"))
        if node.extern_key is None and not emitted and loop_of(node) is None:
            found.append(path)
    return found


class LayerValues:
    """Traced function from a batch to the values of layers.

    :param net: the network; planned for search, its hypotheses are the best ones
    :param names: paths of the layers
    :param train: whether dropout etc. are active
    :raises ConfigError: there is no such layer
    """

    def __init__(self, net: Network, names: Sequence[str], *, train: bool = False) -> None:
        known = net.plan.by_path()
        for name in names:
            if name not in known:
                hint = did_you_mean(name, layers_with_values(net))
                raise SettingError("layer %r has no values outside of its loop, or is not there. %s" % (name, hint))
        self._nodes: dict[str, Node] = {name: known[name] for name in names}
        self._net = net
        self._train = train
        self.used_data_keys: list[str] = net.data_keys(list(self._nodes.values()), with_losses=False)
        self._function = net.feed_function(self._emit, self.used_data_keys)

    def output(self, name: str) -> Any:
        """Return the template of a layer."""
        return self._nodes[name].output

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the needed entries of a feed, as tensors."""
        return self._function.tensors(feed)

    def run(self, feed: Mapping[str, Any]) -> list[dict[str, SeqValue]]:
        """Return layer -> value for each sequence of a batch; what has no batch axis is the same for all.

        :param feed: feed key -> array or tensor, batch axis first
        """
        found = {name: _numpy(entry) for name, entry in self._function(feed).items()}
        batched = [
            len(entry["value"]) for name, entry in found.items() if self._has_batch(name) and "rows" not in entry
        ]
        chosen = [len(entry["rows"]) for entry in found.values() if "rows" in entry]
        count = min(batched + chosen, default=1)
        return [{name: self._of_row(name, entry, row) for name, entry in found.items()} for row in range(count)]

    def _has_batch(self, name: str) -> bool:
        return self.output(name).batch_axis is not None

    def _of_row(self, name: str, entry: dict[str, Any], row: int) -> SeqValue:
        if not self._has_batch(name):
            return SeqValue(entry["value"], 0)
        place = int(entry["rows"][row]) if "rows" in entry else row
        cut = tuple(slice(int(lengths[place])) for lengths in entry["lengths"])
        return SeqValue(entry["value"][place][cut], len(cut))

    def _emit(self, feed: dict[str, Any]) -> Any:
        nodes = list(self._nodes.values())
        graph = self._net.lower(feed, train=self._train, outputs=nodes, with_losses=False)
        found = {name: self._tensors(graph, node) for name, node in self._nodes.items()}
        graph.run_updates()
        return found

    def _tensors(self, graph: Lowered, node: Node) -> dict[str, Any]:
        data = node.output
        value = graph.values[node.path]
        if data.batch_axis is None:
            return {"value": value}
        dynamic = list(data.dynamic_axes)
        others = [axis for axis in range(data.rank) if axis not in (data.batch_axis, *dynamic)]
        value = transpose(value, [data.batch_axis, *dynamic, *others])
        lens = graph.lens_by_axis(data)
        entry = {"value": value, "lengths": [tf.broadcast_to(lens[axis], tf.shape(value)[:1]) for axis in dynamic]}
        scores = scores_of(graph.lowering, node) if data.beam is not None else None
        if scores is not None:  # [batch, beam]: of each sequence, the row of its best hypothesis
            beam = tf.shape(scores)[1]
            entry["rows"] = tf.argmax(scores, axis=1, output_type=tf.int32) + tf.range(tf.shape(scores)[0]) * beam
        return entry


def _numpy(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: [np.asarray(each) for each in value] if isinstance(value, (list, tuple)) else np.asarray(value)
        for key, value in entry.items()
    }
