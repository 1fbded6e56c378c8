"""The option ``out_type``: output properties that cannot be inferred."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from returnn_tf.config import ConfigError
from returnn_tf.config.options import check_options, declared_options
from returnn_tf.config.user_code import error_in_config
from returnn_tf.graph.option_types import OutTypeOptions
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.user_views import user_views
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.tensor.extern_data import parse_data_key


def apply_out_type(ctx: PlanContext, data: Data, out_type: Optional[Mapping[str, Any]]) -> Data:
    """Apply the changes of ``out_type`` to a template.

    :param data: the known part: the common layout of the sources
    :param out_type: dtype, shape (sizes without batch, None where dynamic), dim, sparse, dims and axes, all optional
    """
    data = _changed(ctx, data, out_type)
    changed = data
    for desc, dim in ((out_type or {}).get("same_dim_tags_as") or {}).items():
        axis = ctx.axis(data, desc)
        old = data.dims[axis]
        if old.is_batch or dim.is_batch:
            raise ctx.error("out_type: same_dim_tags_as is not for the batch axis.")
        changed = changed.with_dim(axis, ctx.bind(dim, old))
    return changed


def whole_out_type(ctx: PlanContext, out_type: Any) -> Data:
    """Return the template that ``out_type`` describes by itself, for a layer without sources."""
    data = out_type if isinstance(out_type, Data) else _described(ctx, out_type or {})
    for dim in data.dims:
        ctx.depend_on_dim(dim)
    return data


def _described(ctx: PlanContext, options: Mapping[str, Any]) -> Data:
    if all(options.get(name) is None for name in ("dims", "dim_tags", "shape")):
        raise ctx.error(
            "needs sources: add 'from', e.g. 'from': ['a', 'b']; or describe the whole output by out_type, e.g. "
            "{'dims': [batch_dim, Dim(...)]} or {'shape': (), 'batch_dim_axis': None}."
        )
    check_options(OutTypeOptions, options, where="out_type")
    if None in (options.get("shape") or ()):
        raise ctx.error("out_type: without sources, the lengths of the axis None are unknown. Give 'dims' instead.")
    sized: dict[Dim, Dim] = {}
    data = parse_data_key(ctx.node.path, options, where="out_type", float_dtype=ctx.float_dtype, sized=sized)
    bound = {definition: ctx.bind(declared, definition) for declared, definition in sized.items()}
    return data.map_dims(lambda dim: bound.get(dim, dim))


def _changed(ctx: PlanContext, data: Data, out_type: Optional[Mapping[str, Any]]) -> Data:
    """Apply all changes but same_dim_tags_as."""
    if not out_type:
        return data
    check_options(OutTypeOptions, out_type, where="out_type")  # it may come from a function
    _check_axes(ctx, data, out_type)
    data = data.replace(dtype=out_type.get("dtype") or data.dtype)
    dims = out_type.get("dims", out_type.get("dim_tags"))
    sparse_dim = _sparse_dim(ctx, data, out_type)
    if dims is not None:
        return Data.from_dims(dims, dtype=data.dtype, sparse_dim=sparse_dim, **_given_marks(data, out_type))
    dim = out_type.get("dim", data.dim)
    if sparse_dim is not None or "sparse" in out_type or "sparse_dim" in out_type:
        data = data.replace(sparse_dim=sparse_dim, feature_axis=None if sparse_dim is not None else data.feature_axis)
    if out_type.get("shape") is not None:
        data = _with_shape(ctx, data, out_type, dim)
    elif sparse_dim is None and data.feature_axis is not None and dim is not None and dim != data.dim:
        data = data.with_feature(data.feature_axis, ctx.new_feature(dim))
    if out_type.get("batch_dim_axis") is not None and out_type.get("shape") is None and data.batch_axis is not None:
        order = [i for i in range(data.rank) if i != data.batch_axis]
        order.insert(out_type["batch_dim_axis"], data.batch_axis)
        data = data.permuted(order)
    if "time_dim_axis" in out_type and out_type.get("shape") is None:
        data = data.replace(time_axis=out_type["time_dim_axis"])
    if "feature_dim_axis" in out_type and out_type.get("shape") is None:
        data = data.replace(feature_axis=out_type["feature_dim_axis"])
    if out_type.get("dtype") and sparse_dim is None and not data.dtype.startswith(("int", "uint")):
        data = data.replace(sparse_dim=None)
    return data


def check_out_type(ctx: PlanContext, data: Data) -> Data:
    """Return the template of a class that determines its output, if the option ``out_type`` agrees with it.

    :raises ConfigError: another dtype, another number of features or axes
    """
    out_type = ctx.node.layer.out_type or {}
    shape = tuple(d.size for d in data.dims if not d.is_batch and not d.is_loop)
    actual = {"dtype": data.dtype, "dim": data.dim, "sparse": data.sparse, "shape": shape}
    for name, value in actual.items():
        given = out_type.get(name, value)
        given = tuple(given) if isinstance(given, list) else given
        if given is not None and given != value:
            raise ctx.error("out_type has %s %r, but the output %s has %r. Omit it." % (name, given, data, value))
    return data


def _check_axes(ctx: PlanContext, data: Data, out_type: Mapping[str, Any]) -> None:
    rank = data.rank
    dims = out_type.get("dims", out_type.get("dim_tags"))
    if dims is not None:
        rank = len(dims)
    elif out_type.get("shape") is not None:
        rank = len(out_type["shape"]) + (out_type.get("batch_dim_axis", data.batch_axis) is not None)
    for name in ("batch_dim_axis", "time_dim_axis", "feature_dim_axis"):
        axis = out_type.get(name)
        if axis is not None and not 0 <= axis < rank:
            raise ctx.error("out_type: %s is %d, but the output has %d axes, counted from 0." % (name, axis, rank))


def _sparse_dim(ctx: PlanContext, data: Data, out_type: Mapping[str, Any]) -> Optional[Dim]:
    given = out_type.get("sparse_dim")
    if isinstance(given, Dim):
        return given
    if given is None and "sparse_dim" in out_type and not out_type.get("sparse"):
        return None
    if not out_type.get("sparse", data.sparse):
        return None
    size = out_type.get("dim", data.dim)
    if size is None and data.sparse_dim is not None:
        return data.sparse_dim
    if size is None:  # labels of unknown number, an error only where the number matters
        return Dim(DimKind.FEATURE, None, "%s:labels" % ctx.node.path)
    if data.sparse_dim is not None and data.sparse_dim.size == size:
        return data.sparse_dim
    return ctx.new_feature(size, "%s:labels" % ctx.node.path)


def _with_shape(ctx: PlanContext, data: Data, out_type: Mapping[str, Any], dim: Optional[int]) -> Data:
    """Set axes by sizes: dims of the sources are reused in order where they fit, others are created."""
    batch = next((d for d in data.dims if d.is_batch), None)
    batch_axis = out_type.get("batch_dim_axis", data.batch_axis)
    free = [d for d in data.dims if not d.is_batch]
    dims: list[Dim] = []
    for i, size in enumerate(out_type["shape"]):
        fitting = next((d for d in free if d.size == size), None)
        if fitting is not None:
            free.remove(fitting)
            dims.append(fitting)
        elif size is None:
            raise ctx.error(
                "out_type: the shape %s has more dynamic axes than the sources %s, so its lengths are unknown. Give "
                "'dims' with the dims of the output." % (tuple(out_type["shape"]), data)
            )
        else:
            dims.append(Dim(DimKind.SPATIAL, size, "%s:static%d" % (ctx.node.path, i), auto=True))
    if batch is not None and batch_axis is not None:
        dims.insert(batch_axis, batch)
    kwargs = _given_marks(data, out_type)
    if data.sparse_dim is None and dim is None:
        kwargs.setdefault("feature_axis", None)
    return Data.from_dims(dims, dtype=data.dtype, sparse_dim=data.sparse_dim, **kwargs)


def _given_marks(data: Data, out_type: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version, and the time and feature axis that the options define; others are found by the axes."""
    marks: dict[str, Any] = {"version": out_type.get("version") or data.version}
    if marks["version"] == 2:
        marks.update(time_axis=None, feature_axis=None)
    for name, option_name in (("time_axis", "time_dim_axis"), ("feature_axis", "feature_dim_axis")):
        if option_name in out_type:
            marks[name] = out_type[option_name]
    return marks


def out_type_of_function(
    ctx: PlanContext, function: Callable[..., Any], more: Optional[Mapping[str, Any]] = None
) -> Any:
    """Call the function; return its template or dict of options.

    It is called with the options of the layer as keywords, ``sources``, ``name`` and ``network``.

    :param more: further keywords
    :raises ConfigError: it fails, or returns something else
    """
    views = user_views()
    options = {
        info.name: value
        for info in declared_options(type(ctx.node.layer)).values()
        for value in [getattr(ctx.node.layer, info.attribute)]
        if value is not info.default and info.name != "out_type"
    }
    try:
        sources, name = [views.planned_layer(node) for node in ctx.node.sources], ctx.node.path.rpartition("/")[2]
        result = function(**{**options, **(more or {}), "sources": sources, "name": name, "network": None})
    except ConfigError:
        raise
    except Exception as exc:  # user code may raise anything
        place = error_in_config(exc)
        raise ctx.error(
            "the function in out_type failed: %s" % (place or "%s: %s" % (type(exc).__name__, exc))
        ) from exc
    result = views.template_of(result)
    if not isinstance(result, (Data, Mapping)):
        raise ctx.error("the function in out_type must return a Data or a dict, got %r." % (result,))
    return result
