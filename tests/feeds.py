"""Random feeds for any network: ragged lengths, random numbers in the padding too."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy

from returnn_tf.network.feed import feed_layout
from returnn_tf.tensor import Data, Dim


def random_feed(extern_data: Mapping[str, Data], batch: int = 3, longest: int = 6, seed: int = 1) -> Dict[str, Any]:
    """A feed with lengths ``longest, longest - 2, ...`` (at least 1) for every dynamic dim; equal dims get equal
    lengths."""
    rng = numpy.random.default_rng(seed)
    feed: Dict[str, Any] = {}
    lens_of: Dict[Dim, numpy.ndarray] = {}
    for key, data in extern_data.items():
        sizes, _ = feed_layout(data)
        order = list(range(data.rank))
        if data.batch_axis is not None:
            order.insert(0, order.pop(data.batch_axis))
        shape = []
        for i, (axis, size) in enumerate(zip(order, sizes)):
            dim = data.dims[axis]
            if size is not None:
                shape.append(size)
            elif dim.is_batch:
                shape.append(batch)
            else:
                lens_of.setdefault(dim, numpy.maximum(longest - 2 * numpy.arange(batch), 1).astype("int32"))
                shape.append(longest)
                feed["%s/size%d" % (key, i - (1 if data.batch_axis is not None else 0))] = lens_of[dim]
        if data.sparse_dim is not None:
            feed[key] = rng.integers(0, data.sparse_dim.size or 2, shape).astype(data.dtype)
        elif data.dtype == "bool":
            feed[key] = rng.integers(0, 2, shape).astype(bool)
        elif data.dtype.startswith("int"):
            feed[key] = rng.integers(0, 3, shape).astype(data.dtype)
        else:
            feed[key] = rng.normal(size=shape).astype(data.dtype)
    return feed
