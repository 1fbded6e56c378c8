"""The option ``max_seq_len`` of a loop: a number, or an expression of the lengths of layers."""

from __future__ import annotations

import ast
from typing import Any, Callable, Dict

from returnn_tf.config import ConfigError
from returnn_tf.layers.node import Node
from returnn_tf.util.lazy_tf import tf


def plan_max_steps(given: Any, resolve: Callable[[str], Node], where: str) -> Callable[[Any], Any]:
    """A function of the `EmitContext` which gives the limit, int32 scalar.

    :param given: int, or code with ``max_len_from('layer')``, the largest length of a layer in the batch
    :param resolve: name of a layer -> node
    :param where: how an error begins
    """
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ConfigError("%s: max_seq_len must be at least 1, got %d." % (where, given))
        return lambda ctx: tf.constant(given)
    if not isinstance(given, str):
        raise ConfigError("%s: max_seq_len must be a number or code, got %r." % (where, given))
    try:
        tree = ast.parse(given.strip(), mode="eval")
    except SyntaxError as exc:
        raise ConfigError("%s: max_seq_len %r does not parse: %s" % (where, given, exc.msg)) from None
    nodes: Dict[str, Node] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "max_len_from":
            arg = call.args[0]
            if not (isinstance(arg, ast.Constant) and isinstance(arg.value, str)):
                raise ConfigError("%s: max_len_from(...) takes the name of a layer in quotes." % where)
            nodes[arg.value] = resolve(arg.value)
    code = compile(tree, "<max_seq_len>", "eval")

    def limit(ctx: Any) -> Any:
        def max_len_from(name: str) -> Any:
            dim = nodes[name].output.time_dim
            if dim is None:
                raise ValueError("max_len_from(%r): the layer has no time axis" % name)
            return tf.reduce_max(ctx.lens(dim))

        return tf.cast(eval(code, {"max_len_from": max_len_from, "tf": tf}), tf.int32)  # the user's own code

    return limit
