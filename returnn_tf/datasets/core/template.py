"""Formats given in a config as templates, with the options of an entry of ``extern_data``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.config.errors import ConfigError, DatasetError
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.tensor.extern_data import parse_data_key


def specs_of_templates(templates: Any, *, where: str) -> dict[str, DataSpec]:
    """Return the format by data key.

    :param templates: data key -> dim, shape (time = None), sparse, dtype, ...
    :param where: how errors begin
    :raises ConfigError: for another form; names the key
    """
    if not isinstance(templates, Mapping) or not templates:
        raise DatasetError("%s is %r, but must be {data key: {'dim': ..., 'shape': ...}}" % (where, templates))
    specs = {}
    for key, options in templates.items():
        try:
            template = parse_data_key(key, options)
        except ConfigError as exc:
            raise DatasetError("%s: %s" % (where, exc)) from None
        declared = Declared.of(template)
        dim = declared.num_labels if template.sparse_dim else template.dim
        specs[key] = DataSpec(
            dim=dim or (0 if template.sparse_dim else 1),
            ndim=len(declared.sizes),
            dtype="object" if declared.dtype == "string" else declared.dtype,
            shape=declared.sizes[1:],
        )
    return specs
