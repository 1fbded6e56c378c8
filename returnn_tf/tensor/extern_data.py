"""`extern_data` and `num_inputs`/`num_outputs` of a config: the templates of the data that a dataset feeds."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Optional, Union

from returnn_tf.config.errors import ConfigError, DataKeyError
from returnn_tf.config.option_types import fits_type
from returnn_tf.config.options import axis_size, axis_sizes, from_options, option
from returnn_tf.tensor.axes import resolve_axis
from returnn_tf.tensor.data import DTYPES, Data, default_feature_axis, default_time_axis
from returnn_tf.tensor.dim import EXTERN_PREFIX, Dim, DimKind, batch_dim

#: The data key of the names of the sequences; it need not be declared, and datasets need not deliver it.
SEQ_TAG = "seq_tag"


class _Auto(enum.Enum):
    """Marks an axis that the options do not mention; None means that there is no such axis."""

    AUTO = "found by the shape"

    def __repr__(self) -> str:
        return self.value


_AUTO = _Auto.AUTO
_AxisIndex = Union[int, _Auto, None]


@dataclasses.dataclass(frozen=True)
class DataKeyOptions:
    """The options of one data key."""

    shape: Optional[tuple[Optional[int], ...]] = option(
        None, check=axis_sizes, help="sizes of the axes without batch, None where dynamic"
    )
    dim: Optional[int] = option(None, check=axis_size, help="size of the feature axis; if sparse the number of labels")
    sparse: Optional[bool] = option(None, help="whether the entries are label indices")
    sparse_dim: Union[Dim, int, None] = option(None, help="the dim of the labels")
    dtype: Optional[str] = option(
        None, choices=(None, *DTYPES), help="numpy name; that of floats in the network, or int32 if sparse"
    )
    dim_tags: Optional[tuple[Dim, ...]] = option(None, help="all dims in order, batch included")
    dims: Optional[tuple[Dim, ...]] = option(None, help="the same as dim_tags")
    batch_dim_axis: Optional[int] = option(0, help="index of the batch axis, counted with batch, or None")
    time_dim_axis: _AxisIndex = option(_AUTO, help="index of the time axis, counted with batch, or None")
    feature_dim_axis: _AxisIndex = option(_AUTO, help="index of the feature axis, counted with batch, or None")
    feature_dim: Optional[Dim] = option(None, help="the dim which is the feature axis")
    same_dim_tags_as: Optional[dict[Any, Dim]] = option(
        None, help="{axis name: dim}: this axis has this dim, as in other keys"
    )
    available_for_inference: Optional[bool] = option(None, help="whether it exists outside of training")
    vocab: Any = option(None, help="vocabulary options, for label names")
    version: Optional[int] = option(
        None,
        choices=(None, 1, 2),
        help="1: time and feature axis are found by the axes; 2: there are none unless they are given. Default: 2 with "
        "'dims', else 1",
    )
    batch: Any = option(None, help="the batch of a tensor", inert="the network has one batch")
    beam: Any = option(None, help="the search of a tensor", inert="data come from no search")
    control_flow_ctx: Any = option(None, help="the loop of a tensor", inert="data are outside of loops")
    auto_create_placeholders: bool = option(True, help="ignored: every key is an input")
    undefined: bool = option(False, help="ignored: the other options are the type")
    name: Optional[str] = option(None, help="ignored, for old configs")


def parse_data_key(
    key: str,
    options: Any,
    where: Optional[str] = None,
    *,
    float_dtype: str = "float32",
    sized: Optional[dict[Dim, Dim]] = None,
) -> Data:
    """Return the template of one data key.

    :param options: a dict of options, the number of labels, or (dim, number of axes with time and without batch)
    :param where: prefix of errors
    :param float_dtype: dtype of data other than labels where the options do not say it
    :param sized: declared dims without a size -> the dims with the sizes that data keys give them; extended
    :raises ConfigError: names the key and the option
    """
    options = getattr(options, "template", options)  # made by the code of the config
    if isinstance(options, Data):
        return options
    where = "extern_data[%r]" % (key,) if where is None else where
    if fits_type(options, Union[int, tuple[int, int]]):
        options = options_of_pair(where, tuple(options) if isinstance(options, (list, tuple)) else (options, 1))
    if not isinstance(options, Mapping):
        raise DataKeyError("%s: expected a dict such as {'dim': 40}, got %r." % (where, options))
    opts = from_options(DataKeyOptions, options, where=where)
    return _DataKey(where, key, opts, float_dtype, {} if sized is None else sized).template()


def options_of_pair(where: str, pair: tuple[int, ...]) -> dict[str, Any]:
    """Return the options for the short form (dim, number of axes with time and without batch)."""
    dim, axes = pair
    if not 1 <= axes <= 10:
        raise DataKeyError(
            "%s: the number of axes in %r must be 1 for labels or 2 for vectors over time, got %d."
            % (where, tuple(pair), axes)
        )
    return {"dim": dim, "sparse": axes == 1, "shape": (None,) if axes == 1 else (None,) * (axes - 1) + (dim,)}


class _DataKey:
    """The options of one data key during conversion to a template.

    :param where: prefix of errors
    """

    def __init__(self, where: str, key: str, opts: DataKeyOptions, float_dtype: str, sized: dict[Dim, Dim]) -> None:
        self.where = where
        self.key = key
        self.opts = opts
        self._sized = sized
        version = (1 if opts.dims is None else 2) if opts.version is None else opts.version
        #: Whether axes that the options do not mention are found by the shape.
        self._marks = version == 1
        self.sparse_dim = self._sparse_dim()
        self.dtype = self._dtype(float_dtype)

    def error(self, message: str) -> ConfigError:
        return DataKeyError("%s: %s" % (self.where, message))

    def template(self) -> Data:
        """Return the template, with all options applied."""
        if self.opts.dims is not None and self.opts.dim_tags is not None:
            raise self.error("give either dims or dim_tags, which mean the same, not both.")
        tags = self.opts.dims if self.opts.dims is not None else self.opts.dim_tags
        data = self._of_shape() if tags is None else self._of_tags(list(tags))
        for axis, dim in (self.opts.same_dim_tags_as or {}).items():
            data = self._with_dim(data, axis, dim)
        return data

    def _sparse_dim(self) -> Optional[Dim]:
        given, sparse, dim = self.opts.sparse_dim, self.opts.sparse, self.opts.dim
        if given is not None and sparse is not None and not sparse:
            raise self.error("sparse is False, but there is sparse_dim. Leave out one of them.")
        size = given.size if isinstance(given, Dim) else given
        if axis_size(size):
            raise self.error("the number of labels of sparse_dim %s, got %s." % (axis_size(size), size))
        if size is not None and dim is not None and size != dim:
            raise self.error("dim is %d, but sparse_dim has %d labels. They must agree." % (dim, size))
        if isinstance(given, Dim):
            return given
        if given is None and not sparse:
            return None
        return Dim(DimKind.FEATURE, dim if size is None else size, "labels:%s" % self.key, auto=True)

    def _dtype(self, float_dtype: str) -> str:
        dtype = self.opts.dtype or (float_dtype if self.sparse_dim is None else "int32")
        if self.sparse_dim is not None and not dtype.startswith(("int", "uint", "bool")):
            raise self.error("sparse data are label indices, so dtype must be an int type or bool, not %r." % dtype)
        return dtype

    # --- by dims ---

    def _of_tags(self, dims: list[Dim]) -> Data:
        option_name = "dim_tags" if self.opts.dims is None else "dims"
        if sum(d.is_batch for d in dims) > 1:
            raise self.error("%s must hold batch_dim at most once, got %r." % (option_name, dims))
        shape = [d.size for d in dims if not d.is_batch]
        if self.opts.shape is not None and list(self.opts.shape) != shape:
            raise self.error(
                "shape is %s, but %s give %s. Remove shape." % (self.opts.shape, option_name, tuple(shape))
            )
        time_axis = self._index("time_dim_axis", len(dims))
        if isinstance(time_axis, _Auto):
            time_axis = default_time_axis(dims) if self._marks else None
        feature_axis = self._index("feature_dim_axis", len(dims))
        if self.opts.feature_dim is not None:
            if self.opts.feature_dim not in dims:
                raise self.error("feature_dim %s is not among %s %r." % (self.opts.feature_dim, option_name, dims))
            feature_axis = dims.index(self.opts.feature_dim)
        if isinstance(feature_axis, _Auto):
            marked = self._marks and self.sparse_dim is None
            feature_axis = default_feature_axis(dims, time_axis) if marked else None
        return self._data(dims, time_axis, feature_axis)

    # --- by sizes ---

    def _of_shape(self) -> Data:
        sizes = self._sizes()
        batch_axis = self._index("batch_dim_axis", len(sizes) + 1)
        assert not isinstance(batch_axis, _Auto)
        rank = len(sizes) + (0 if batch_axis is None else 1)
        time_axis = self._index("time_dim_axis", rank)
        axis_of = [i if batch_axis is None or i < batch_axis else i + 1 for i in range(len(sizes))]
        if isinstance(time_axis, _Auto):
            time_axis = next((axis for axis, size in zip(axis_of, sizes) if size is None), None)
        feature_axis = self._index("feature_dim_axis", rank)
        if isinstance(feature_axis, _Auto):
            static = [a for a, size in zip(axis_of, sizes) if size is not None and a != time_axis]
            feature_axis = static[-1] if static and self.sparse_dim is None and self._marks else None
        if batch_axis is not None and batch_axis in (time_axis, feature_axis):
            raise self.error("axis %d is the batch axis, so it is neither time nor feature axis." % batch_axis)
        dims = self._auto_dims(sizes, axis_of, batch_axis, time_axis)
        size = None if feature_axis is None else dims[feature_axis].size
        if feature_axis is not None and size is not None:
            dims[feature_axis] = Dim(DimKind.FEATURE, size, "feature:%s" % self.key, auto=True)
        if isinstance(self.opts.time_dim_axis, _Auto) and not self._marks:
            time_axis = None
        data = self._data(dims, time_axis, feature_axis)
        return data if self.opts.feature_dim is None else self._with_dim(data, "F", self.opts.feature_dim)

    def _sizes(self) -> list[Optional[int]]:
        opts = self.opts
        if opts.shape is None:
            no_feature = opts.dim is None and opts.feature_dim_axis is None
            if opts.dim is None and self.sparse_dim is None and not no_feature:
                raise self.error("give 'dim' (number of features or labels) or 'shape'.")
            sizes: list[Optional[int]] = [None] if self.sparse_dim is not None or no_feature else [None, opts.dim]
            return sizes[1:] if opts.time_dim_axis is None else sizes
        return list(opts.shape)

    def _auto_dims(
        self, sizes: list[Optional[int]], axis_of: list[int], batch_axis: Optional[int], time_axis: Optional[int]
    ) -> list[Dim]:
        """Return dims of this key alone: the time axes of two keys differ, even if they have the same size."""
        dims: list[Dim] = []
        for i, (axis, size) in enumerate(zip(axis_of, sizes)):
            name = "static%d:%s" % (i, self.key)
            if size is None:
                name = EXTERN_PREFIX + self.key if axis == time_axis else "spatial%d:%s" % (i, self.key)
            dims.append(Dim(DimKind.SPATIAL, size, name, auto=True))
        if batch_axis is not None:
            dims.insert(batch_axis, batch_dim)
        return dims

    # --- both ---

    def _index(self, option_name: str, rank: int) -> _AxisIndex:
        index = getattr(self.opts, option_name)
        if index is None or isinstance(index, _Auto):
            return index
        if not -rank <= index < rank:
            raise self.error("%s is %d, but there are only %d axes, counted with batch." % (option_name, index, rank))
        return int(index) % rank

    def _data(self, dims: list[Dim], time_axis: Optional[int], feature_axis: Optional[int]) -> Data:
        data = Data(
            tuple(dims),
            self.dtype,
            feature_axis,
            time_axis,
            self.sparse_dim,
            vocab=self.opts.vocab,
            version=1 if self._marks else 2,
        )
        if self.opts.dim is not None and data.dim != self.opts.dim and (self._marks or data.dim is not None):
            shape = tuple(d.size for d in dims if not d.is_batch)
            feature = "no feature axis" if feature_axis is None else "a feature axis of size %s" % data.dim
            raise self.error("dim is %d, but the shape %s has %s. They must agree." % (self.opts.dim, shape, feature))
        return data

    def _with_dim(self, data: Data, axis: Any, dim: Dim) -> Data:
        """Return the template with another dim for one axis."""
        try:
            index = resolve_axis(data, axis)
        except ConfigError as exc:
            raise self.error("%s" % exc) from exc
        old, dim = data.dims[index], dim.declared()
        dim = self._sized.get(dim, dim)
        if dim.size is None and dim.expr is None and old.size is not None and not dim.is_batch:
            self._sized[dim] = dim = Dim(dim.kind, old.size, dim.description)
        if old.is_batch != dim.is_batch or old.size != dim.size:
            raise self.error(
                "the axis %r is %s, so it can't have the dim %s. Give a dim of its size." % (axis, old, dim)
            )
        return data.with_dim(index, dim)


def parse_extern_data(
    options: Mapping[str, Any], float_dtype: str = "float32", sized: Optional[dict[Dim, Dim]] = None
) -> dict[str, Data]:
    """Return the templates by data key.

    :param options: `extern_data` of the config: key -> options, see `parse_data_key`
    :param float_dtype: see `parse_data_key`
    :param sized: see `parse_data_key`; what one key says of a dim holds for all
    :raises ConfigError: names the key and the option
    """
    keys = _by_key("extern_data", options)
    sized = {} if sized is None else sized
    return {key: parse_data_key(key, opts, float_dtype=float_dtype, sized=sized) for key, opts in keys.items()}


def extern_data_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `extern_data`, or the equivalent of the older `num_inputs` and `num_outputs`.

    :param given: the settings extern_data, num_inputs and num_outputs, those which are set
    :raises ConfigError: names the setting which is wrong
    """
    if given.get("extern_data") is not None:
        return _by_key("extern_data", given["extern_data"])
    return {key: options for key, options in _from_old_form(given).items() if not _is_empty(options)}


