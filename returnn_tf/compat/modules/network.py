"""``from returnn.tf.network import TFNetwork, ExternData``: a network of templates, and exceptions that configs name.

Programs that compose network dicts ask for the template of each layer as they go. They make a network without ops for
that, with layers of given templates, and the template of a layer dict is the one that our planner infers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.layers.internal import InternalLayer
from returnn_tf.compat.modules.layers.registering import get_layer_class
from returnn_tf.compat.modules.tensors import Data
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.errors import CodeError, did_you_mean
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.user_code import config_in_use
from returnn_tf.graph.registry import LAYERS
from returnn_tf.tensor import extern_data_options

register_compat(__name__, "returnn.tf.network", "TFNetwork")

__all__ = [
    "CannotHandleUndefinedSourcesException",
    "ExternData",
    "LayerNotFound",
    "NetworkConstructionDependencyLoopException",
    "TFNetwork",
]


class CannotHandleUndefinedSourcesException(ConfigError):
    """Raised by `get_out_data_from_opts` of a config where a source has no template yet."""


class LayerNotFound(CodeError):
    """Raised by `TFNetwork.get_layer`: there is no such layer; in other places it is a `ConfigError` as well."""


class NetworkConstructionDependencyLoopException(CodeError):
    """Raised by `TFNetwork.construct_layer` for layers that depend on each other in a cycle."""


class ExternData:
    """The templates of the data, by key.

    :param data: templates, or the options of ``extern_data``
    :param default_input: the key that "data" means
    """

    def __init__(
        self, data: Optional[Mapping[str, Any]] = None, default_input: str = "data", added_data: Any = ()
    ) -> None:
        del added_data
        self.data: dict[str, Any] = {}
        self.default_input = default_input
        for key, value in (data or {}).items():
            self.data[key] = value if isinstance(value, DataView) else Data(name=key, **value)

    def init_from_config(self, config: Config, auto_create_placeholders: bool = False, **others: Any) -> None:
        """Add the data that a config declares."""
        del auto_create_placeholders, others
        settings = NetworkSettings(config)
        declared = {
            "extern_data": settings.extern_data,
            "num_inputs": settings.num_inputs,
            "num_outputs": settings.num_outputs,
        }
        self.data.update(ExternData(extern_data_options(declared)).data)

    def register_data(self, data: DataView) -> None:
        """Add a template under its name."""
        self.data[data.name] = data

    register_data_from_dict = init_from_config

    def get_data(self, name: str) -> Any:
        """Return the template of a key.

        :raises ConfigError: there is no such key
        """
        key = self.default_input if name == "data" and name not in self.data else name
        if key not in self.data:
            raise CodeError("there is no data key %r in extern_data. %s" % (name, did_you_mean(name, self.data)))
        return self.data[key]

    def has_data(self, name: str) -> bool:
        """Return whether there is a key."""
        return name in self.data

    def get_default_input_data(self) -> Any:
        """Return the template of the input."""
        return self.get_data(self.default_input)

    def get_batch_info(self, allow_none: bool = False) -> Any:
        """Return what a front end noted about the batch of the data, or None."""
        del allow_none
        return next((data.batch for data in self.data.values() if data.batch is not None), None)


class TFNetwork:
    """A network of templates, without ops.

    :param config: its ``behavior_version`` is that of the layers (default: the config in use)
    :param extern_data: the templates of the data
    :param train_flag: whether layers are those of training
    :param inside_rec_time_dim: the dim of the steps, for layers of one step of a loop
    :param control_flow_ctx: a note of the front end, which the templates get
    :param parent_net: the network around
    """

    def __init__(
        self,
        config: Optional[Config] = None,
        extern_data: Optional[ExternData] = None,
        *,
        name: Optional[str] = None,
        train_flag: Any = False,
        eval_flag: bool = False,
        search_flag: bool = False,
        inside_rec_time_dim: Any = None,
        control_flow_ctx: Any = None,
        parent_net: Optional[TFNetwork] = None,
        **others: Any,
    ) -> None:
        del others
        self._config = config
        if extern_data is None:
            extern_data = ExternData() if parent_net is None else parent_net.extern_data
            if config is not None and parent_net is None and NetworkSettings(config).extern_data is not None:
                extern_data.init_from_config(config)
        self.extern_data: ExternData = extern_data
        self.name = name or "network"
        self.train_flag = train_flag
        self.eval_flag = eval_flag
        self.search_flag = search_flag
        self.inside_rec_time_dim = inside_rec_time_dim
        self.control_flow_ctx = control_flow_ctx
        self.parent_net = parent_net
        self.parent_layer = None
        self.layers: dict[str, Any] = {}
        self.used_data_keys: set[str] = set()

    def get_config(self, **options: Any) -> Config:
        """Return the config."""
        del options
        found = config_in_use() if self._config is None else self._config
        return Config() if found is None else found

    def get_root_network(self) -> TFNetwork:
        """Return the main network."""
        return self if self.parent_net is None else self.parent_net.get_root_network()

    def is_inside_rec_layer(self, inside_loop: bool = True) -> bool:
        """Return whether the layers are those of one step of a loop."""
        del inside_loop
        return self.inside_rec_time_dim is not None or bool(self.parent_net and self.parent_net.is_inside_rec_layer())

    def get_inside_rec_time_dim(self, **options: Any) -> Any:
        """Return the dim of the steps of the loop, or None."""
        del options
        return self.inside_rec_time_dim

    def get_control_flow_ctx(self) -> Any:
        """Return the note of the front end about loops and branches around."""
        return self.control_flow_ctx

    # --- layers ---

    def get_layer(self, layer_name: str) -> Any:
        """Return a layer; "data:x" is the data of a key, "x/y" a layer or an output inside of a layer.

        :raises ConfigError: there is none of this name
        """
        if layer_name in self.layers:
            return self.layers[layer_name]
        if layer_name.startswith("base:") and self.parent_net is not None:
            return self.parent_net.get_layer(layer_name[len("base:") :])
        if layer_name == "data" or layer_name.startswith("data:"):
            key = layer_name.partition(":")[2] or "data"
            self.used_data_keys.add(key)
            return self._add(layer_name, self.extern_data.get_data(key))
        for head in reversed(_layers_around(layer_name)):
            find = self.layers[head].output.part if head in self.layers else None
            if find is not None:
                return self._add(layer_name, find(layer_name[len(head) + 1 :]))
        raise LayerNotFound("there is no layer %r. %s" % (layer_name, did_you_mean(layer_name, self.layers)))

    def get_default_output_layer(self, must_exist: bool = True) -> Any:
        """Return the layer "output"."""
        return self.get_layer("output") if must_exist else self.layers.get("output")

    def _add(self, name: str, output: Any, sources: Any = ()) -> InternalLayer:
        layer = self.layers[name] = InternalLayer(name=name, network=self, output=output, sources=sources)
        return layer

    def add_layer(self, name: str, layer_class: Any, **options: Any) -> Any:
        """Add a layer by its class, and return it.

        :param options: with layers instead of their names, and ``sources`` instead of ``from``
        """
        output = layer_class.get_out_data_from_opts(**self._create_layer_layer_desc(name, options))
        return self._add(name, output, options.get("sources") or ())

    def construct_layer(self, net_dict: Mapping[str, Any], name: str, **options: Any) -> Any:
        """Add a layer of a network dict, after those that it needs, and return it.

        :raises ConfigError: it needs itself, or a layer that is not there
        """
        return self._construct(net_dict, name, ())

    def _construct(self, net_dict: Mapping[str, Any], name: str, around: tuple[str, ...]) -> Any:
        if name in around:
            raise NetworkConstructionDependencyLoopException(
                "The layers depend on each other in a cycle: %s" % " <- ".join([*around[around.index(name) :], name])
            )
        if name in self.layers or name not in net_dict:
            for head in _layers_around(name) if name not in self.layers else ():
                if head in net_dict:
                    self._construct(net_dict, head, around)
            return self.get_layer(name)
        options = dict(net_dict[name])
        layer_class = get_layer_class(options.pop("class", None))

        def get_layer(other: str) -> Any:
            return self._construct(net_dict, other, (*around, name))

        own_class = LAYERS[net_dict[name]["class"]]
        if options.get("from") is None:
            is_old = NetworkSettings(self.get_config()).behavior_version < 1
            options["from"] = ["data"] if is_old and own_class.takes_data(options) else []
        for other in own_class.references(options):  # also those that a network inside of the layer refers to
            if other in net_dict:
                get_layer(other)
        layer_class.transform_config_dict(options, network=self, get_layer=get_layer)
        return self.add_layer(name, layer_class, **options)

    def construct_from_dict(self, net_dict: Mapping[str, Any], get_layer: Any = None) -> None:
        """Add all layers of a network dict."""
        del get_layer
        for name in net_dict:
            if not name.startswith("#"):
                self.construct_layer(net_dict, name)

    def _create_layer_layer_desc(self, name: str, layer_desc: Mapping[str, Any], template: bool = True) -> Any:
        """Return the arguments of the methods of a layer class."""
        del template
        return {**layer_desc, "name": name, "network": self}

    def __repr__(self) -> str:
        return "<TFNetwork %r of templates: %s>" % (self.name, ", ".join(self.layers))


def _layers_around(name: str) -> list[str]:
    """Return the names of the layers that a layer may be inside of, by its path."""
    return [name[:i] for i, char in enumerate(name) if char == "/"]
