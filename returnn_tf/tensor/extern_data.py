"""`extern_data` and `num_inputs`/`num_outputs` of a config: the templates of the data that a dataset feeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from returnn_tf.config import ConfigError
from returnn_tf.config.option_types import fits_type
from returnn_tf.tensor.data import Data
from returnn_tf.tensor.data_key import parse_data_key

ERROR_TOPIC = "extern-data"


def parse_extern_data(options: Mapping[str, Any]) -> dict[str, Data]:
    """Return the templates by data key.

    :param options: `extern_data` of the config: key -> options, see `parse_data_key`
    :raises ConfigError: names the key and the option
    """
    return {key: parse_data_key(key, opts) for key, opts in _by_key("extern_data", options).items()}


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
        raise ConfigError(
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
        raise ConfigError(
            "%s must be a number of features or labels%s, got %r."
            % (where, "" if form is int else " or (number, number of axes)", options)
        )
    if isinstance(options, Mapping):
        return dict(options)
    return tuple(numbers)


def _by_key(setting: str, options: Any) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ConfigError("%s must be a dict {key: options}, e.g. {'data': {'dim': 40}}, not %r." % (setting, options))
    for key in options:
        if not isinstance(key, str) or not key.strip():
            raise ConfigError("%s: a data key must be a name such as 'data', got %r." % (setting, key))
    return dict(options)
