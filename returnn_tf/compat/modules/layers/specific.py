"""``from returnn.tf.layers.basic import LinearLayer``: layer classes of ours as the bases of classes in configs.

`__init__` of such a class computes the layer of ours with the options that it gets, and sets ``self.output`` to its
value, which the class in the config can change.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Callable, ClassVar, Optional

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.layers.base_template import concat_view
from returnn_tf.compat.modules.layers.host import HOST
from returnn_tf.compat.modules.layers.layer_base import BASE_OPTIONS, LayerBase
from returnn_tf.compat.modules.layers.templates import template_of_layer
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compat.views.layer_view import LayerView
from returnn_tf.compat.views.network_view import NetworkView
from returnn_tf.config.option_values import map_strings
from returnn_tf.config.options import declared_options
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.registry import LAYERS

register_compat(__name__, "returnn.tf.layers.rec", "TFNetworkRecLayer")
register_compat(__name__, "returnn.tf.layers.signal_processing", "TFNetworkSigProcLayer")
register_compat(__name__, "returnn.tf.layers.variable")

__all__: list[str] = []

#: Options of every layer that say something about the output of the layer of ours, too.
_ABOUT_OUTPUT = ("n_out", "out_dim", "out_type", "target")
#: RETURNN's classes whose names are not those of networks -> those names; both without underscores.
_OTHER_NAMES = {"fastbaumwelch": "fastbw"}


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
        own, sources = _options(cls.own_class, kwargs), kwargs.get("sources") or ()
        host, name = HOST.get(), str(kwargs.get("name", "output"))
        if host is None:
            # the size of a target is one more with a loss that has a blank
            checks = (*_CHECKS, "loss") if kwargs.get("target") is not None else _CHECKS
            own.update({key: kwargs[key] for key in checks if kwargs.get(key) is not None})
            others = kwargs.get(_SOURCE_OPTIONS) or [()] * len(sources)
            options = {"class": cls.own_class.class_name, **own}
            return template_of_layer(name, options, list(zip(sources, others)), kwargs.get("network"))
        template = host.own_template(cls.own_class, own, [source.node for source in sources])
        return DataView(template, None, None, name)

    @classmethod
    def transform_config_dict(cls, d: dict[str, Any], network: Any, get_layer: Callable[[str], Any]) -> None:
        """Replace names of layers in the options by layers.

        In the layer of a config, the layer of ours resolves those of its own options.

        :param d: the options of the layer, to be changed in place
        :param get_layer: returns the view of a layer
        """
        if isinstance(network, NetworkView):
            super().transform_config_dict(d, network, get_layer)
            return
        given = cls.own_class.source_list(d.pop("from", []))
        sources = [source if isinstance(source, tuple) else (source,) for source in given if source != "none"]
        d["sources"] = [get_layer(name) for name, *_ in sources]
        if any(others for _, *others in sources):
            d[_SOURCE_OPTIONS] = [tuple(others) for _, *others in sources]
        for info in declared_options(cls.own_class).values():
            if info.refs and d.get(info.name) is not None:
                d[info.name] = map_strings(info, d[info.name], get_layer)


#: Argument: for each source, what follows its name in the tuple that ``from`` has in place of a name.
_SOURCE_OPTIONS = "source_options"
#: Options of every layer that are checked with the template.
_CHECKS = ("out_shape", "size_target")
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


def _class_of(name: str) -> Optional[type[Layer]]:
    """Return the class of ours for the name of one of RETURNN's, such as "LinearLayer", or None.

    It is not one that a config has registered: those of other configs of this process are nothing to this one.
    """
    if not name.endswith("Layer"):
        return None
    word = name[: -len("Layer")].lower()
    word = _OTHER_NAMES.get(word, word)
    spelled = (LAYERS[known] for known in LAYERS.names() if known.replace("_", "") == word)
    return next((found for found in spelled if not hasattr(found, "config_class")), None)


@functools.cache
def base_of(own_class: type[Layer]) -> type[SpecificLayer]:
    """Return the base that stands for a layer class of ours."""
    name = own_class.class_name
    doc = "The layer class %r as a base." % name
    facts = {"own_class": own_class, "layer_class": name, "__doc__": doc, "__module__": __name__}
    return type(own_class.__name__, (SpecificLayer,), facts)


def specific_layer(name: str) -> Optional[type[SpecificLayer]]:
    """Return the base for one of RETURNN's layer classes, such as "LinearLayer"; None if there is none of ours."""
    own_class = _class_of(name)
    # mypy takes a class with fields for unhashable
    return None if own_class is None else base_of(own_class)  # type: ignore[arg-type]


def __getattr__(name: str) -> Any:
    found = specific_layer(name)
    if found is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    return found
