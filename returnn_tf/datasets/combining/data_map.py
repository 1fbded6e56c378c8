"""The options ``data_map`` and ``data_dims`` of MetaDataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.generating import dim_and_ndim


def parse_data_map(value: Any, *, owner: str) -> dict[str, tuple[str, str]]:
    """Return data key -> (name of a dataset, key in it).

    :param value: such a dict, or a list of its items
    :param owner: how errors begin
    :raises ConfigError: for another form
    """
    where = "%s: option 'data_map'" % owner
    try:
        entries = dict(value)
    except (TypeError, ValueError):
        entries = {}
    if not entries:
        raise ConfigError("%s is %r, but must be {data key: (name of a dataset, key in it)}" % (where, value))
    for key, entry in entries.items():
        if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not all(isinstance(part, str) for part in entry):
            raise ConfigError("%s: %r: %r must be (name of a dataset, key in it)" % (where, key, entry))
    return {key: (entry[0], entry[1]) for key, entry in entries.items()}


def check_dims(given: Mapping[str, Any], specs: Mapping[str, DataSpec], *, owner: str) -> None:
    """Compare the option ``data_dims`` with the formats of the datasets; more classes than there are may be declared.

    :raises ConfigError: a key is missing or has another format
    """
    where = "%s: option 'data_dims'" % owner
    for key, spec in specs.items():
        if key not in given:
            raise ConfigError("%s lacks the key %r of data_map. %s" % (where, key, did_you_mean(key, given)))
        dim, ndim = dim_and_ndim(given[key], option="data_dims", ndim=spec.ndim, owner=owner)
        fits = dim >= spec.dim if spec.sparse else dim == spec.dim or not spec.dim
        if ndim != spec.ndim or not fits:
            text = "%s: key %r has dim %d and %d axes there, but its dataset has dim %d and %d axes"
            raise ConfigError(text % (where, key, dim, ndim, spec.dim, spec.ndim))
