"""DummyGenericDataset: random data of any format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.generating import GeneratingDataset
from returnn_tf.datasets.core.per_key import is_int
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.template import specs_of_templates

_DEFAULT_RANGE = (1, 10)
_INTEGERS = 100  # values of integers that are no labels are below


@register_dataset()
class DummyGenericDataset(GeneratingDataset):
    """Random sequences in a given format: normal numbers, uniform labels.

    >>> from returnn_tf.datasets import Dataset
    >>> template = {"data": {"dim": 3}, "classes": {"dim": 5, "sparse": True}}
    >>> options = {"data_template": template, "num_seqs": 2, "seq_lens": {"data": 4, "classes": [1, 3]}}
    >>> [seq.lengths["data"] for seq in Dataset.from_config({"class": "DummyGenericDataset", **options}).sequences(1)]
    [4, 4]
    """

    @dataclass
    class Options(GeneratingDataset.Options):
        """Options in the config."""

        data_template: dict[str, Any] = option(help="data key -> options as in extern_data")
        seq_lens: Union[None, int, list[Any], dict[str, Any]] = option(
            None, help="frames: a number, (least, most), or these by data key; default (1, 10)"
        )

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format of the templates."""
        specs = specs_of_templates(self.opts.data_template, where="%s: option 'data_template'" % self._owner())
        given = self.opts.seq_lens
        if isinstance(given, Mapping):
            for key in given:
                if key not in specs:
                    raise ConfigError(
                        "%s: option 'seq_lens' has the key %r, which data_template lacks. %s"
                        % (self._owner(), key, did_you_mean(key, specs))
                    )
        self._specs = specs
        self._ranges = {key: self._range(given.get(key) if isinstance(given, Mapping) else given) for key in specs}
        return dict(specs)

    def _range(self, value: Any) -> tuple[int, int]:
        if value is None:
            return _DEFAULT_RANGE
        ends = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
        if len(ends) != 2 or not all(is_int(end) for end in ends) or not 0 <= ends[0] <= ends[1]:
            raise ConfigError(
                "%s: option 'seq_lens': %r must be a number of frames or (least, most)" % (self._owner(), value)
            )
        return int(ends[0]), int(ends[1])

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Draw the lengths of all keys, then the data of one, and so on for each key."""
        data = {}
        for key, spec in self._specs.items():
            frames = {key: int(rng.randint(least, most + 1)) for key, (least, most) in self._ranges.items()}
            shape = ((frames[key],) if spec.ndim else ()) + tuple(n or frames[key] for n in spec.shape)
            data[key] = _values(rng, spec, shape)
        return data


def _values(rng: np.random.RandomState, spec: DataSpec, shape: tuple[int, ...]) -> NDArray[Any]:
    kind = str(np.dtype(spec.dtype).kind)
    if spec.sparse or (kind in "iu" and spec.dim and spec.ndim == 0):
        return np.asarray(rng.randint(0, max(spec.dim, 1), size=shape), spec.dtype)
    if kind in "iu":
        return np.asarray(rng.randint(0, _INTEGERS, size=shape), spec.dtype)
    if kind == "b":
        return np.asarray(rng.randint(0, 2, size=shape), bool)
    if kind == "O":
        return np.asarray(rng.randint(0, _INTEGERS, size=shape).astype(str), object)
    return np.asarray(rng.normal(0.0, 1.0, size=shape), spec.dtype)
