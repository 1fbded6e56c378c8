"""The views, names and helpers by which code in configs sees layers and tensors."""

from __future__ import annotations

import contextlib
import types
from typing import Any, Callable

from returnn_tf.compat.helpers.names import HELPERS
from returnn_tf.compat.helpers.tf1_names import Tf1Names
from returnn_tf.compat.views import (
    names_of_dims,  # noqa: F401  adds them
    size_tags,
)
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.layer_view import LayerView, PlannedLayerView
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.user_views import UserViews
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


class Views(UserViews):
    """Makes the views under the names that code for RETURNN uses."""

    names = ("tf", "tf_compat", *HELPERS)

    def values(self, seed: Callable[[str], Any]) -> dict[str, Any]:
        """Return the helpers, and TensorFlow with the names of version 1, or of a version that the code names."""
        return {**HELPERS, "tf": Tf1Names(tf, seed), "tf_compat": types.SimpleNamespace(v1=tf.compat.v1, v2=tf)}

    def layer(self, ctx: EmitContext, node: Node, **attributes: Any) -> LayerView:
        """Return the view of a layer whose ops are made."""
        view = LayerView(ctx, node)
        vars(view).update(attributes)
        return view

    def planned_layer(self, node: Node) -> PlannedLayerView:
        """Return the view of a layer while the network is planned."""
        return PlannedLayerView(node)

    def data(self, ctx: EmitContext, node: Node, value: Any, batch_major: bool) -> DataView:
        """Return the view of a tensor, named as the layer."""
        view = DataView(node.output, value, ctx, node.path)
        return view.copy_as_batch_major() if batch_major else view

    def tensor_of(self, value: Any) -> Any:
        """Return the tensor of a `DataView`, anything else unchanged."""
        return value.placeholder if isinstance(value, DataView) else value

    def template_of(self, value: Any) -> Any:
        """Return the template of a `DataView`, anything else unchanged."""
        return value.template if isinstance(value, DataView) else value

    def knowing_lengths(self, lookup: Callable[[Dim], Any]) -> contextlib.AbstractContextManager[None]:
        """Look up ``dim.dyn_size`` by this function within the context."""
        return size_tags.using_lengths(lookup)

    def asked_mode(self, layer: LayerView) -> bool:
        """Return whether code has asked the network of its layer for the mode."""
        return layer.network.asked_mode


VIEWS = Views()
