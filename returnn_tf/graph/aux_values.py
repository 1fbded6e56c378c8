"""Auxiliary values of a layer besides its output, e.g. the values before a softmax, for other layers and losses.

Each kind of value is declared once, as an `Aux`. Layers store and read them by `EmitContext.set_aux` and
`EmitContext.aux`. Whatever changes or forwards the output of a layer consults the declaration on how to treat the
values: a choice in a beam search, which reorders the batch entries, the end of a loop, and layers such as `copy`.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Callable, Generic, Optional, TypeVar

from returnn_tf.graph.layer import Node

T = TypeVar("T")


class OnExit(enum.Enum):
    """The change of an auxiliary value where the output of a layer leaves a loop and gains the step axis in front."""

    #: It is unknown outside.
    DROP = "drop"
    #: Its tensors are in the layout of the output, so the step axis is their first one too.
    MOVE = "move"


def no_axis(node: Node) -> Optional[int]:
    """Return None: the value is the same for all hypotheses of a search."""
    return None


def batch_of_output(node: Node) -> Optional[int]:
    """Return the batch axis of values in the layout of the output."""
    return node.output.batch_axis


def first_axis(node: Node) -> Optional[int]:
    """Return 0."""
    return 0


def apply_to_value(func: Callable[[Any], Any], value: Any) -> Any:
    """Apply the function to the whole value, where it is a tensor."""
    return func(value)


@dataclasses.dataclass(frozen=True, eq=False)
class Aux(Generic[T]):
    """A kind of auxiliary value.

    :param name: for error messages and debugging
    :param batch_axis: the batch axis of its tensors by the node that they belong to, or None; where a choice reorders
        the batch entries of the output, or they are repeated once per hypothesis, so are these
    :param each: applies a function to each tensor in the value, and returns a value of the same type
    :param on_exit: how it changes at the end of a loop
    :param forwarded: whether it also holds for a layer with the same output, e.g. a copy
    :param enters_search: whether the layers of a searching loop see those of layers outside
    """

    name: str
    batch_axis: Callable[[Node], Optional[int]] = no_axis
    each: Callable[[Callable[[Any], Any], T], T] = apply_to_value
    on_exit: OnExit = OnExit.DROP
    forwarded: bool = False
    enters_search: bool = True

    def __repr__(self) -> str:
        return "<Aux %r>" % self.name


@dataclasses.dataclass(frozen=True)
class PreActivation:
    """The input values of a layer's activation function.

    :param values: in the layout of the output
    :param activation: the option of the layer, usually a name
    """

    values: Any
    activation: Any

    def changed(self, func: Callable[[Any], Any]) -> PreActivation:
        """Return a copy with the values replaced."""
        return PreActivation(func(self.values), self.activation)


@dataclasses.dataclass(frozen=True)
class Product:
    """The factors of a layer's values before the activation, ``x W + b``.

    :param x: in the layout of the output, but with the features of the input, which are the last axis
    :param weights: [in, out], or [out, in] if ``transposed``
    :param bias: [out], or None
    """

    x: Any
    weights: Any
    bias: Any
    transposed: bool

    def changed(self, func: Callable[[Any], Any]) -> Product:
        """Return a copy with ``x`` replaced."""
        return dataclasses.replace(self, x=func(self.x))


#: The reference knows only the probabilities of a softmax outside a searching loop, which matters where scores tie.
PRE_ACTIVATION: Aux[PreActivation] = Aux(
    "pre-activation",
    batch_axis=batch_of_output,
    each=lambda func, value: value.changed(func),
    on_exit=OnExit.MOVE,
    forwarded=True,
    enters_search=False,
)
#: For losses that do without the values of the layer; unknown wherever these may differ from the product.
PRODUCT: Aux[Product] = Aux(
    "product",
    batch_axis=batch_of_output,
    each=lambda func, value: value.changed(func),
    on_exit=OnExit.MOVE,
    enters_search=False,
)
#: A loss [batch] that the layer computes along with its output, for the loss "via_layer".
OUTPUT_LOSS: Aux[Any] = Aux("output loss", batch_axis=first_axis, forwarded=True)
