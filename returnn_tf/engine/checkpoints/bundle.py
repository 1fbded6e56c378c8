"""Bundles of TensorFlow, the files of a checkpoint: an index, and values in one or several files of data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.util.lazy_tf import tf

#: Name of what is stored -> variable or array.
Values = Mapping[str, Any]


def write_bundle(prefix: str, values: Values) -> None:
    """Write ``.index`` and ``.data`` of a checkpoint, name -> variable or array; not atomic."""
    names = sorted(values)
    tensors = [tf.convert_to_tensor(values[name]) for name in names]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)


def bundle_suffixes(number: int = 0, size: int = 1) -> tuple[str, str]:
    """Return the suffixes of a file of data of a bundle and of its index.

    :param number: of the file, from 0
    :param size: how many files of data there are
    """
    return ".data-%05d-of-%05d" % (number, size), ".index"
