"""`FeedFormat`: the names, shapes and dtypes of the arrays fed to a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.config.errors import DataKeyError
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.host_tensors import host_tensor
from returnn_tf.util.lazy_tf import tf


class FeedFormat:
    """The feed for some data keys: "<key>" is a batch-major array, "<key>/size<i>" the lengths of its axis i.

    :param extern_data: the declared data by key
    :param keys: the keys that are fed
    """

    def __init__(self, extern_data: Mapping[str, Data], keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._extern_data = extern_data
        #: Feed name -> `tf.TensorSpec`.
        self.signature: dict[str, Any] = {}
        for key in keys:
            data = extern_data[key]
            sizes, dynamic = feed_layout(data)
            self.signature[key] = tf.TensorSpec(sizes, data.dtype)
            for i in dynamic:
                self.signature["%s/size%d" % (key, i)] = tf.TensorSpec([None], tf.int32)

    def convert(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the required entries of a feed as tensors of the right dtype.

        :param feed: feed name -> array or tensor
        :raises ConfigError: names the key that is missing, has the wrong shape or type, or does not fit its lengths
        """
        result = {}
        for name, spec in self.signature.items():
            if name not in feed:
                if "/size" in name and self._name_of_lengths(name, feed) is not None:
                    continue
                raise DataKeyError("The feed lacks %r (%s %s)." % (name, spec.dtype.name, spec.shape))
            value = feed[name]
            if not isinstance(value, tf.Tensor):
                value = np.asarray(value)
            if not spec.shape.is_compatible_with(value.shape):
                raise DataKeyError(
                    "The feed has %r of shape %s, the network expects %s." % (name, value.shape, spec.shape)
                )
            if not isinstance(value, tf.Tensor):
                if value.dtype.kind not in "iub" and spec.dtype.is_integer:
                    raise DataKeyError(
                        "The feed has %r of type %s, the network expects %s. Give integers: fractions would be cut off."
                        % (name, value.dtype, spec.dtype.name)
                    )
                value = host_tensor(value, spec.dtype)
            result[name] = value
        for name in self.signature:
            if "/size" in name:
                self._check_lengths(name, feed)
        return result

    def _check_lengths(self, name: str, feed: Mapping[str, Any]) -> None:
        """Check the lengths "<key>/size<i>" against the array, in feeds of the right shapes.

        Those in a tensor are not read, as it may be on a GPU.
        """
        key, _, axis = name.rpartition("/size")
        given = self._name_of_lengths(name, feed) or name
        shape = tf.TensorShape(np.shape(feed[key]))
        if isinstance(feed[given], tf.Tensor) or not shape.is_fully_defined():  # a symbolic one
            return
        lengths = np.asarray(feed[given])
        has_batch = self._extern_data[key].batch_axis is not None
        if has_batch and len(lengths) != shape[0]:
            raise DataKeyError(
                "The feed has %d lengths in %r for the %d sequences of %r. Give one for each."
                % (len(lengths), given, shape[0], key)
            )
        frames = shape[int(axis) + has_batch]
        wrong = np.flatnonzero((lengths < 0) | (lengths > frames))
        if wrong.size:
            raise DataKeyError(
                "The feed has %d in %r for sequence %d, but %r has %d entries along that axis. Lengths are from 0 to "
                "this number." % (lengths[wrong[0]], given, wrong[0], key, frames)
            )

    def _name_of_lengths(self, name: str, feed: Mapping[str, Any]) -> Optional[str]:
        """Return the name under which the lengths are fed: theirs, or that of the same dim of another key; or None."""
        if name in feed:
            return name
        key, _, axis = name.rpartition("/size")
        dim = _dim_of_feed_axis(self._extern_data[key], int(axis))
        for other in self.keys:
            data = self._extern_data[other]
            for i in feed_layout(data)[1]:
                found = "%s/size%d" % (other, i)
                if _dim_of_feed_axis(data, i) is dim and found in feed:
                    return found
        return None


def feed_layout(data: Data) -> tuple[list[Optional[int]], list[int]]:
    """Return (sizes of the batch-major array, None where dynamic; indices of the dynamic axes not counting batch)."""
    order = batch_major_order(data)
    sizes = [data.dims[a].size for a in order]
    offset = 0 if data.batch_axis is None else 1
    return sizes, [i - offset for i, a in enumerate(order) if data.dims[a].is_dynamic()]


def batch_major_order(data: Data) -> list[int]:
    """Return the axes of a template with the batch axis, if any, moved to the front."""
    order = list(range(data.rank))
    if data.batch_axis is not None:
        order.insert(0, order.pop(data.batch_axis))
    return order


def _dim_of_feed_axis(data: Data, index: int) -> Dim:
    order = batch_major_order(data)
    return data.dims[order[index + (0 if data.batch_axis is None else 1)]]
