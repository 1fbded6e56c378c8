"""Parameters computed by a function of the config: the option ``custom`` of ``reuse_params``.

Only a call can tell which parameters the function creates, so that planning calls it once, in a temporary graph. The
function sees nothing but parameters, so that the value is known before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.config.errors import ConfigError, OptionError
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.reuse import CustomParam, LayerAsParam, relative_name
from returnn_tf.ops.initializers import get_initializer
from returnn_tf.util.lazy_tf import tf


class ParamsView(Mapping[str, Any]):
    """The parameters of a layer by relative name, as ``params`` of a layer in user code; read when asked for."""

    def __init__(self, read: Mapping[str, Callable[[], Any]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> Any:
        """Return a variable or tensor."""
        return self._read[relative_name(name)]()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._read)

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._read)


class ParamOwnerView:
    """A layer as the function sees it: its name, its parameters, and the template of its output."""

    def __init__(self, node: Node, params: Mapping[str, Callable[[], Any]]) -> None:
        self.name = node.path.rpartition("/")[2]
        self.params = ParamsView(params)
        self.output = node.output if node.planned else None


def trace_custom(param: CustomParam, read: Mapping[str, Callable[[], Any]]) -> Any:
    """Call the function in a scratch graph, and note which parameters it uses and creates.

    :param param: its ``created`` and ``used`` are filled
    :param read: the parameters of the reused layer by relative name: functions that return what provides them
    :return: the `ParamSpec` or `LayerAsParam` that the function returns unchanged, else ``param``
    :raises ConfigError: the function fails, or returns no tensor
    """
    made: list[tuple[Any, Any]] = []

    def stand_in(provider: Any) -> Any:
        known = next((value for value, of in made if of is provider), None)
        if known is None:
            shape, dtype = _form(provider)
            # Its own scope keeps the name of the parameter, which functions may look at.
            known = tf.Variable(lambda: tf.zeros(shape, dtype), shape=shape, dtype=dtype)
            made.append((known, provider))
        return known

    def reader(name: str) -> Callable[[], Any]:
        def get() -> Any:
            param.used[name] = read[name]()
            return stand_in(param.used[name])

        return get

    def create(spec: ParamSpec) -> Any:
        param.created[spec.name] = spec
        return stand_in(spec)

    with tf.Graph().as_default():
        result = _call(param, {name: reader(name) for name in read}, create)
    same = next((of for value, of in made if of is not None and value is result), None)
    if isinstance(same, ParamSpec) and same.name in param.created and same.name == param.wanted.name:
        _take_over(same, param.wanted)
        return param.wanted if len(param.created) == 1 else param
    return param if same is None or param.created else same


def emit_custom(param: CustomParam, value_of: Callable[[Any], Any], variables: Mapping[str, Any]) -> Any:
    """Return the value of the parameter: what the function makes of the variables.

    :param value_of: returns the value of a `ParamSpec`, `LayerAsParam` or `CustomParam`
    """
    read = {name: (lambda provider=provider: value_of(provider)) for name, provider in param.used.items()}
    return tf.convert_to_tensor(_call(param, read, lambda spec: variables[spec.name]))


def _call(param: CustomParam, read: Mapping[str, Callable[[], Any]], create: Callable[[ParamSpec], Any]) -> Any:
    wanted = param.wanted

    def getter(
        name: str = wanted.name,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        trainable: Optional[bool] = None,
        **_: Any,
    ) -> Any:
        spec = ParamSpec(
            name,
            wanted.shape if shape is None else tuple(int(size) for size in shape),
            wanted.dtype if dtype is None else tf.as_dtype(dtype).base_dtype.name,
            wanted.init if initializer is None else get_initializer(initializer),
            wanted.trainable if trainable is None else bool(trainable),
            wanted.layer_path,
            wanted.updater_opts,
            wanted.device,
        )
        return create(spec)

    where = "reuse_params: the function %r, asked for %r," % (
        getattr(param.function, "__name__", "custom"),
        param.name,
    )
    try:
        result = param.function(
            base_layer=ParamOwnerView(param.base, {}),
            reuse_layer=None if param.reuse_layer is None else ParamOwnerView(param.reuse_layer, read),
            name=param.name,
            full_name=wanted.name,
            getter=getter,
            shape=wanted.shape,
            dtype=tf.as_dtype(wanted.dtype),
            initializer=wanted.init,
            trainable=wanted.trainable,
        )
    except ConfigError:
        raise
    except Exception as exc:  # code of the user may raise anything
        raise OptionError("%s failed: %s: %s" % (where, type(exc).__name__, exc)) from exc
    if not (tf.is_tensor(result) or isinstance(result, tf.Variable)):
        raise OptionError("%s must return a tensor or a variable, not %s." % (where, type(result).__name__))
    if result.dtype.base_dtype.name != wanted.dtype:
        raise OptionError("%s returns %s, but %s is needed." % (where, result.dtype.base_dtype.name, wanted.dtype))
    return result


def _form(provider: Any) -> tuple[Any, str]:
    """Return shape and dtype; the shape that a function returns is not known."""
    if isinstance(provider, CustomParam):
        return provider.wanted.shape, provider.wanted.dtype
    if isinstance(provider, LayerAsParam):
        return tuple(d.size for d in provider.dims), provider.node.output.dtype
    return provider.shape, provider.dtype


def _take_over(spec: ParamSpec, into: ParamSpec) -> None:
    """Copy what the function changed of a parameter that the layer creates itself."""
    into.shape, into.dtype, into.init, into.trainable = spec.shape, spec.dtype, spec.init, spec.trainable
