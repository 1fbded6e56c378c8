"""`extern_data` and `num_inputs`/`num_outputs` of a config: the templates of what a dataset feeds."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.dim import EXTERN_PREFIX, Dim, DimKind, batch_dim

_UNSET: Any = object()
_OPTIONS = {
    "shape": "sizes of the axes without batch, None where dynamic",
    "dim": "size of the feature axis; if sparse the number of labels",
    "sparse": "whether the entries are label indices",
    "sparse_dim": "the dim of the labels",
    "dtype": "numpy name; float32, or int32 if sparse",
    "dim_tags": "all dims in order, batch included",
    "dims": "the same as dim_tags",
    "batch_dim_axis": "index of the batch axis, counted with batch",
    "time_dim_axis": "index of the time axis, counted with batch, or None",
    "feature_dim_axis": "index of the feature axis, counted with batch, or None",
    "feature_dim": "the dim which is the feature axis",
    "same_dim_tags_as": "{axis name: dim} for single axes",
    "available_for_inference": "whether it exists outside of training",
    "vocab": "vocabulary options, for label names",
    "name": "ignored, for old configs",
}
_DTYPES = [kind + bits for kind in ("int", "uint") for bits in ("8", "16", "32", "64")] + [
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "string",
]


def parse_extern_data(options: Mapping[str, Any]) -> Dict[str, Data]:
    """Templates by data key.

    :param options: `extern_data` of the config: key -> options, or key -> (dim, number of axes with time, without
        batch)
    :raises ConfigError: names the key and the option
    """
    return {key: parse_data_key(key, opts) for key, opts in _as_dict(options).items()}


def _as_dict(options: Any) -> Dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ConfigError("extern_data must be a dict {key: options}, e.g. {'data': {'dim': 40}}, not %r." % (options,))
    return dict(options)


def extern_data_options(given: Mapping[str, Any]) -> Dict[str, Any]:
    """`extern_data`, or what the older `num_inputs` and `num_outputs` say.

    :param given: the settings extern_data, num_inputs and num_outputs, those which are set
    """
    if given.get("extern_data") is not None:
        return _as_dict(given["extern_data"])
    num_inputs, num_outputs = given.get("num_inputs"), given.get("num_outputs")
    if num_inputs is None and num_outputs is None:
        raise ConfigError(
            "The config says nothing about the data. Add e.g. extern_data = {'data': {'dim': 40}, "
            "'classes': {'dim': 10, 'sparse': True}}."
        )
    result: Dict[str, Any] = {}
    if isinstance(num_outputs, Mapping):
        result.update(num_outputs)
    elif num_outputs is not None:
        result["classes"] = (num_outputs, 1)
    if "data" not in result and num_inputs is not None:
        result["data"] = (num_inputs, 2)
    return result


def parse_data_key(key: str, options: Any) -> Data:
    """The template of one data key, see `parse_extern_data`."""
    if isinstance(options, Data):
        return options
    if isinstance(options, int):
        options = (options, 1)
    if isinstance(options, (list, tuple)) and len(options) == 2 and all(isinstance(o, int) for o in options):
        options = {
            "dim": options[0],
            "sparse": options[1] == 1,
            "shape": (None,) if options[1] == 1 else (None, options[0]),
        }
    if not isinstance(options, Mapping):
        raise ConfigError("extern_data[%r]: expected a dict such as {'dim': 40}, got %r." % (key, options))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError("extern_data[%r]: unknown option %r. %s" % (key, name, did_you_mean(name, _OPTIONS)))
    tags = options.get("dim_tags", options.get("dims"))
    return _from_shape(key, options) if tags is None else _from_tags(key, options, tags)


def _from_tags(key: str, options: Mapping[str, Any], tags: Any) -> Data:
    if not all(isinstance(d, Dim) for d in tags):
        raise ConfigError("extern_data[%r]: dim_tags must be a list of dims, got %r." % (key, tags))
    sparse_dim = _sparse_dim(key, options)
    kwargs: Dict[str, Any] = {"dtype": _dtype(key, options, sparse_dim), "sparse_dim": sparse_dim}
    for option, name in (("time_dim_axis", "time_axis"), ("feature_dim_axis", "feature_axis")):
        if option in options:
            kwargs[name] = options[option]
    if options.get("feature_dim") is not None:
        kwargs["feature_axis"] = list(tags).index(options["feature_dim"])
    return Data.from_dims(tags, vocab=options.get("vocab"), **kwargs)


def _from_shape(key: str, options: Mapping[str, Any]) -> Data:
    sparse_dim = _sparse_dim(key, options)
    dim = options.get("dim")
    shape = options.get("shape", _UNSET)
    if shape is _UNSET:
        if dim is None and sparse_dim is None:
            raise ConfigError("extern_data[%r]: give 'dim' (number of features or labels) or 'shape'." % key)
        shape = (None,) if sparse_dim is not None else (None, dim)
        if options.get("time_dim_axis", _UNSET) is None:
            shape = shape[1:]
    if not all(s is None or (isinstance(s, int) and s >= 0) for s in shape):
        raise ConfigError("extern_data[%r]: shape must hold sizes and None, got %r." % (key, shape))
    batch_axis = options.get("batch_dim_axis", 0)
    sizes: List[Optional[int]] = list(shape)
    time_axis = options.get("time_dim_axis", _UNSET)
    if time_axis is _UNSET:
        dynamic = [i for i, s in enumerate(sizes) if s is None]
        time_axis = None
        if dynamic:
            time_axis = dynamic[0] if batch_axis is None or dynamic[0] < batch_axis else dynamic[0] + 1
    dims = _auto_dims(key, sizes, batch_axis, time_axis)
    feature_axis = options.get("feature_dim_axis", _UNSET)
    if feature_axis is _UNSET:
        static = [i for i, d in enumerate(dims) if not d.is_batch and i != time_axis and d.size is not None]
        feature_axis = static[-1] if static and sparse_dim is None else None
    elif feature_axis is not None:
        feature_axis %= len(dims)
    if feature_axis is not None:
        d = dims[feature_axis]
        if dim is not None and d.size is not None and d.size != dim:
            raise ConfigError(
                "extern_data[%r]: dim is %d, but the last size of shape %s is %s. They must agree."
                % (key, dim, tuple(shape), d.size)
            )
        dims[feature_axis] = Dim(DimKind.FEATURE, d.size, "feature:%s" % key, auto=True) if d.size is not None else d
    return Data(
        tuple(dims),
        _dtype(key, options, sparse_dim),
        feature_axis,
        time_axis,
        sparse_dim,
        vocab=options.get("vocab"),
    )


def _auto_dims(key: str, sizes: List[Optional[int]], batch_axis: Optional[int], time_axis: Optional[int]) -> List[Dim]:
    """Own dims for one key: the time axes of two keys differ, even if the config gives them the same size."""
    dims: List[Dim] = []
    for i, size in enumerate(sizes):
        axis = i if batch_axis is None or i < batch_axis else i + 1
        name = EXTERN_PREFIX + key if axis == time_axis else "spatial%d:%s" % (i, key)
        dims.append(Dim(DimKind.SPATIAL, size, name if size is None else "static%d:%s" % (i, key), auto=True))
    if batch_axis is not None:
        dims.insert(batch_axis, batch_dim)
    return dims


def _sparse_dim(key: str, options: Mapping[str, Any]) -> Optional[Dim]:
    given = options.get("sparse_dim")
    if isinstance(given, Dim):
        return given
    if options.get("sparse") or given is not None:
        size = options.get("dim", given)
        if not isinstance(size, int):
            raise ConfigError("extern_data[%r]: sparse data needs 'dim', the number of labels." % key)
        return Dim(DimKind.FEATURE, size, "labels:%s" % key, auto=True)
    return None


def _dtype(key: str, options: Mapping[str, Any], sparse_dim: Optional[Dim]) -> str:
    dtype = str(options.get("dtype") or ("float32" if sparse_dim is None else "int32"))
    if dtype not in _DTYPES:
        raise ConfigError("extern_data[%r]: unknown dtype %r. %s" % (key, dtype, did_you_mean(dtype, _DTYPES)))
    return dtype
