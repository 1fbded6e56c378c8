"""The forms in which a config specifies a dataset, resolved to a class and its options."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core.corpus import Corpus
from returnn_tf.datasets.core.registry import dataset_class

_FORMS = (
    'a dict {"class": "HDFDataset", ...}, a function returning one, "ClassName:key=value,..." or "first.hdf,second.hdf"'
)


def parse_dataset_spec(spec: Any, names: Mapping[str, Any] = {}) -> tuple[Any, dict[str, Any]]:
    """Return the dataset class and its options.

    :param spec: dict with "class"; function returning one; list of HDF files; or a string: "{...}" (a dict as literal),
        "config:name" or "config:name(...)" (a value or function of the config), "ClassName:key=value,...", or a comma
        list of HDF files
    :param names: what "config:..." may refer to
    :raises ConfigError: if it is none of these, or the class is unknown
    """
    for _ in range(10):  # a function may return a string, "config:name" may be a function, ...
        if isinstance(spec, Mapping):
            return _class_and_options(spec)
        if isinstance(spec, Corpus):
            return type(spec), spec.given
        if hasattr(spec, "__dataset__") and not isinstance(spec, type):  # a dataset of a user
            found: tuple[Any, dict[str, Any]] = spec.__dataset__()
            return found
        if callable(spec):
            spec = result_of_config("the function that returns a dataset", spec)
        elif isinstance(spec, (list, tuple)) and spec and all(isinstance(entry, str) for entry in spec):
            spec = {"class": "HDFDataset", "files": list(spec)}
        elif isinstance(spec, str):
            spec = _parse_text(spec.strip(), names)
        else:
            break
    raise ConfigError("a dataset is given as %s, not as %r" % (_FORMS, spec))


def _class_and_options(spec: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    options = dict(spec)
    name = options.pop("class", None)
    if name is None:
        raise ConfigError('the dataset %s has no "class"; write e.g. {"class": "HDFDataset", ...}' % (_short(spec),))
    if hasattr(name, "__dataset_class__"):  # a class of a user
        found: tuple[Any, dict[str, Any]] = name.__dataset_class__(options)
        return found
    return dataset_class(name), options


def _parse_text(text: str, names: Mapping[str, Any]) -> Any:
    if text.startswith("{"):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError) as exc:
            raise ConfigError("the dataset %r is not a dict of plain values: %s" % (_short(text), exc)) from None
    if text.startswith("config:"):
        return _config_value(text[len("config:") :].strip(), names)
    head, colon, rest = text.partition(":")
    if colon and head.isidentifier():
        return {"class": head, **_key_values(text, rest)}
    files = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not files:
        raise ConfigError("a dataset is given as %s, not as an empty string" % _FORMS)
    if len(files) == 1 and files[0].isidentifier():
        dataset_class(files[0])  # "did you mean" for a class without options
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
            raise ConfigError("the dataset %r: %r does not have the form key=value" % (text, entry))
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except (SyntaxError, ValueError):
            options[key.strip()] = value.strip()
    return options


def _config_value(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of a config name, or of a call of a config function with plain values."""
    try:
        node: ast.AST = ast.parse(expression, mode="eval").body
    except SyntaxError:
        node = ast.Constant(None)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    call = node if isinstance(node, ast.Call) else None
    if call is not None:
        try:
            args = [ast.literal_eval(arg) for arg in call.args]
            kwargs = {str(entry.arg): ast.literal_eval(entry.value) for entry in call.keywords}
        except ValueError:
            raise ConfigError('the dataset "config:%s": arguments must be plain values' % expression) from None
        node = call.func
    if not isinstance(node, ast.Name):
        raise ConfigError(
            'the dataset "config:%s" must be a name of the config or a call of a function in it' % expression
        )
    if node.id not in names:
        raise ConfigError(
            'the dataset "config:%s": no %r in the config. %s' % (expression, node.id, did_you_mean(node.id, names))
        )
    value = names[node.id]
    return value(*args, **kwargs) if call is not None else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
