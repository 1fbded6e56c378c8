"""Values which may be given once for all data keys or as a dict by key."""

from __future__ import annotations

import numbers
from typing import Any, Dict, Iterable, Mapping, Optional, Union

from returnn_tf.config import ConfigError

IntOrDict = Union[int, Mapping[str, int]]


def per_key(value: Optional[IntOrDict], keys: Iterable[str], *, option: str) -> Dict[str, Optional[int]]:
    """One value per key: an int counts for all keys, a dict only for the keys it lists; None = not given.

    :param option: for the error message
    """
    if value is None:
        return {key: None for key in keys}
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if entry is not None and not is_int(entry):
                raise ConfigError("option %r: %r: %r must be an integer" % (option, key, entry))
        return {key: None if value.get(key) is None else int(value[key]) for key in keys}
    if not is_int(value):
        raise ConfigError("option %r must be an integer or a dict data key -> integer, not %r" % (option, value))
    return {key: int(value) for key in keys}


def is_int(value: Any) -> bool:
    """True for Python and numpy integers, not for bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def reference_key(keys: Iterable[str]) -> str:
    """The key which stands for the whole sequence: "data", else the first one in sort order."""
    keys = sorted(keys)
    return "data" if "data" in keys else keys[0]
