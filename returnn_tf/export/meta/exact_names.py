"""Ops with exactly the given names: TensorFlow would change one that is taken, also by a name in other case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError
from returnn_tf.util.lazy_tf import tf


def named(tensor: Any, name: str) -> Any:
    """Give a tensor another name, in the current graph.

    :raises ConfigError: an op has this name
    """
    _check_free(name)
    return tf.identity(tensor, name=name + "/")


def placeholder(name: str, dtype: Any, shape: Sequence[Optional[int]], *, default: Any = None) -> Any:
    """Make a placeholder.

    :param default: value where nothing is fed
    :raises ConfigError: an op has this name
    """
    _check_free(name)
    if default is None:
        return tf.compat.v1.placeholder(dtype, shape, name=name + "/")
    return tf.compat.v1.placeholder_with_default(default, shape, name=name + "/")


def _check_free(name: str) -> None:
    try:
        tf.compat.v1.get_default_graph().get_operation_by_name(name)
    except KeyError:
        return
    raise ConfigError(
        "Two ops of the graph would be called %r. Rename the layer or data key whose name is the same as that of "
        "another one after characters that TensorFlow does not allow are replaced." % name
    )
