"""The helpers by name: `eval` strings see them without an import, and `TFUtil` has them for imports."""

from __future__ import annotations

import inspect
from typing import Any

from returnn_tf.compat.helpers import linear_alignments, shapes, values, warp


def _public(module: Any) -> dict[str, Any]:
    """Return the functions of a module, not those that it only imports from others of this folder."""
    found = vars(module).items()
    return {name: value for name, value in found if inspect.isfunction(value) and not name.startswith("_")}


HELPERS: dict[str, Any] = {}
for _module in (linear_alignments, shapes, values, warp):
    HELPERS.update({name: value for name, value in _public(_module).items() if name != "sizes_of"})
