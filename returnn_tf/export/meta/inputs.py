"""The placeholders of a meta graph: one for each data key, and one for the lengths of each of its dynamic axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.export.meta import names
from returnn_tf.export.meta.names import named, placeholder
from returnn_tf.tensor import Data, Dim, extern_data_options
from returnn_tf.util.lazy_tf import tf


class Inputs:
    """The placeholders, made in the current graph.

    :param plan: of the network; its declared data keys get placeholders, whether it uses them or not
    :param config: that of the plan
    """

    def __init__(self, plan: Plan, config: Config) -> None:
        keys: dict[str, Data] = {**plan.extern_data, **{key: node.output for key, node in plan.extern.items()}}
        #: "<key>" -> batch-major tensor, "<key>/size<i>" -> int32 [batch]: what `lower` takes.
        self.feed: dict[str, Any] = {}
        first = [key for key in keys if for_inference(config, key)]
        self._lens: dict[Dim, Any] = {}
        for key in [*first, *(key for key in keys if key not in first)]:
            self._add(key, keys[key])
        #: int32 scalar.
        self.batch_size = self._batch_size([*first, *keys], keys)

    def _add(self, key: str, data: Data) -> None:
        order = batch_major_order(data)
        tensor = placeholder(names.input_name(key), data.dtype, [data.dims[axis].size for axis in order])
        self.feed[key] = tensor
        offset = 0 if data.batch_axis is None else 1
        for i, axis in enumerate(order):
            dim = data.dims[axis]
            if not dim.is_dynamic():
                continue
            name = names.input_size_name(key, i - offset)
            if dim in self._lens:
                # The axis of another key: the lengths are those of that one, which alone needs them.
                lens = placeholder(name, "int32", [None], default=self._lens[dim])
            else:
                lens = self._lens[dim] = placeholder(name, "int32", [None])
            self.feed["%s/size%d" % (key, i - offset)] = lens

    def _batch_size(self, order: list[str], keys: Mapping[str, Data]) -> Optional[Any]:
        for key in order:
            if keys[key].batch_axis is not None:
                return named(tf.shape(self.feed[key])[0], names.BATCH_DIM)
        return None


def for_inference(config: Config, key: str) -> bool:
    """Return whether a data key exists where there are no targets: ``available_for_inference``.

    A key that does not say it does, unless it is the default target.
    """
    settings = NetworkSettings(config)
    declared = {
        "extern_data": settings.extern_data,
        "num_inputs": settings.num_inputs,
        "num_outputs": settings.num_outputs,
    }
    options = extern_data_options(declared).get(key)
    given = options.get("available_for_inference") if isinstance(options, Mapping) else None
    return key != settings.target if given is None else bool(given)
