"""The environment of `__init__` of a layer class in a config: its variables, targets and random numbers."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from returnn_tf.compat.modules.layers.own_layers import OwnLayers
from returnn_tf.compat.views.layer_view import LayerView
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: function (name in the layer, shape, dtype, initialiser, trainable, getter) -> variable or its value
MakeVariable = Callable[..., Any]


#: The host of the layer whose `__init__` is running.
HOST: contextvars.ContextVar[Any] = contextvars.ContextVar("layer of a config", default=None)


class Host:
    """Takes the place of the network for one instance of such a class.

    :param ctx: of the layer
    :param make_variable: returns the variable of a name
    :param target_node: returns the node of a target
    :param own: returns the layers of ours that bases of the class compute
    """

    def __init__(
        self,
        ctx: EmitContext,
        make_variable: MakeVariable,
        target_node: Callable[[str], Node],
        own: OwnLayers,
    ) -> None:
        self._ctx = ctx
        self._own = own
        self._make_variable = make_variable
        self._target_node = target_node
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        #: Names of the parameters that are not to be trained.
        self.not_trained: set[str] = set()
        self.path = ctx.node.path
        self.scope = ctx.node.scope + "/" if ctx.node.scope else ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within the context, instances of layer classes of configs belong to this layer."""
        token = HOST.set(self)
        try:
            with self._variables():
                yield
        finally:
            HOST.reset(token)

    @contextlib.contextmanager
    def _variables(self) -> Iterator[None]:
        """Within the context, ``tf.get_variable`` gives the parameters of the layer."""

        def get(getter: Any, name: str, **options: Any) -> Any:
            if options.get("regularizer") is not None:
                raise ValueError("get_variable: regularizer is not supported; use the option L2 of the layer")
            value = self._make_variable(name, getter=getter, **options)
            self._names[id(value)] = name
            self._kept.append(value)  # so that its id stays unique
            return value

        scope = tf.compat.v1.variable_scope(
            tf.compat.v1.get_variable_scope(), custom_getter=get, reuse=tf.compat.v1.AUTO_REUSE
        )
        with scope:
            yield

    def add_param(self, param: Any, trainable: Optional[bool]) -> str:
        """Return the name of a parameter in the layer.

        :raises ValueError: it was not made by ``tf.get_variable``
        """
        name = self._names.get(id(param))
        if name is None:
            raise ValueError("add_param: make the variable by tf.get_variable, within self.var_creation_scope()")
        if trainable is False:
            self.not_trained.add(name)
        return name

    def param_of_network(self, name: str) -> Any:
        """Return the variable of a parameter of another layer by its whole name, or None."""
        return self._ctx.lowering.params.variables.get(name)

    def target_view(self, target: str) -> Any:
        """Return the view of a target."""
        return LayerView(self._ctx, self._target_node(target)).output

    def own_layer(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Node:
        """Return a layer of ours that a base of the class computes, as part of this layer.

        :param options: of the layer
        """
        return self._own.layer(own_class, options, sources)

    def own_template(self, own_class: type[Layer], options: Mapping[str, Any], sources: Sequence[Node]) -> Data:
        """Return the template of such a layer."""
        return self._own.template(own_class, options, sources)

    def view_of(self, node: Node) -> LayerView:
        """Return the view of a layer that this one needs."""
        return LayerView(self._ctx, node)

    def dropout(self, x: Any, rate: float) -> Any:
        """Apply dropout, with random numbers of this layer and step."""
        return self._ctx.dropout(x, rate)
