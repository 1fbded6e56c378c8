"""Graphs for other programs: exported networks, which decoders load without returnn_tf.

``returnn_tf.export(net, folder)`` is a function, see `returnn_tf.export.export.export`. Python sets the attribute
``returnn_tf.export`` to this package as soon as one of its modules is imported, so the package can be called as well.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from returnn_tf.export.export import export as _export


class _CallablePackage(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> None:
        """Export a network, see `returnn_tf.export.export.export`."""
        _export(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
