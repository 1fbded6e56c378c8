"""Check that padding does not change the losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from returnn_tf.network.network import Network
from returnn_tf.network.result import LayerResult
from returnn_tf.tasks.sanity.report import FAILED, SKIPPED, Finding, ok
from returnn_tf.tensor import Data

_MORE = 5  # frames of padding that are added
_TOLERANCE = 1e-3


def check_padding(net: Network, feed: Mapping[str, Any]) -> Finding:
    """Compare the losses of a batch with those of the same batch with other and with more padding.

    :param feed: the batch
    """
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
    layer = _first_layer(net, feed, other)
    where = "The first layer whose valid frames change is %r." % layer if layer else "It comes from the loss itself."
    text = (
        "the loss of %r is %.6g, but %.6g with %d more frames of padding: the result depends on what is in the frames "
        "after the end of a sequence. %s Mask them there (seq_len_mask), or use a layer that knows the lengths."
        % (name, first.losses[name], second.losses[name], _MORE, where)
    )
    return Finding(check, FAILED, "losses change", text, topic="padding")


def padded(feed: Mapping[str, Any], used: Mapping[str, Data]) -> dict[str, Any]:
    """Return a batch with further frames, and other values in the padding.

    :param used: the data keys as they are declared
    """
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


def _first_layer(net: Network, feed: Mapping[str, Any], other: Mapping[str, Any]) -> Optional[str]:
    """Return the path of the first layer, in the order of computation, whose valid frames differ."""
    nodes = [node for node in net.plan.nodes if not node.layer.is_connector and node.output.beam is None]
    paths = [node.path for node in nodes]
    first, second = (net.run(each, train=False, fetch=paths).layers for each in (feed, other))
    for path in paths:
        if not _same_frames(first[path], second[path]):
            return path
    return None


def _same_frames(first: LayerResult, second: LayerResult) -> bool:
    if first.value.dtype.kind not in "fiub" or first.axes != second.axes or "B" not in first.axes:
        return True
    batch = first.axes.index("B")
    for row in range(first.value.shape[batch]):
        values = []
        for each in (first, second):
            value = each.value
            for axis, sizes in each.sizes.items():
                keep = int(sizes[row]) if np.ndim(sizes) else int(sizes)
                value = np.take(value, np.arange(keep), axis=axis)
            values.append(np.take(value, row, axis=batch).astype("float64"))
        if values[0].shape != values[1].shape or not np.allclose(
            values[0], values[1], rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            return False
    return True


def _differ(first: Any, second: Any) -> bool:
    return bool(abs(float(first) - float(second)) > _TOLERANCE * max(abs(float(first)), 1e-3))
