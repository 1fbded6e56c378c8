"""``from returnn.tf.layers.basic import LinearLayer``: layer classes of ours as the bases of classes in configs.

`__init__` of such a class computes the layer of ours with the options that it gets, and sets ``self.output`` to its
value, which the class in the config can change.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Optional

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.layers.base_template import concat_view
from returnn_tf.compat.modules.layers.host import HOST
from returnn_tf.compat.modules.layers.layer_base import BASE_OPTIONS, LayerBase
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.layer_view import LayerView
from returnn_tf.config.errors import CodeError
from returnn_tf.config.options import declared_options
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.registry import LAYERS

register_compat(__name__, "returnn.tf.layers.rec", "TFNetworkRecLayer")
register_compat(__name__, "returnn.tf.layers.signal_processing", "TFNetworkSigProcLayer")
register_compat(__name__, "returnn.tf.layers.variable")

__all__: list[str] = []

#: Options of every layer that say something about the output of the layer of ours, too.
_ABOUT_OUTPUT = ("n_out", "out_dim", "out_type", "target")
#: RETURNN's classes whose names are not those of networks, written in one word.
_OTHER_NAMES = {"fastbaumwelch": "fast_bw", "resize": "resize", "sourcedata": "source"}


class SpecificLayer(LayerBase):
    """A base whose output is that of a layer class of ours, ``own_class``."""

    own_class: ClassVar[type[Layer]]

    def __init__(self, **kwargs: Any) -> None:
        own = _options(self.own_class, kwargs)
        known = {key: value for key, value in kwargs.items() if key not in own or key in _BASE_ARGUMENTS}
        super().__init__(**known)
        node = self._host.own_layer(self.own_class, own, [source.node for source in self.sources])
        view: LayerView = self._host.view_of(node)
        self.params.update(view.params)
        self.output_before_activation = view.output_before_activation
        self.output.placeholder = view.output.placeholder
        self._view = view

    @property
    def input_data(self) -> Optional[DataView]:
        """Return the sources side by side along the features, or None without sources."""
        return concat_view([source.output for source in self.sources]) if self.sources else None

    def get_last_hidden_state(self, key: Any) -> Any:
        """Return the state after the last frame of a recurrent layer, see `LayerView.get_last_hidden_state`."""
        return self._view.get_last_hidden_state(key)

    @classmethod
    def get_out_data_from_opts(cls, **kwargs: Any) -> DataView:
        """Return the template of the layer of ours."""
        sources = [source.node for source in kwargs.get("sources") or ()]
        host = HOST.get()
        if host is None:
            raise CodeError("%s.get_out_data_from_opts: there is no network here." % cls.__name__)
        template = host.own_template(cls.own_class, _options(cls.own_class, kwargs), sources)
        return DataView(template, None, None, str(kwargs.get("name", "output")))


#: The arguments of `LayerBase`.
_BASE_ARGUMENTS = BASE_OPTIONS | {"name", "network", "output", "sources", "rec_previous_layer"}


def _options(own_class: type[Layer], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that are options of a layer class of ours."""
    general = declared_options(Layer)
    return {
        key: value
        for key, value in given.items()
        if key in _ABOUT_OUTPUT or (key in declared_options(own_class) and key not in general)
        if value is not None or key not in _ABOUT_OUTPUT
    }


@functools.cache
def _class_names() -> Mapping[str, str]:
    """Return the names of layer classes, by their letters in lower case."""
    return {**{name.replace("_", ""): name for name in LAYERS.names()}, **_OTHER_NAMES}


@functools.cache
def specific_layer(name: str) -> Optional[type[SpecificLayer]]:
    """Return the base for one of RETURNN's layer classes, such as "LinearLayer"; None if there is none of ours."""
    class_name = _class_names().get(name[: -len("Layer")].lower()) if name.endswith("Layer") else None
    own_class = LAYERS.find(class_name)
    if own_class is None or not own_class.__module__.startswith("returnn_tf.") or own_class.__module__ == __name__:
        return None
    doc = "The layer class %r as a base." % class_name
    facts = {"own_class": own_class, "layer_class": class_name, "__doc__": doc, "__module__": __name__}
    return type(name, (SpecificLayer,), facts)


def __getattr__(name: str) -> Any:
    found = specific_layer(name)
    if found is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    return found
