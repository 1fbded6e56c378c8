"""What functions and strings of a config get to see of layers and tensors: views, which a room may have.

Without one, such code sees the tensors of its sources and TensorFlow; what else it asks for is an error.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, Callable

from returnn_tf.config.errors import DimError
from returnn_tf.config.registry import missing_rooms, of_rooms
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


class UserViews:
    """Makes the views for code in configs. Those of this class know the path of their layer alone."""

    #: The names that strings of code see, besides those of their layer.
    names: Sequence[str] = ("tf",)

    def values(self, seed: Callable[[str], Any]) -> dict[str, Any]:
        """Return the values of the `names`.

        :param seed: gives the seed of a random op of the layer by name
        """
        del seed
        return {"tf": tf}

    def layer(self, ctx: EmitContext, node: Node, **attributes: Any) -> Any:
        """Return the view of a layer whose ops are made.

        :param ctx: of the layer that the code is part of
        :param attributes: what it has besides the options of the layer
        """
        del ctx
        return NoView(node, attributes)

    def planned_layer(self, node: Node) -> Any:
        """Return the view of a layer while the network is planned."""
        return NoView(node, {})

    def data(self, ctx: EmitContext, node: Node, value: Any, batch_major: bool) -> Any:
        """Return the view of a tensor, with axes and lengths.

        :param node: whose output has the axes of the tensor
        :param batch_major: with the batch axis first
        """
        del ctx, value, batch_major
        return NoView(node, {})

    def tensor_of(self, value: Any) -> Any:
        """Return the tensor of a view of one; anything else as it is."""
        return value

    def template_of(self, value: Any) -> Any:
        """Return the template of a view of a tensor; anything else as it is."""
        return value

    def knowing_lengths(self, lookup: Callable[[Dim], Any]) -> contextlib.AbstractContextManager[None]:
        """Let code find the lengths of dims by this function within the context."""
        del lookup
        return contextlib.nullcontext()

    def asked_mode(self, layer: Any) -> bool:
        """Return whether code has asked the view of its layer for the mode, so that others may need other sources."""
        del layer
        return False


class NoView:
    """Stands for a layer in code of a config where there are no views: it only has what it is given."""

    def __init__(self, node: Node, attributes: dict[str, Any]) -> None:
        self._node = node
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        text = "Layer %r (class %r): its code asks for %r of a layer."
        raise DimError(" ".join([text % (self._node.path, self._node.layer.class_name, name), *missing_rooms()]))


@functools.cache
def user_views() -> UserViews:
    """Return the factory of the views: that of a room, or the default one."""
    return of_rooms("returnn_tf.views", UserViews())