def empty_data_keys(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that do not exist since `num_inputs` or `num_outputs` gives them the size 0 -> the reason.

    :param given: see `extern_data_options`
    """
    if given.get("extern_data") is not None:
        return {}
    old, in_outputs = _from_old_form(given), isinstance(given.get("num_outputs"), Mapping)
    result = {}
    for key in [key for key, options in old.items() if _is_empty(options)]:
        if in_outputs and key in given["num_outputs"]:
            setting = "num_outputs[%r]" % key
        else:
            setting = "num_inputs" if key == "data" else "num_outputs"
        result[key] = "%s is 0, so there is no such data key." % setting
    return result


def _is_empty(options: Any) -> bool:
    return isinstance(options, tuple) and not options[0]


def _from_old_form(given: Mapping[str, Any]) -> dict[str, Any]:
    num_inputs, num_outputs = given.get("num_inputs"), given.get("num_outputs")
    if num_inputs is None and num_outputs is None:
        raise DataKeyError(
            "The config does not declare its data. Add e.g. extern_data = {'data': {'dim': 40}, "
            "'classes': {'dim': 10, 'sparse': True}}."
        )
    result: dict[str, Any] = {}
    if isinstance(num_outputs, Mapping):
        for key, options in _by_key("num_outputs", num_outputs).items():
            result[key] = _old_form("num_outputs[%r]" % key, options)
    elif num_outputs is not None:
        result["classes"] = _old_form("num_outputs", num_outputs)
    if "data" not in result and num_inputs is not None:
        result["data"] = (_old_form("num_inputs", num_inputs, int)[0], 2)
    return result


def _old_form(where: str, options: Any, form: Any = Union[int, tuple[int, int], dict[str, Any]]) -> Any:
    """Return (dim, number of axes), or the dict of options."""
    numbers = options if isinstance(options, (list, tuple)) else (options, 1)
    if not fits_type(options, form) or not (isinstance(options, Mapping) or numbers[0] >= 0 < numbers[1]):
        raise DataKeyError(
            "%s must be a number of features or labels%s, got %r."
            % (where, "" if form is int else " or (number, number of axes)", options)
        )
    if isinstance(options, Mapping):
        return dict(options)
    return tuple(numbers)


def _by_key(setting: str, options: Any) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise DataKeyError("%s must be a dict {key: options}, e.g. {'data': {'dim': 40}}, not %r." % (setting, options))
    for key in options:
        if not isinstance(key, str) or not key.strip():
            raise DataKeyError("%s: a data key must be a name such as 'data', got %r." % (setting, key))
    return dict(options)
