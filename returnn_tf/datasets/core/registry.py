"""The dataset classes by the name that configs use, open to users, and the texts that specify a dataset."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Callable, Optional, TypeVar

from returnn_tf.config.errors import ConfigError, DatasetError, did_you_mean
from returnn_tf.config.registry import Registry

_T = TypeVar("_T", bound=type[Any])
_SUFFIX = "Dataset"


def _without_suffix(name: str) -> str:
    return name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) else name


_OF_HDF = "turn its data to an HDF file, e.g. by HDFWriter, and use HDFDataset"
_OF_AUDIO = "make a zip file of audio and transcriptions with `returnn-tf data oggzip`, and use OggZipDataset"
_ABSENT = {
    "ChunkShuffleDataset": "it does not work in RETURNN either; use the order 'random' and the option chunking",
    "NumpyDumpDataset": "it does not work in RETURNN either; " + _OF_HDF,
    "NextGenHDFDataset": "it does not work with today's h5py in RETURNN either; " + _OF_HDF,
    "SiameseHDFDataset": "triplets can be drawn by a class for MapDatasetWrapper; " + _OF_HDF,
    "TimitDataset": _OF_AUDIO,
    "NltkTimitDataset": "nothing is downloaded here; " + _OF_AUDIO,
}
_ABSENT.update({_without_suffix(name): text for name, text in _ABSENT.items()})

#: Names are known with and without "Dataset" at the end.
DATASETS: Registry[type[Any]] = Registry(
    "dataset class",
    "returnn_tf.datasets",
    plugins="returnn_tf.datasets",
    key=_without_suffix,
    max_listed=30,
    absent=_ABSENT,
)


def register_dataset(name: Optional[str] = None) -> Callable[[_T], _T]:
    """Register a dataset class as ``{"class": name, ...}``; a class decorator.

    :param name: defaults to the name of the Python class

    >>> from returnn_tf.datasets import Dataset, register_dataset
    >>> @register_dataset()
    ... class MyDataset(Dataset):
    ...     pass
    """
    return lambda cls: DATASETS.register(name or cls.__name__)(cls)


def dataset_class_names() -> list[str]:
    """Return the names of all registered dataset classes, sorted."""
    return DATASETS.names()


FORMS = (
    'a dict {"class": "HDFDataset", ...}, a function returning one, "ClassName:key=value,..." or "first.hdf,second.hdf"'
)
_WRONG_EXPRESSION = "it must be a name of the config, a call of a function in it, or an entry of these"


def value_of_text(text: str, names: Mapping[str, Any]) -> Any:
    """Return the dict, the list of files, or the object of the config that a text stands for.

    :param names: what "config:..." may refer to
    :raises ConfigError: it has another form
    """
    if text.startswith("{"):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError) as exc:
            raise DatasetError("the dataset %r is not a dict of plain values: %s" % (short(text), exc)) from None
    if text.startswith("config:"):
        return _config_value(text[len("config:") :].strip(), names)
    head, colon, rest = text.partition(":")
    if colon and head.isidentifier():
        return {"class": head, **_key_values(text, rest)}
    files = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not files:
        raise DatasetError("a dataset is given as %s, not as an empty string" % FORMS)
    if len(files) == 1 and files[0].isidentifier():
        if DATASETS.find(files[0]) is None:
            raise DatasetError(DATASETS.unknown(files[0]))
        return {"class": files[0]}
    return {"class": "HDFDataset", "files": files}


def _key_values(text: str, rest: str) -> dict[str, Any]:
    """Parse options in the form "key=value,key=value"; a comma inside brackets or quotes belongs to the value."""
    if not rest.strip():
        return {}
    try:
        call = ast.parse("f(%s)" % rest, mode="eval").body
        assert isinstance(call, ast.Call)
        if not call.args and all(entry.arg is not None for entry in call.keywords):
            return {str(entry.arg): ast.literal_eval(entry.value) for entry in call.keywords}
    except (SyntaxError, ValueError):
        pass  # text without quotes, such as seq_ordering=laplace:.10
    options: dict[str, Any] = {}
    for entry in rest.split(","):
        key, equals, value = entry.partition("=")
        if not equals or not key.strip().isidentifier():
            raise DatasetError("the dataset %r: %r does not have the form key=value" % (text, entry))
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except (SyntaxError, ValueError):
            options[key.strip()] = value.strip()
    return options


def _config_value(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of a name of the config, of a call with plain values, or of an entry or attribute of these."""
    try:
        return _evaluated(ast.parse(expression, mode="eval").body, names)
    except (ConfigError, SyntaxError) as exc:
        reason = _WRONG_EXPRESSION if isinstance(exc, SyntaxError) else str(exc)
        raise DatasetError('the dataset "config:%s": %s' % (expression, reason)) from None


def _evaluated(node: ast.AST, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise DatasetError(
                "no %r in the config. %s" % (node.id, did_you_mean(node.id, filter(str.isidentifier, names)))
            )
        return names[node.id]
    if isinstance(node, ast.Call):
        args = [_plain(arg) for arg in node.args]
        kwargs = {str(entry.arg): _plain(entry.value) for entry in node.keywords}
        return _evaluated(node.func, names)(*args, **kwargs)
    if isinstance(node, ast.Subscript):
        value, key = _evaluated(node.value, names), _plain(node.slice)
        try:
            return value[key]
        except (KeyError, IndexError, TypeError):
            hint = did_you_mean(key, value) if isinstance(value, Mapping) else ""
            raise DatasetError(("%s has no entry %r. %s" % (ast.unparse(node.value), key, hint)).rstrip()) from None
    if isinstance(node, ast.Attribute):
        value = _evaluated(node.value, names)
        if not hasattr(value, node.attr):
            raise DatasetError("%s has no %r" % (ast.unparse(node.value), node.attr))
        return getattr(value, node.attr)
    raise DatasetError(_WRONG_EXPRESSION)


def _plain(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise DatasetError("arguments must be plain values") from None


def short(value: Any) -> str:
    """Return the representation of a value, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
