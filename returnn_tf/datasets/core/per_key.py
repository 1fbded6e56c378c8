"""Values given once for all data keys, or as a dict by key."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from returnn_tf.config.errors import DatasetError

IntOrDict = Union[int, Mapping[str, int]]


def per_key(value: Optional[IntOrDict], keys: Iterable[str], *, option: str) -> dict[str, Optional[int]]:
    """Return one value per key: an int applies to all keys, a dict only to the keys it lists; None: not given.

    :param option: for the error message
    """
    if value is None:
        return dict.fromkeys(keys)
    if isinstance(value, Mapping):
        chosen = {key: value.get(key) for key in keys}
        for key, entry in [*value.items(), *chosen.items()]:  # a NumbersDict may have a value for other keys
            if entry is not None and not is_int(entry):
                raise DatasetError("option %r: %r: %r must be an integer" % (option, key, entry))
        return {key: None if entry is None else int(entry) for key, entry in chosen.items()}
    if not is_int(value):
        raise DatasetError("option %r must be an integer or a dict data key -> integer, not %r" % (option, value))
    return {key: int(value) for key in keys}


def is_int(value: Any) -> bool:
    """Return whether this is a Python or numpy integer; False for bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def reference_key(keys: Iterable[str]) -> str:
    """Return the key that stands for the whole sequence: "data", else the first one in sort order."""
    keys = sorted(keys)
    return "data" if "data" in keys else keys[0]
