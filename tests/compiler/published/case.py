"""What a test of a small network has to know about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from returnn_tf.tensor import Data
from tests.feeds import random_feed

Layers = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, its data, and what it can do.

    ``search`` is the layer with the result of a search, or None for a network without one. ``settings`` are further
    keys of the config. ``only_search`` is the scope of parameters that only the search has. The longest sequence has
    ``longest`` frames, or ``labels`` for the keys of ``LABELS``.
    """

    network: Layers
    extern: Layers
    search: Optional[str] = None
    settings: Layers = dataclasses.field(default_factory=dict)
    only_search: str = ""
    longest: int = 9
    labels: int = 9

    def feed(self, extern_data: Mapping[str, Data]) -> Layers:
        """Return two sequences of different lengths."""
        result = random_feed(extern_data, batch=2, longest=self.longest)
        for key in LABELS & set(extern_data):
            lens = np.minimum(result[key + "/size0"], self.labels - np.arange(2))
            result.update({key: result[key][:, : max(lens)], key + "/size0": lens.astype("int32")})
        return result


#: Data keys with label sequences, which are shorter than those of the frames.
LABELS = {"classes", "transcript"}


def linear(source: Any, n_out: int, activation: Optional[str] = None, **options: Any) -> Layers:
    """Return a linear layer."""
    return {"class": "linear", "activation": activation, "n_out": n_out, "from": source, **options}


def layer(name: str, source: Any = None, **options: Any) -> Layers:
    """Return a layer of the class `name`."""
    return {"class": name, **({} if source is None else {"from": source}), **options}
