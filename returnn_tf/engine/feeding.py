"""From a batch of numpy arrays to the tensors which a step takes."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np

from returnn_tf.config import DataError, did_you_mean
from returnn_tf.util.lazy_tf import tf


def to_tensors(feed: Mapping[str, Any], signature: Mapping[str, Any]) -> Dict[str, Any]:
    """The tensors which the signature asks for; further keys of the feed are left out.

    :param feed: feed key (``data``, ``data/size0``, ...) -> array, batch axis first
    :param signature: feed key -> ``tf.TensorSpec``
    :raises DataError: a key is missing, or an array does not fit
    """
    result = {}
    for key, spec in signature.items():
        if key not in feed:
            raise DataError("The batch has no entry %r, which the network needs. %s" % (key, did_you_mean(key, feed)))
        value = feed[key]
        if not tf.is_tensor(value):
            value = _converted(key, np.asarray(value), spec)
        if not spec.shape.is_compatible_with(value.shape):
            raise DataError("Batch entry %r has shape %s, the network needs %s." % (key, value.shape, spec.shape))
        result[key] = value
    return result


def _converted(key: str, array: np.ndarray, spec: Any) -> Any:
    wanted = spec.dtype
    if wanted == tf.string:
        return tf.convert_to_tensor(array)
    if array.dtype.kind not in "fiubc" or (array.dtype.kind in "fc" and wanted.is_integer):
        raise DataError("Batch entry %r has dtype %s, the network needs %s." % (key, array.dtype, wanted.name))
    return tf.convert_to_tensor(array.astype(wanted.as_numpy_dtype, copy=False))
