"""Check that padding and the other sequences of a batch change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.result import LayerResult
from returnn_tf.graph.layer import Node
from returnn_tf.tasks.sanity.report import FAILED, SKIPPED, Finding, ok
from returnn_tf.tensor import Data

_MORE = 5  # frames of padding that are added
_TOLERANCE = 1e-3


def check_padding(net: Network, feed: Mapping[str, Any]) -> Finding:
    """Compare the losses of a batch with those of the same batch with other and with more padding."""
    check = "padding"
    used = {key: data for key, data in net.extern_data.items() if key in net.used_data_keys}
    other = padded(feed, used)
    first, again, second = (net.run(each, train=False, with_grad=True) for each in (feed, feed, other))
    if any(_differ(first.losses[name], again.losses[name]) for name in first.losses):
        return Finding(check, SKIPPED, "the loss of a batch is random, also without dropout")
    changed = [name for name in first.losses if _differ(first.losses[name], second.losses[name])]
    if not changed:
        return ok(check, "%d more frames, other values: same losses" % _MORE)
    name = changed[0]
    cause = _cause(_first_layer(net, feed, other, range(_batch_size(feed, used))))
    text = (
        "the loss of %r is %.6g, but %.6g with %d more frames of padding: the result depends on the frames after the "
        "end of a sequence, or on their number. %s" % (name, first.losses[name], second.losses[name], _MORE, cause)
    )
    return Finding(check, FAILED, "losses change", text, topic="padding")


def check_alone(net: Network, feed: Mapping[str, Any]) -> Finding:
    """Compare the results for each sequence of a batch with those for the sequence alone.

    They may differ although more padding changes nothing, e.g. by a stride of 5 and 5 more frames.
    """
    check = "a sequence alone"
    used = {key: data for key, data in net.extern_data.items() if key in net.used_data_keys}
    count = _batch_size(feed, used)
    first, again = (net.run(feed, train=False).layers for _ in range(2))
    paths = [node.path for node in net.plan.roots() if node.output.beam is None]
    paths = [path for path in paths if _same_frames(first[path], again[path], range(count))]
    if not paths:
        return Finding(check, SKIPPED, "all results are random, also without dropout")
    for row in range(count):
        other = alone(feed, used, row)
        result = net.run(other, train=False).layers
        changed = [path for path in paths if not _same_frames(first[path], result[path], [row])]
        if changed:
            text = "layer %r gives other values for sequence %d of the batch, counted from 0, if it is alone. %s" % (
                changed[0],
                row,
                _cause(_first_layer(net, feed, other, [row])),
            )
            return Finding(check, FAILED, "%r changes" % changed[0], text, topic="padding")
    return ok(check, "%d sequences, each alone and in the batch: same values" % count)


def _cause(node: Optional[Node]) -> str:
    """Return advice on the first layer that differs; None: no layer does."""
    if node is None:
        return "It comes from the loss itself. Mask the frames (seq_len_mask) in front of it."
    text = "The first layer whose valid frames change is %r. " % node.path
    if node.layer.remark():
        return "%sIts class is %s: %s" % (text, node.layer.class_name, node.layer.remark())
    return text + "Mask the padding there (seq_len_mask), or use a layer that knows the lengths."


def _batch_size(feed: Mapping[str, Any], used: Mapping[str, Data]) -> int:
    return max((len(feed[key]) for key, data in used.items() if key in feed and data.batch_axis is not None), default=1)


def alone(feed: Mapping[str, Any], used: Mapping[str, Data], row: int) -> dict[str, Any]:
    """Return the batch of one row, without padding, of data keys as they are declared."""
    result = dict(feed)
    for key, data in used.items():
        if key not in feed or data.batch_axis is None:
            continue
        value = np.asarray(feed[key])[row : row + 1]
        for axis in range(value.ndim - 1):
            name = "%s/size%d" % (key, axis)
            if name in feed:
                result[name] = np.asarray(feed[name])[row : row + 1]
                value = value.take(np.arange(int(result[name].max())), axis=axis + 1)
        result[key] = value
    return result


def padded(feed: Mapping[str, Any], used: Mapping[str, Data]) -> dict[str, Any]:
    """Return a batch with further frames, and other values in the padding, of data keys as they are declared."""
    result = dict(feed)
    rng = np.random.default_rng(1)
    for key, data in used.items():
        if key + "/size0" not in feed or key + "/size1" in feed:
            continue
        value, lens = np.asarray(feed[key]), np.asarray(feed[key + "/size0"])
        shape = (value.shape[0], max(value.shape[1], int(lens.max())) + _MORE, *value.shape[2:])
        filled = _any_values(rng, shape, value.dtype, data)
        if filled is None:
            continue
        for row, length in enumerate(lens):
            filled[row, :length] = value[row, :length]
        result[key] = filled
    return result


def _any_values(rng: Any, shape: tuple[int, ...], dtype: Any, data: Data) -> Any:
    """Return large features or any labels; None for other types."""
    if dtype.kind == "f":
        return (10.0 * rng.normal(size=shape)).astype(dtype)
    size = data.sparse_dim.size if data.sparse_dim is not None else None
    return rng.integers(size or 2, size=shape).astype(dtype) if dtype.kind in "iu" else None


def _first_layer(
    net: Network, feed: Mapping[str, Any], other: Mapping[str, Any], rows: Sequence[int]
) -> Optional[Node]:
    """Return the first layer, in the order of computation, whose valid frames differ.

    :param rows: the sequences of the first batch that are in the other one
    """
    nodes = [node for node in net.plan.nodes if not node.layer.is_connector and node.output.beam is None]
    paths = [node.path for node in nodes]
    first, second = (net.run(each, train=False, fetch=paths).layers for each in (feed, other))
    for node, path in zip(nodes, paths):
        if not _same_frames(first[path], second[path], rows):
            return node
    return None


def _same_frames(first: LayerResult, second: LayerResult, rows: Sequence[int]) -> bool:
    """Return whether frames before the ends of sequences are equal.

    :param rows: the sequences of the first one that are, in this order, those of the second one
    """
    if first.value.dtype.kind not in "fiub" or first.axes != second.axes or "B" not in first.axes:
        return True
    batch = first.axes.index("B")
    if second.value.shape[batch] != len(rows):
        return True  # the batch is another one, e.g. of the segments of all sequences
    for own, row in enumerate(rows):
        values = []
        for each, index in ((first, row), (second, own)):
            value = each.value
            for axis, sizes in each.sizes.items():
                keep = int(sizes[index]) if np.ndim(sizes) else int(sizes)
                value = np.take(value, np.arange(keep), axis=axis)
            values.append(np.take(value, index, axis=batch).astype("float64"))
        if values[0].shape != values[1].shape or not np.allclose(
            values[0], values[1], rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            return False
    return True


def _differ(first: Any, second: Any) -> bool:
    return bool(abs(float(first) - float(second)) > _TOLERANCE * max(abs(float(first)), 1e-3))
