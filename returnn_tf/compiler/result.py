"""The result of `Network.run`: numpy values with their axes and lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.tensor import Data
from returnn_tf.util.html import paragraph, shortened, table


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The output of one layer.

    :param value: batch axis first if there is one, the other axes in the order of the template
    :param axes: per axis "B" batch, "T" dynamic spatial, "S" static spatial, "F" feature
    :param sizes: lengths by array axis
    :param beam_scores: [batch, beam] log scores, in search only; of a decision [batch, 1]
    """

    value: NDArray[Any]
    axes: tuple[str, ...]
    sizes: dict[int, NDArray[Any]]
    beam_scores: Optional[NDArray[Any]] = None

    def _repr_html_(self) -> str:
        lengths = {axis: values.tolist() for axis, values in self.sizes.items()}
        rows = [
            (kind, size, shortened(str(lengths[axis]), 60) if axis in lengths else "")
            for axis, (kind, size) in enumerate(zip(self.axes, self.value.shape))
        ]
        return paragraph("%s, axes:" % self.value.dtype) + table(("axis", "size", "lengths"), rows, numbers=[1])


def layer_result(data: Data, value: Any, lens: Mapping[str, Any], scores: Optional[Any]) -> LayerResult:
    """Return the output of a layer as numpy values with the batch axis first.

    :param value: the tensor, its axes as in ``data``
    :param lens: lengths by axis of the tensor, as text
    :param scores: [batch, beam] log scores; None outside of search
    """
    order = batch_major_order(data)
    kinds = data.axis_kinds
    array = value.numpy()
    if array.ndim:
        array = np.transpose(array, order)
    sizes = {order.index(int(axis)): v.numpy() for axis, v in lens.items()}
    return LayerResult(array, tuple(kinds[a] for a in order), sizes, None if scores is None else scores.numpy())


@dataclasses.dataclass(frozen=True)
class RunResult:
    """All results of one run.

    :param layers: by layer path
    :param losses: reduced losses, unscaled
    :param errors: by layer path, where the loss defines one
    :param counts: numbers of frames or sequences that reports divide loss and error by
    :param total_loss: scaled losses plus constraints; None without losses
    :param grads: gradients of the total loss by parameter name, only on request
    """

    layers: dict[str, LayerResult]
    losses: dict[str, NDArray[Any]]
    errors: dict[str, NDArray[Any]]
    counts: dict[str, NDArray[Any]]
    total_loss: Optional[NDArray[Any]]
    grads: dict[str, NDArray[Any]]

    def _repr_html_(self) -> str:
        rows = []
        for name, loss in self.losses.items():
            error = "%.6g" % float(self.errors[name]) if name in self.errors else ""
            rows.append((name, "%.6g" % float(loss), error, self.counts.get(name, "")))
        layers = [(path, "".join(found.axes), list(found.value.shape)) for path, found in self.layers.items()]
        losses = table(("loss", "sum", "errors", "count"), rows, numbers=[1, 2, 3]) if rows else ""
        return losses + table(("layer", "axes", "shape"), layers)
