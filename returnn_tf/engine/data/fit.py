"""Compatibility of the data of a dataset with the declarations in extern_data."""

from __future__ import annotations

import contextlib
from typing import Optional

from returnn_tf.config.errors import ConfigError, DataError, DataKeyError
from returnn_tf.datasets import Dataset, DataSpec
from returnn_tf.datasets.core.declared import Declared, type_mismatch
from returnn_tf.datasets.vocabulary import vocab_labels
from returnn_tf.tensor import Data


def check_fits(dataset: Dataset, name: str, key: str, data: Data) -> str:
    """Check that a dataset has the declared type, axes, labels and features; sizes unknown to it pass.

    :param name: of the dataset in the config, for messages
    :param key: of the data
    :param data: what extern_data declares for it
    :return: a sentence on a declaration that is possible, but probably a mistake; or ""
    :raises ConfigError: one of them differs
    """
    spec = dataset.data_specs[key]
    fix = "Write extern_data[%r] = %s, or change the dataset." % (key, _declaration(spec))
    declared = Declared.of(data)
    mismatch = type_mismatch(spec.numpy_dtype, declared)
    if mismatch:
        raise DataKeyError("The dataset %r%s, data key %r: %s. %s." % (name, _file_of(dataset), key, *mismatch))
    axes = data.rank - (data.batch_axis is not None)
    one_value = axes == spec.ndim - 1 and not declared.has_time  # only data shows if sequences have one frame
    if axes != spec.ndim and not one_value:
        raise DataKeyError(
            "The dataset %r gives %s for data key %r, but extern_data declares %s. %s"
            % (name, _words(spec.sparse, spec.dim, spec.ndim), key, _words(data.sparse, _dim(data), axes), fix)
        )
    if declared.num_labels is not None and spec.sparse and spec.dim > declared.num_labels:
        raise DataKeyError(
            "The dataset %r has %d labels for data key %r, but extern_data declares %d. %s"
            % (name, spec.dim, key, declared.num_labels, fix)
        )
    features = None if data.sparse else _dim(data)
    if spec.ndim > 1 and features and spec.dim and spec.dim != features and spec.dim in spec.shape:
        raise DataKeyError(
            "The dataset %r has %d features for data key %r, but extern_data declares %d. %s"
            % (name, spec.dim, key, features, fix)
        )
    if declared.num_labels is not None and spec.sparse and 0 < spec.dim < declared.num_labels:
        text = "The dataset %r has only %d labels for data key %r, but extern_data declares %d. %s"
        return text % (name, spec.dim, key, declared.num_labels, fix)
    return _misfit_of_vocabulary(key, data)


def _misfit_of_vocabulary(key: str, data: Data) -> str:
    """Return the mismatch between the vocabulary and the dim of a key; "" if they fit or it can't be read."""
    if data.vocab is None or data.sparse_dim is None or data.sparse_dim.size is None:
        return ""
    with contextlib.suppress(ConfigError, DataError):
        count = len(vocab_labels(key, data.vocab))
        if count != data.sparse_dim.size:
            return "extern_data[%r] has dim %d, but its vocab has %d labels." % (key, data.sparse_dim.size, count)
    return ""


def _file_of(dataset: Dataset) -> str:
    """Return ``, file ...`` with that of the first sequence, for messages; "" without one."""
    file = "" if dataset.is_stream or not dataset.num_seqs else dataset.file_of(0)
    return ", file %r" % file if file else ""


def _declaration(spec: DataSpec) -> str:
    options = {name: value for name, value in spec.as_extern_data().items() if name in ("dim", "sparse") and value}
    return repr(options if "dim" in options else {"shape": spec.as_extern_data()["shape"]})


def _words(sparse: bool, dim: Optional[int], axes: int) -> str:
    kind = "label indices of %s" % dim if sparse else "%s features" % dim if dim else "numbers"
    return "%s, %d ax%ss with time" % (kind, axes, "i" if axes == 1 else "e")


def _dim(data: Data) -> Optional[int]:
    dim = data.sparse_dim if data.sparse else data.feature_dim
    return None if dim is None else dim.size
