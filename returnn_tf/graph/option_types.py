"""Types of layer options as configs write them: axes, dims, activations, initialisers.

The attributes may hold values of other types once the layer is planned, so type checkers see `Any`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Callable, Optional, Union

import numpy as np

from returnn_tf.config import ConfigError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import axis_size, axis_sizes, check_options, option
from returnn_tf.tensor import DTYPES, Dim

_AXIS = Union[Dim, str, int]
_SIZE = Union[Dim, int]
_PADDING = Union[int, str, None, tuple[int, int]]

#: One axis of a layer, e.g. ``"T"``, ``"stag:chunk"``, a dim.
Axis = Annotated[Any, Written(_AXIS, "axis")]
#: One axis or several; ``"BT"`` means two.
Axes = Annotated[Any, Written(Union[Dim, str, int, list[_AXIS], set[_AXIS]], "axis | list[axis]")]
#: The axes of a layer in a new order: a list, or a dict from position to axis.
AxisOrder = Annotated[Any, Written(Union[list[_AXIS], dict[_AXIS, _AXIS]], "list[axis] | dict[axis, axis]")]
#: Dims, one for each axis.
Dims = Annotated[Any, Written(Union[Dim, list[Dim]], "Dim | list[Dim]")]
#: Dims or sizes, one for each axis.
Shape = Annotated[Any, Written(list[_SIZE], "list[Dim | int]")]
#: One number, or one for each axis.
NumberPerAxis = Annotated[Any, Written(Union[int, list[Union[int, None]]], "int | list[int]")]
#: Padding of a convolution or pooling: name, frames, frames on both sides, or a list of these for each axis.
Padding = Annotated[Any, Written(Union[_PADDING, list[_PADDING]], "str | int | (int, int) | list")]
#: Name of a function, several joined by "|", an expression of x, or a function.
Activation = Annotated[Any, Written(Union[str, Callable[..., Any], None], "str | function | None")]
#: Initial value of a parameter.
Init = Annotated[
    Any,
    Written(
        Union[str, float, bool, np.ndarray, np.number, dict[str, Any], Callable[..., Any], None],
        "number | str | array | dict | function",
    ),
]
#: A number or a bool, converted to a constant of the required dtype.
Number = Annotated[Any, Written(Union[float, bool], "number")]
#: The layer whose parameters are reused, or a map from own parameters to layers.
ReusedParams = Annotated[Any, Written(Union[None, str, dict[str, Any]], "layer | dict | None")]
#: Name of a layer, a number or a bool.
LayerOrConstant = Annotated[Any, Written(Union[str, float, bool], "layer | number")]
#: Name of a layer, a keyword such as ``"zeros"``, a number, or None.
InitialOutput = Annotated[
    Any, Written(Union[None, str, float, bool], "layer | 'zeros' | 'ones' | 'var' | 'apply(0)' | number | None")
]
#: Name of a layer, a size, a dim, or None.
LayerOrSize = Annotated[Any, Written(Union[None, str, int, Dim], "layer | int | Dim | None")]
#: Entries to add on each side of each axis.
Amounts = Annotated[Any, Written(Union[int, list[Union[_SIZE, list[_SIZE]]]], "int | (int, int) | list[(int, int)]")]
#: Changes to an output template, or a function that returns them.
OutType = Annotated[Any, Written(Union[None, dict[str, Any], Callable[..., Any]], "dict | function | None")]
#: Which entries share a dropout mask: by axis, or for all axes in their order.
NoiseShape = Annotated[
    Any,
    Written(Union[None, dict[Any, Optional[int]], list[Optional[int]]], "{axis: int | None} | list[int | None] | None"),
]
#: Number, text, or an array or nested list of these.
Constant = Annotated[
    Any, Written(Union[float, bool, str, np.ndarray, np.generic, list[Any]], "number | bool | str | array")
]
#: Python code as a string, or a function.
Code = Annotated[Any, Written(Union[str, Callable[..., Any]], "str | function")]


def _check_reused_params(entries: Optional[Mapping[str, Any]]) -> Optional[str]:
    """Check the entries of the map of ``reuse_params``."""
    for name, entry in (entries or {}).items():
        if isinstance(entry, collections.abc.Mapping):
            try:
                check_options(ReuseOptions, entry, where="%r" % name)
            except ConfigError as exc:
                return "has a wrong entry, %s" % exc
            if not any(entry.values()):
                return (
                    "has a wrong entry: %r needs reuse_layer, map, custom, layer_output or auto_create_missing" % name
                )
    return None


@dataclasses.dataclass(frozen=True)
class ReuseOptions:
    """The options of ``reuse_params`` and of each entry in its ``map``, in the order in which they are asked."""

    shape: Optional[list[Union[Dim, int]]] = option(
        None, help="the shape that the parameter must have; with layer_output, the dims of the output in this order"
    )
    custom: Optional[Callable[..., Any]] = option(
        None,
        help="function(*, base_layer, reuse_layer, name, full_name, shape, dtype, getter, **kwargs) that returns the "
        "parameter; getter(name=full_name, shape=shape, dtype=dtype, **kwargs) creates one",
    )
    map: Optional[dict[str, ReusedParams]] = option(
        None, check=_check_reused_params, help="own parameter -> layer, a dict of these options, or None for an own one"
    )
    reuse_layer: Optional[str] = option(None, help="layer whose parameter of this name to use")
    layer_output: Optional[str] = option(None, help="layer whose output to use as the parameter")
    auto_create_missing: bool = option(False, help="create parameters that nothing else provides")


@dataclasses.dataclass(frozen=True)
class OutTypeOptions:
    """The options in ``out_type``."""

    dtype: Optional[str] = option(None, choices=(None, *DTYPES), help="e.g. 'float32'")
    dims: Optional[list[Dim]] = option(None, help="all dims of the output")
    dim_tags: Optional[list[Dim]] = option(None, help="the same as dims")
    shape: Optional[list[Optional[int]]] = option(
        None, check=axis_sizes, help="sizes without the batch axis, None where dynamic"
    )
    dim: Optional[int] = option(None, check=axis_size, help="size of the feature axis, or number of labels")
    same_dim_tags_as: Optional[dict[Any, Dim]] = option(None, help="{axis: dim that this axis has}")
    sparse: Optional[bool] = option(None, help="the values are label indices")
    sparse_dim: Optional[Dim] = option(None, help="the labels")
    feature_dim: Optional[Dim] = option(None, help="the feature dim", inert="the axes determine it")
    batch_dim_axis: Optional[int] = option(None, help="place of the batch axis")
    time_dim_axis: Optional[int] = option(None, help="index of the time axis, counting batch")
    feature_dim_axis: Optional[int] = option(None, help="index of the feature axis, counting batch")
    version: Optional[int] = option(
        None, choices=(None, 1, 2), help="2: time and feature axis are only those given; default: 2 with 'dims', else 1"
    )
    name: Optional[str] = option(None, help="for messages", inert="the name is that of the layer")
    vocab: Any = option(None, help="names of the labels", inert="the labels keep the names of their source")
    batch: Any = option(None, help="the batch of a tensor", inert="the sources have it")
    beam: Any = option(None, help="the search of a tensor", inert="the sources have it")
    control_flow_ctx: Any = option(None, help="the loop of a tensor", inert="that of the layer")
    available_for_inference: bool = option(
        True, help="whether it exists outside of training", inert="a layer is computed where its sources exist"
    )
    auto_create_placeholders: bool = option(False, help="make it an input", inert="inputs are in extern_data")
    undefined: bool = option(False, help="no type is known yet", inert="the type is inferred")
