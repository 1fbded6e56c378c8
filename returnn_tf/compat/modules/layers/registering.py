"""``register_layer_class`` and ``auto_register_layer_classes`` of configs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Optional

from returnn_tf.compat.modules.layers.adapter import ABSENT, ConfigLayer, own_class_of
from returnn_tf.compat.modules.layers.layer_base import LayerBase
from returnn_tf.compat.modules.layers.loss_adapter import ConfigLoss
from returnn_tf.compat.modules.layers.loss_base import Loss
from returnn_tf.compat.modules.layers.specific import SpecificLayer, base_of
from returnn_tf.config.errors import CodeError
from returnn_tf.config.options import declared_options, option
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.loss import Loss as OurLoss
from returnn_tf.graph.registry import LAYERS, LOSSES

#: Keywords of the methods that are no options.
_NO_OPTIONS = {"self", "cls", "name", "network", "output", "sources", "kwargs", "rec_previous_layer", "from", "d",
               "get_layer", "batch_dim", "rec_layer", "base_network"}  # fmt: skip


def register_layer_class(layer_class: Any) -> None:
    """Make a class of the config known under its ``layer_class``, or a loss under its ``class_name``.

    :raises ConfigError: it is none, it has no name, or the name is taken
    """
    if isinstance(layer_class, type) and issubclass(layer_class, Loss):
        register_loss_class(layer_class)
        return
    name = vars(layer_class).get("layer_class") if isinstance(layer_class, type) else None
    if not isinstance(name, str):
        raise CodeError(
            "register_layer_class: %r needs an attribute layer_class with the name for networks, e.g. "
            "layer_class = 'my_layer'." % (layer_class,)
        )
    if not issubclass(layer_class, LayerBase):
        layer_class = _unusable(layer_class)
    remembers = layer_class.get_rec_initial_extra_outputs.__func__ is not _own(
        LayerBase, "get_rec_initial_extra_outputs"
    )
    own_class = own_class_of(layer_class)
    grows = "get_rec_initial_extra_outputs_shape_invariants"
    facts = {
        "config_class": layer_class,
        "has_memory": remembers or (own_class is not None and own_class.has_memory),
        "history_grows": getattr(layer_class, grows).__func__ is not _own(LayerBase, grows),
        **_options(layer_class, ("__init__", "get_out_data_from_opts", "transform_config_dict"), Layer),
    }
    adapter = _subclass(layer_class, ConfigLayer, facts)
    LAYERS.add(adapter, name, owner=layer_class)


def get_layer_class(name: Any, raise_exception: bool = True) -> Any:
    """Return the class of a name in networks: that of the config, or the base that stands for the one of ours.

    :param raise_exception: whether an unknown name is an error; otherwise it gives None
    :raises ConfigError: there is none
    """
    if not raise_exception and LAYERS.find(name) is None:
        return None
    found = LAYERS.get(name, "get_layer_class")
    return found.config_class if issubclass(found, ConfigLayer) else base_of(found)


def register_loss_class(loss_class: Any) -> None:
    """Make a loss of the config known under its ``class_name``.

    :raises ConfigError: it has no name, or the name is taken
    """
    name = vars(loss_class).get("class_name")
    if not isinstance(name, str):
        raise CodeError("%r needs an attribute class_name with the name for the option loss." % (loss_class,))
    facts = {
        "config_class": loss_class,
        "needs_target": bool(loss_class.need_target),
        **_options(loss_class, ("__init__",), OurLoss),
    }
    LOSSES.add(_subclass(loss_class, ConfigLoss, facts), name, owner=loss_class)


def auto_register_layer_classes(vars_values: Iterable[Any]) -> None:
    """Make those of the values known that are layer classes with a name, or losses.

    :param vars_values: e.g. ``globals().values()``
    """
    for value in list(vars_values):
        if isinstance(value, type) and issubclass(value, LayerBase) and vars(value).get("layer_class"):
            if value.__module__ != LayerBase.__module__:
                register_layer_class(value)
        elif isinstance(value, type) and issubclass(value, Loss) and vars(value).get("class_name"):
            register_loss_class(value)


def _options(cls: Any, methods: Iterable[str], base: Any) -> dict[str, Any]:
    """Return the declarations of the options that the methods of a class have as keywords, or name as strings."""
    known = set(declared_options(base)) | _NO_OPTIONS
    found: dict[str, Any] = {}
    for method in methods:
        for ancestor in cls.__mro__:
            function: Any = vars(ancestor).get(method)
            function = getattr(function, "__func__", function)
            if not inspect.isfunction(function):
                continue
            for name, parameter in inspect.signature(function).parameters.items():
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                    found.setdefault(name, method)
            if method == "transform_config_dict":
                found.update(
                    {c: method for c in function.__code__.co_consts if isinstance(c, str) and c.isidentifier()}
                )
    if issubclass(cls, SpecificLayer):
        found.update(dict.fromkeys(declared_options(cls.own_class), "__init__"))
    names = [name for name in found if name not in known and name.isidentifier()]
    body: dict[str, Any] = {"own_" + name: option(ABSENT, help="of %s" % cls.__name__, name=name) for name in names}
    return {**body, "__annotations__": {"own_" + name: Any for name in names}}


def _subclass(cls: Any, base: type, facts: dict[str, Any]) -> Any:
    doc = inspect.getdoc(cls) or "The class %s of the config." % cls.__name__
    return type(cls.__name__, (base,), {**facts, "__doc__": doc, "__module__": __name__})


def _own(cls: Any, method: str) -> Any:
    return vars(cls)[method].__func__


def _unusable(cls: Any) -> Any:
    """Return a layer class in place of one whose base does not exist here; it fails when a network uses it."""

    class Unusable(LayerBase):
        """Fails."""

        @classmethod
        def transform_config_dict(cls_, d: dict[str, Any], network: Any, get_layer: Any) -> None:
            """Raise the error of the missing base."""
            cls()
            raise CodeError("the class %s must derive from LayerBase or _ConcatInputLayer." % cls.__name__)

    Unusable.__name__, Unusable.__qualname__, Unusable.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Unusable


class SelectSearchSourcesLayer:
    """Selects the hypotheses that a search went on with; here every value in a loop has been selected already."""

    @staticmethod
    def select_if_needed(layer: Any, search_choices: Optional[Any] = None) -> Any:
        """Return the layer."""
        del search_choices
        return layer
