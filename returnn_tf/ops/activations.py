"""Activation functions by their names in configs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

from returnn_tf.config.errors import OptionError, did_you_mean
from returnn_tf.util.custom_gradient import custom_gradient, with_equivalent_gradient
from returnn_tf.util.lazy_tf import tf

#: What an option takes as an activation, see `check_activation`.
ActivationOption = Union[str, Callable[..., Any]]

#: Activations which normalise over the feature axis, and therefore want it last.
OVER_FEATURES = ("softmax", "log_softmax")


def clipped_log(x: Any, eps: float = 1e-20) -> Any:
    """Compute ``log(x)`` with x clipped from below, so that it is finite at 0. The gradient there is 0."""
    return tf.math.log(tf.maximum(x, tf.cast(eps, x.dtype)))


def safe_log(x: Any, eps: float = 1e-20, use_fake_grad: bool = True) -> Any:
    """Compute the logarithm of ``max(x, eps)``.

    :param use_fake_grad: the gradient where x is below eps is that at eps, so that a frame of probability 0 can still
        be learned; otherwise 0
    """
    return tf.math.log(_floor_with_gradient(x, eps)) if use_fake_grad else clipped_log(x, eps)


def _floor_with_gradient(x: Any, floor: float) -> Any:
    """Return ``max(x, floor)``; the gradient is that of x also below the floor."""

    @custom_gradient
    def run(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        return tf.maximum(x, tf.cast(floor, x.dtype)), lambda dy: dy

    return run(x)


def clipped_exp(x: Any, eps: float = 1e-20) -> Any:
    """Compute ``exp(x)`` with the result clipped to ``[eps, 1/eps]``."""
    limit = -tf.math.log(tf.cast(eps, x.dtype))
    return tf.exp(tf.clip_by_value(x, -limit, limit))


def _gelu_tanh(x: Any, approximate: bool = False) -> Any:
    return tf.nn.gelu(x, approximate=approximate)


def _abs(x: Any) -> Any:
    return x if x.dtype.is_unsigned else tf.abs(x)


def _sign(x: Any) -> Any:
    return tf.cast(tf.not_equal(x, 0), x.dtype) if x.dtype.is_unsigned else tf.sign(x)


_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "none": lambda x: x,
    "linear": lambda x: x,
    "relu": lambda x, **kw: tf.nn.relu(x, **kw),
    "relu6": lambda x: tf.nn.relu6(x),
    "elu": lambda x: tf.nn.elu(x),
    "selu": lambda x: tf.nn.selu(x),
    "crelu": lambda x, **kw: tf.nn.crelu(x, **kw),
    "leaky_relu": lambda x, **kw: tf.nn.leaky_relu(x, **kw),
    "gelu": _gelu_tanh,
    "swish": lambda x: with_equivalent_gradient(tf.nn.silu(x)),
    "silu": lambda x: with_equivalent_gradient(tf.nn.silu(x)),
    "softplus": lambda x: tf.nn.softplus(x),
    "softsign": lambda x: tf.nn.softsign(x),
    "sigmoid": lambda x: tf.nn.sigmoid(x),
    "log_sigmoid": lambda x: tf.math.log_sigmoid(x),
    "tanh": lambda x: tf.tanh(x),
    "sin": lambda x: tf.sin(x),
    "cos": lambda x: tf.cos(x),
    "tan": lambda x: tf.tan(x),
    "sinh": lambda x: tf.sinh(x),
    "cosh": lambda x: tf.cosh(x),
    "asin": lambda x: tf.asin(x),
    "acos": lambda x: tf.acos(x),
    "atan": lambda x: tf.atan(x),
    "erf": lambda x: tf.math.erf(x),
    "exp": lambda x: tf.exp(x),
    "expm1": lambda x: tf.math.expm1(x),
    "log": lambda x: tf.math.log(x),
    "log1p": lambda x: tf.math.log1p(x),
    "safe_log": safe_log,
    "safe_exp": clipped_exp,
    "sqrt": lambda x: tf.sqrt(x),
    "rsqrt": lambda x: tf.math.rsqrt(x),
    "square": lambda x: tf.square(x),
    "abs": _abs,
    "sign": _sign,
    "negative": lambda x: tf.negative(x),
    "neg": lambda x: tf.negative(x),
    "reciprocal": lambda x: tf.math.reciprocal(x),
    "floor": lambda x: tf.floor(x),
    "ceil": lambda x: tf.math.ceil(x),
    "round": lambda x: tf.round(x),
    "logical_not": lambda x: tf.logical_not(x),
    "is_finite": lambda x: tf.math.is_finite(x),
    "is_nan": lambda x: tf.math.is_nan(x),
    "is_inf": lambda x: tf.math.is_inf(x),
    "stop_gradient": lambda x: tf.stop_gradient(x),
    "softmax": lambda x, **kw: tf.nn.softmax(x, **kw),
    "log_softmax": lambda x, **kw: tf.nn.log_softmax(x, **kw),
}


def check_activation(name: Any) -> None:
    """Check that an activation is known; needs no TensorFlow.

    :param name: one name, several joined as in ``"relu|tanh"`` (applied from left to right), names and numbers combined
        by ``+ - * /`` as in ``"tanh * 2"``, an expression of x such as ``"tf.minimum(x, 1.0)"``, a function (also as
        text, ``"lambda y: tf.minimum(y, 1.0)"``) or None
    :raises ConfigError: with the nearest known name
    """
    if not name or callable(name):
        return
    if _is_expression(name):
        try:
            compile(name.strip(), "<activation>", "eval")
        except SyntaxError as exc:
            message = "the activation %r is not a valid expression: %s. Write e.g. 'tf.minimum(x, 1.0)'." % (name, exc)
            raise OptionError(message) from exc
        return
    for part in str(name).split("|"):
        for word in _words(part.strip()):
            if _function(word.lower()) is None:
                raise OptionError("unknown activation %r. %s" % (word, did_you_mean(word, _ACTIVATIONS)))


def get_activation(name: Any, opts: Optional[dict[str, Any]] = None) -> Callable[[Any], Any]:
    """Return the activation function; see `check_activation` for the name.

    :param opts: keyword arguments of the function
    """
    if not name:
        return _ACTIVATIONS["identity"]
    if callable(name):
        return lambda x: name(x, **(opts or {}))
    check_activation(name)
    if _is_expression(name):
        code = compile(name.strip(), "<activation>", "eval")

        def run(x: Any) -> Any:
            value = eval(code, {"tf": tf, "x": x, **(opts or {})})
            return value(x) if callable(value) else value

        return run
    functions = [_combined(part) for part in _parts(name)]

    def apply(x: Any) -> Any:
        for function in functions:
            x = function(x, **(opts or {}))
        return x

    return apply


def is_named(name: Any) -> bool:
    """Return whether the activation is known or None: no code of the config, which may see more than one frame."""
    return name is None or (isinstance(name, str) and not _is_expression(name))


def is_over_features(name: Any) -> bool:
    """Return whether the activation normalises over the feature axis."""
    if not isinstance(name, str) or _is_expression(name):
        return False
    return any(word in OVER_FEATURES for part in _parts(name) for word in _words(part))


#: Activations for which few digits do: their values are no larger than their argument, or bounded.
_ROUGH = frozenset(
    ("identity", "none", "linear", "relu", "relu6", "elu", "selu", "crelu", "leaky_relu", "gelu", "swish", "silu")
    + ("softsign", "sigmoid", "tanh")
)


def may_reduce(name: Any) -> bool:
    """Return whether the activation may be computed in the type of mixed_precision."""
    return not name or (isinstance(name, str) and all(part in _ROUGH for part in _parts(name)))


#: Activations that are defined for other values than floats.
_FOR_ANY = frozenset(("identity", "none", "linear", "stop_gradient"))
_FOR_INTS = frozenset(("relu", "relu6", "square", "abs", "sign", "negative", "neg", "round"))


def needed_type(name: Any) -> str:
    """Return the type of values that an activation is defined for.

    :return: "floats", "numbers" (also integers), "bools", or "": all, or nothing is known, as for functions
    """
    if not isinstance(name, str) or not name or _is_expression(name):
        return ""
    needed = ""
    for part in _parts(name):
        words = set(_words(part))
        if "logical_not" in words:
            return needed or "bools"
        if words - _FOR_ANY - _FOR_INTS:
            return "floats"
        if words - _FOR_ANY or not _is_name(part):
            needed = "numbers"
    return needed


def needs_sign(name: Any) -> bool:
    """Return whether an activation is the negative of its argument, which unsigned integers do not have."""
    return isinstance(name, str) and any(word in ("negative", "neg") for part in _parts(name) for word in _words(part))


#: Functions whose result is real for complex numbers.
_OF_COMPLEX = ("abs", "real", "imag", "angle")


def is_of_complex(name: Any) -> bool:
    """Return whether the activation makes real numbers of complex ones."""
    return isinstance(name, str) and _parts(name)[0] in _OF_COMPLEX


def changes_dtype(name: Any, dtype: str) -> str:
    """Return the dtype after the activation."""
    if isinstance(name, str) and _parts(name)[-1] in ("logical_not", "is_finite", "is_nan", "is_inf"):
        return "bool"
    if is_of_complex(name):
        return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    return dtype


def _is_expression(name: Any) -> bool:
    """Return whether a string is an expression of x rather than a name."""
    return isinstance(name, str) and ("(" in name or name.split(maxsplit=1)[:1] == ["lambda"])


def _parts(name: str) -> list[str]:
    return [part.strip().lower() for part in str(name).split("|")]


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _function(name: str) -> Optional[Callable[..., Any]]:
    """Return a function of TensorFlow or of ours by its name, or None."""
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    for module in (tf.nn, tf.math, tf) if name.isidentifier() else ():
        found = getattr(module, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


def _tree(part: str) -> ast.expr:
    """Return the syntax tree of names and numbers combined by operators.

    :raises ConfigError: it is anything else
    """
    try:
        tree = ast.parse(part, mode="eval").body
    except SyntaxError as exc:
        raise OptionError("the activation %r does not parse: %s." % (part, exc.msg)) from None
    for node in ast.walk(tree):
        good = isinstance(node, (ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.USub, *_OPERATORS))
        if not good and not (isinstance(node, ast.Constant) and isinstance(node.value, (int, float))):
            raise OptionError(
                "the activation %r must be a name, or names and numbers combined by + - * /. Give a function for "
                "anything else." % part
            )
    return tree


def _is_name(part: str) -> bool:
    return part in _ACTIVATIONS or not any(char in part for char in "+-*/")


def _words(part: str) -> Iterator[str]:
    """Return the names in an activation such as ``tanh * 2``."""
    if _is_name(part):
        yield part
    else:
        yield from (node.id for node in ast.walk(_tree(part)) if isinstance(node, ast.Name))


def _combined(part: str) -> Callable[..., Any]:
    """Return the function of names and numbers combined by operators, all applied to the same argument."""
    if _is_name(part):
        function = _function(part)
        assert function is not None, part
        return function
    tree = _tree(part)

    def value(node: Any, x: Any, options: dict[str, Any]) -> Any:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left, x, options), value(node.right, x, options))
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand, x, options)
        if isinstance(node, ast.Constant):
            return node.value
        function = _function(node.id)
        assert function is not None, node.id
        return function(x, **options)

    return lambda x, **options: tf.broadcast_to(tf.convert_to_tensor(value(tree, x, options), x.dtype), tf.shape(x))
