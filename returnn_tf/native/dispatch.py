"""Ops with several forms, such as one by a native op and one in plain TensorFlow, of which the first that applies runs.

An op is a function, whose body is its form in plain TensorFlow. The forms that are preferred where they apply stand
above it, the first one first::

    @form(native_norm, where=lambda x, *_: _is_wide(x) and norm_ops())
    def layer_norm(x, scale, shift, epsilon): ...

Layers call ``layer_norm(x, scale, shift, epsilon)``, and neither know nor ask which form that is.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar, cast

#: Features below which a network is so small that compiling an op for them takes longer than it ever saves.
LEAST_WIDTH = 128

Op = TypeVar("Op", bound=Callable[..., Any])


def form(run: Callable[..., Any], *, where: Callable[..., Any]) -> Callable[[Op], Op]:
    """Give an op a form that runs where it applies; elsewhere the decorated function does.

    :param run: function of the result of ``where``, and of the arguments of the op
    :param where: function of the arguments of the op that returns what the form needs, such as the functions of a
        native library; what is false, such as None, says that the form does not apply
    """

    def declare(op: Op) -> Op:
        @functools.wraps(op)
        def choose(*args: Any, **kwargs: Any) -> Any:
            needed = where(*args, **kwargs)
            return run(needed, *args, **kwargs) if needed else op(*args, **kwargs)

        return cast(Op, choose)

    return declare


def plain_form(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form in plain TensorFlow of an op with several ones."""
    return cast(Callable[..., Any], inspect.unwrap(op))
