"""Values in a network dict which change from epoch to epoch."""

from __future__ import annotations

import copy
from typing import Any, Callable

from returnn_tf.config.config import Config
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.user_code import call_of_config


class WrapEpochValue:
    """A value of a network dict that depends on the epoch: ``WrapEpochValue(lambda epoch: ...)``.

    Configs import it by ``from returnn.pretrain import WrapEpochValue`` or ``from returnn_tf.config import
    WrapEpochValue``.
    """

    def __init__(self, func: Callable[[int], Any]) -> None:
        """:param func: epoch (from 1) -> value"""
        self.func = func

    def get_value(self, epoch: int) -> Any:
        """Return the value in an epoch."""
        return self.func(epoch)

    def __repr__(self) -> str:
        return "WrapEpochValue(%r)" % (self.func,)


def at_epoch(value: Any, epoch: int) -> Any:
    """Copy nested dicts, lists and tuples, replacing each `WrapEpochValue` by its value in an epoch.

    Anything else is not copied: dims and functions keep their identity.
    """
    if isinstance(value, WrapEpochValue):
        return at_epoch(value.get_value(epoch), epoch)
    if isinstance(value, dict):
        return _with_items(value, lambda item: at_epoch(item, epoch))
    if type(value) in (list, tuple):
        return type(value)(at_epoch(item, epoch) for item in value)
    return value


def network_of(config: Config) -> Any:
    """Return the network dict of a config in the last epoch: ``network``, or the result of ``get_network``."""
    epoch = max(TrainingSettings(config).num_epochs, 1)  # 0: nothing is trained
    function = NetworkSettings(config).get_network
    if callable(function):
        where = NetworkSettings(config).describe_source("get_network")
        return at_epoch(call_of_config(where, function, epoch=epoch), epoch)
    return at_epoch(NetworkSettings(config).network, epoch)


def copied(value: Any) -> Any:
    """Copy nested dicts, lists, tuples and sets; anything else, such as dims and functions, keeps its identity."""
    if isinstance(value, dict):
        return _with_items(value, copied)
    if type(value) in (list, tuple, set):
        return type(value)(copied(item) for item in value)
    return value


def _with_items(value: dict[Any, Any], func: Callable[[Any], Any]) -> dict[Any, Any]:
    result = copy.copy(value)  # of the same class, e.g. an ordered dict
    for key, item in value.items():
        result[key] = func(item)
    return result


def same_value(first: Any, second: Any) -> bool:
    """Return whether two nested values are equal; functions are compared by code, defaults and closure."""
    if first is second:
        return True
    if type(first) is not type(second):
        return bool(isinstance(first, (int, float)) and isinstance(second, (int, float)) and first == second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_value(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same_value, first, second))
    if isinstance(first, WrapEpochValue):
        return same_value(first.func, second.func)
    try:
        if hasattr(first, "__code__"):
            return same_value(_parts_of_function(first), _parts_of_function(second))
        return bool(first == second)
    except Exception:  # whatever the user's object does, e.g. arrays or cyclic closures: it counts as changed
        return False


def _parts_of_function(function: Any) -> dict[str, Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return {
        "code": function.__code__,
        "defaults": [function.__defaults__, function.__kwdefaults__],
        "self": getattr(function, "__self__", None),
        "closure": cells,
    }
