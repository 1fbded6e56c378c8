"""``from returnn.tf.network import ...``: the exceptions that configs name."""

from __future__ import annotations

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.views.network_view import ExternDataView as ExternData
from returnn_tf.config import ConfigError

register_compat(__name__, "returnn.tf.network", "TFNetwork")

__all__ = [
    "CannotHandleUndefinedSourcesException",
    "ExternData",
    "LayerNotFound",
    "NetworkConstructionDependencyLoopException",
]


class CannotHandleUndefinedSourcesException(ConfigError):
    """Raised by `get_out_data_from_opts` of a config where a source has no template yet."""


class LayerNotFound(ConfigError):
    """Never raised here: an unknown layer is a `ConfigError` that lists those there are."""


class NetworkConstructionDependencyLoopException(ConfigError):
    """Never raised here: layers that depend on each other in a cycle are a `ConfigError` that lists them."""
