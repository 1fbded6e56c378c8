"""The data keys that several datasets deliver, and the format of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.datasets.core.data_spec import DataSpec, can_hold
from returnn_tf.datasets.core.generating import dim_and_ndim


def check_data_map(data_map: Mapping[Any, Any], datasets: Mapping[str, Any], *, owner: str) -> None:
    """Check the option ``data_map``: (name of a dataset, key of it) -> key.

    :raises ConfigError: it has another form, or a dataset that does not exist
    """
    if not data_map or not datasets:
        raise ConfigError("%s: 'datasets' and 'data_map' must not be empty" % owner)
    for source, key in data_map.items():
        if not isinstance(source, tuple) or len(source) != 2 or not isinstance(key, str):
            raise ConfigError(
                "%s: data_map maps (name of a dataset, key of it) to a key, not %r to %r" % (owner, source, key)
            )
        if source[0] not in datasets:
            raise ConfigError(
                "%s: data_map has a dataset %r. %s" % (owner, source[0], did_you_mean(source[0], datasets))
            )


def joined_spec(
    key: str, found: Mapping[str, DataSpec], *, dim: Any = None, dtype: Optional[str] = None, owner: str
) -> DataSpec:
    """Return the format of a key: that of the first dataset, changed by options.

    :param found: name of each dataset that has the key -> its format there
    :param dim: entry of the option ``data_dims``
    :param dtype: entry of the option ``data_dtypes``
    :param owner: how errors begin
    :raises ConfigError: the datasets differ, or an option does not fit them
    """
    first, spec = next(iter(found.items()))
    if dim is not None:
        size, ndim = dim_and_ndim(dim, option="data_dims", ndim=spec.ndim, owner=owner)
        spec = dataclasses.replace(spec, dim=size, ndim=ndim)
    for name, other in found.items():
        if (other.dim, other.ndim) != (spec.dim, spec.ndim) and other.dim:
            text = "%s: key %r has dim %d and %d axes in the dataset %r, but dim %d and %d axes in %s"
            source = "data_dims" if dim is not None else "%r" % first
            raise ConfigError(text % (owner, key, other.dim, other.ndim, name, spec.dim, spec.ndim, source))
    default = "int32" if spec.sparse else "float32" if not spec.is_text else "object"
    if dtype is not None and not can_hold(dtype, spec):
        what = "%d labels" % spec.dim if spec.sparse else spec.dtype
        raise ConfigError("%s: data_dtypes: %r of key %r can't hold %s" % (owner, dtype, key, what))
    return dataclasses.replace(spec, dtype=default if dtype is None else dtype)
