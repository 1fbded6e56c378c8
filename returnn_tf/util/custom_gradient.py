"""`tf.custom_gradient` as a typed decorator, as TensorFlow does not annotate it; gradients of ops, registered once."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional, cast

from returnn_tf.util.lazy_tf import tf


def custom_gradient(func: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Decorate a function that returns (value, function of the gradient), so that it returns the value.

    See `tf.custom_gradient`.
    """
    return cast(Callable[..., Any], tf.custom_gradient(func))


#: What the attribute of an op names in place of its gradient (`_gradient_op_type`), if both have the same values.
_equivalent: set[str] = set()
_ATTRIBUTE = "_gradient_op_type"


def equivalent_gradient(func: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Decorate as `custom_gradient` does, where TensorFlow would derive the same gradient from the ops of the function.

    Ours is faster, or keeps NaN out of it. Graphs for other programs do without it, `remove_equivalent_gradients`.
    """
    decorated = custom_gradient(func)

    return lambda *args: with_equivalent_gradient(decorated(*args))


def with_equivalent_gradient(found: Any) -> Any:
    """Return what a function of `tf.custom_gradient` gave, after noting that its gradient is equivalent."""
    if not tf.executing_eagerly():
        for value in tf.nest.flatten(found):
            note_equivalent(tf.compat.as_str(value.op.get_attr(_ATTRIBUTE)))
    return found


def note_equivalent(name: str) -> None:
    """Note that the gradient of this name is the one of the ops that have it in place of their own."""
    _equivalent.add(name)


def remove_equivalent_gradients(graph_def: Any) -> None:
    """Leave ops their own gradients where ours are equivalent: other programs do not know ours.

    :param graph_def: `GraphDef`, changed in place. Other gradients stay: without them, derivatives would be wrong.
    """
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            if tf.compat.as_str(node.attr[_ATTRIBUTE].s if _ATTRIBUTE in node.attr else b"") in _equivalent:
                del node.attr[_ATTRIBUTE]


_registered: set[str] = set()
_lock = threading.Lock()  # graphs may be traced in several threads, and an op is registered once


def register_once(**gradients: Optional[Callable[..., Any]]) -> None:
    """Register the gradients of ops by their types, where that is not done yet; see `tf.RegisterGradient`.

    :param gradients: None: the op has none, see `tf.no_gradient`
    """
    with _lock:
        for name, gradient in gradients.items():
            if name not in _registered:
                if gradient is None:
                    tf.no_gradient(name)
                else:
                    tf.RegisterGradient(name)(gradient)
                _registered.add(name)
