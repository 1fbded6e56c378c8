"""The default output of layer classes in configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.compat.modules.tensors import template_of
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.config.errors import CodeError
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Dim, DimKind
from returnn_tf.tensor.match import common_layout
from returnn_tf.util.lazy_tf import tf

_OUT_TYPE = ("shape", "dim", "dtype", "sparse", "batch_dim_axis", "time_dim_axis", "feature_dim_axis")


def output_like(
    name: str = "output",
    sources: Sequence[Any] = (),
    n_out: Optional[int] = None,
    out_type: Any = None,
    source_data: Optional[DataView] = None,
    **others: Any,
) -> DataView:
    """Return the template of the first source, with ``n_out`` features and the changes by ``out_type``.

    :raises ConfigError: there is neither a source nor an ``out_type``
    """
    out_type = dict(out_type or {})
    out_type.pop("name", None)
    if n_out is not None:
        out_type.setdefault("dim", n_out)
    if source_data is None and sources:
        source_data = sources[0].output
    if source_data is None:
        if not out_type:
            raise CodeError("there are no sources: the class needs get_out_data_from_opts, or the layer n_out.")
        return DataView(template_of(name, out_type), name=name)
    view = source_data.copy_template(name)
    if view.sparse and n_out is not None and "sparse" not in out_type:  # labels become features
        data = view.template.replace(sparse_dim=None, vocab=None, dtype="float32")
        dim = Dim(DimKind.FEATURE, n_out, name + ":feature", auto=True)
        return source_data.with_template(data.with_axis(data.rank, dim, feature=True), name)
    if view.feature_dim_axis is None and not view.sparse and n_out is not None and "shape" not in out_type:
        dim = Dim(DimKind.FEATURE, n_out, name + ":feature", auto=True)
        return source_data.with_template(view.template.with_axis(view.batch_ndim, dim, feature=True), name)
    unknown = [key for key in out_type if key not in _OUT_TYPE]
    if unknown:
        raise CodeError("out_type: the option %r is not supported for this class." % unknown[0])
    view.change(**out_type)
    return view


def concat_view(views: Sequence[DataView]) -> DataView:
    """Return the sources side by side along the features."""
    if len(views) == 1:
        return views[0].copy()
    templates = [view.template for view in views]
    common = common_layout(templates, ignore_feature=True)
    axis = common.feature_axis
    sizes = [data.feature_dim.size if data.feature_dim is not None else None for data in templates]
    if axis is None or None in sizes:
        raise CodeError("the sources %s can't be concatenated, as they need a feature axis." % list(views))
    total = Dim(DimKind.FEATURE, sum(size for size in sizes if size is not None), "concat:feature", auto=True)
    result = views[0].with_template(common.with_dim(axis, total), views[0].name)
    if any(view.placeholder is None for view in views):
        return result
    parts = [
        to_layout(view.placeholder, data, common.with_dim(axis, data.feature_dim))  # type: ignore[arg-type]
        for view, data in zip(views, templates)
    ]
    shape = tf.shape(parts[0])
    for part in parts[1:]:
        shape = tf.maximum(shape, tf.shape(part))
    full = [
        tf.broadcast_to(part, tf.tensor_scatter_nd_update(shape, [[axis]], [size])) for part, size in zip(parts, sizes)
    ]
    result.placeholder = tf.concat(full, axis)
    return result
