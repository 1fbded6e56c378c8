"""``from returnn.tf.layers.base import InternalLayer``: a layer that is only a template."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.modules.layers.layer_base import LayerBase
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.tensor import Data


class InternalLayer(LayerBase):
    """A layer of a `TFNetwork` of templates.

    :param output: the template
    :param debug_type_name: not used
    """

    layer_class = None

    def __init__(self, *, name: str, network: Any, output: Any, debug_type_name: str = "", **options: Any) -> None:
        del debug_type_name
        view = DataView(output, None, None, name) if isinstance(output, Data) else output
        super().__init__(name=name, network=network, output=view, **options)

    @property
    def search_choices(self) -> Any:
        """Return None: a template has no hypotheses."""
        return None
