"""The settings of a run and the typed readers for configs and scripts."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import Any, Optional, TypeVar, Union, overload

from returnn_tf.config import readers
from returnn_tf.config.errors import edit_distance
from returnn_tf.config.recipe import ConfigRecipe
from returnn_tf.config.settings import NetworkSettings, misspelt
from returnn_tf.config.store import ConfigStore
from returnn_tf.config.typed_values import TypedValues

#: Shorter names that differ in one letter are too likely to be others.
_SHORTEST_SLIP = 6

# within the class, these names denote its readers
_Int = builtins.int
_Float = builtins.float
_Bool = builtins.bool
_Str = builtins.str
_T = TypeVar("_T")


class Config(ConfigStore):
    """The settings of a run, with the readers which configs call: ``config.int("n", 3)``.

    Values from Python and JSON configs have Python types. Values of "key value" files, and of ``++key value`` for a key
    which no config has set, are text, which each reader converts. The typed readers treat None as not set. Mistakes
    raise `ConfigError` naming the key and where it was set.

    The program itself reads its settings through their declarations, see `returnn_tf.config.settings`.
    """

    @overload
    def int(self, key: _Str) -> Optional[_Int]: ...

    @overload
    def int(self, key: _Str, default: _T) -> Union[_Int, _T]: ...

    def int(self, key: _Str, default: Any = None) -> Any:
        """Read an int (of a list the first one); floats are an error."""
        return self.read(key, default, readers.read_int)

    @overload
    def float(self, key: _Str) -> Optional[_Float]: ...

    @overload
    def float(self, key: _Str, default: _T) -> Union[_Float, _T]: ...

    def float(self, key: _Str, default: Any = None) -> Any:
        """Read a number (of a list the first one)."""
        return self.read(key, default, readers.read_float)

    @overload
    def bool(self, key: _Str) -> Optional[_Bool]: ...

    @overload
    def bool(self, key: _Str, default: _T) -> Union[_Bool, _T]: ...

    def bool(self, key: _Str, default: Any = None) -> Any:
        """Read a bool; ints count, as text also true/yes/on and false/no/off."""
        return self.read(key, default, readers.read_bool)

    @overload
    def str(self, key: _Str) -> Optional[_Str]: ...

    @overload
    def str(self, key: _Str, default: _T) -> Union[_Str, _T]: ...

    def str(self, key: _Str, default: Any = None) -> Any:
        """Read the value as one string; lists are joined by commas."""
        return self.read(key, default, readers.read_str)

    value = str

    def list(self, key: _Str, default: Sequence[Any] = ()) -> builtins.list[Any]:
        """Read a list; a single value becomes a list of one. The entries of a text stay strings."""
        return self.read(key, list(default), readers.read_list)

    def int_list(self, key: _Str, default: Sequence[_Int] = ()) -> builtins.list[_Int]:
        """Read a list of ints."""
        return self.read(key, list(default), readers.read_int_list)

    def float_list(self, key: _Str, default: Sequence[_Float] = ()) -> builtins.list[_Float]:
        """Read a list of numbers."""
        return self.read(key, list(default), readers.read_float_list)

    def int_pair(self, key: _Str, default: Any = None) -> Any:
        """Read two ints: a pair, ``"50:25"``, or one int that counts twice."""
        return self.read(key, default, readers.read_int_pair)

    def bool_or_other(self, key: _Str, default: Any = None) -> Any:
        """Read a bool if a text spells one, else the value (of a list the first one)."""
        return self.read(key, default, readers.read_bool_or_other)

    def typed(self, key: _Str, default: Any = None) -> Any:
        """Return the Python value of any type; a text becomes the Python literal that it holds, else a string."""
        if key not in self:
            self._used.add(key)
            return default
        value = self.raw(key)
        return value.decoded() if isinstance(value, readers.RawSetting) else value

    get = typed

    def typed_value(self, key: _Str, default: Any = None) -> Any:
        """Return the Python value; ``default`` for a text."""
        value = self.raw(key) if key in self else default
        return default if isinstance(value, readers.RawSetting) else value

    def opt_typed_value(self, key: _Str, default: Any = None) -> Any:
        """Return the Python value; a text stays a string."""
        value = self.raw(key) if key in self else default
        return value.text if isinstance(value, readers.RawSetting) else value

    def is_true(self, key: _Str, default: _Bool = False) -> _Bool:
        """Return whether a value is true; that of a text is what it spells."""
        return bool(self.bool_or_other(key, default))

    def is_typed(self, key: _Str) -> _Bool:
        """Return whether a key is set to a Python value, not a text."""
        return key in self.typed_dict

    @property
    def typed_dict(self) -> TypedValues:
        """Return the Python values as a dict that can be changed."""
        return TypedValues(self)

    def load_file(self, path: Union[_Str, os.PathLike[_Str]]) -> None:
        """Read a further config file into this one, see `load`."""
        self.load(os.fspath(path))

    @property
    def behavior_version(self) -> _Int:
        """Return the setting ``behavior_version``, which selects between old and new semantics; 0 if not set.

        :raises ConfigError: it is not an int from 0 to 30
        """
        return NetworkSettings(self).behavior_version

    def misspelt_keys(self) -> builtins.list[tuple[_Str, _Str]]:
        """Return (key, suggestion) for each key that looks like a misspelt setting.

        Skipped are functions, classes, names with a leading "_", constants in capitals, keys that the config itself or
        a reader has used, and keys that may be helpers because the setting itself is set, too.
        """
        found = []
        for key in self.unread_values():
            if key.isupper() and not self.is_override(key):
                continue  # a constant, perhaps used by code that ``exec`` runs
            suggestion = misspelt(key)
            if suggestion is not None and (suggestion not in self or self._is_slip(key, suggestion)):
                found.append((key, suggestion))
        return found

    def _is_slip(self, key: _Str, suggestion: _Str) -> _Bool:
        """Return whether the key can't be a helper of the setting: it is an override, or has a typing mistake.

        Letters are swapped, one is wrong, missing or too much, or in the other case. More at the end or the beginning,
        as in ``batch_sizes``, and other digits are meant.
        """
        if self.is_override(key) or sorted(key) == sorted(suggestion):
            return True
        if suggestion in key or any(char.isdigit() for char in key + suggestion):
            return False
        return len(key) >= _SHORTEST_SLIP and edit_distance(key.lower(), suggestion.lower()) <= 1

    def __reduce__(self) -> tuple[Any, ...]:
        return config_from_recipe, (self.recipe(),)


def config_from_recipe(recipe: ConfigRecipe) -> Config:
    """Rebuild a config from its recipe: read its files again and repeat its assignments."""
    config = Config()
    for action, *arguments in recipe.actions:
        getattr(config, action)(*arguments)
    return config
