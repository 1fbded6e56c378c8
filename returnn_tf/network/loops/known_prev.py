"""``prev:x`` while a step network is planned: its template is that which x had in the last round of planning."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.layers.loops.loop_nodes import PrevLayer
from returnn_tf.tensor import Data


class KnownPrev(PrevLayer):
    """`PrevLayer` with the template that the layer had in the last round of planning."""

    def __init__(self, of: str, data: Optional[Data]) -> None:
        super().__init__(of)
        self._data = data

    def template(self, ctx: Any) -> Data:
        """Unknown in the first round."""
        return Data((), unknown=True) if self._data is None else self._data


def same_template(a: Data, b: Data) -> bool:
    """Whether two templates are the same but for dims that the program made anew."""
    return (
        a.unknown == b.unknown
        and a.rank == b.rank
        and a.dtype == b.dtype
        and a.feature_axis == b.feature_axis
        and (a.sparse_dim is None) == (b.sparse_dim is None)
        and all(x is y or x.agrees_with(y) for x, y in zip(a.dims, b.dims))
    )
