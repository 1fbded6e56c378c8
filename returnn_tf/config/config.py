"""The settings of a run: what configs and scripts read them by."""

from __future__ import annotations

import builtins
from typing import Any, List, Optional, Sequence, Tuple, TypeVar, Union, overload

from returnn_tf.config import readers
from returnn_tf.config.recipe import ConfigRecipe
from returnn_tf.config.settings import NetworkSettings, misspelt
from returnn_tf.config.store import ConfigStore

# within the class these names are its readers
_Int = builtins.int
_Float = builtins.float
_Bool = builtins.bool
_Str = builtins.str
_T = TypeVar("_T")


class Config(ConfigStore):
    """The settings of a run, with the readers which configs call: ``config.int("n", 3)``.

    Values from Python and JSON configs have Python types; values of "key value" files and of ``++key value`` for a key
    which no config has set are text, which each reader converts. A setting of None counts as not set for the readers
    with a type. Mistakes raise :class:`ConfigError` naming the key and where it was set.

    The program itself reads its settings by their declarations, see `returnn_tf.config.settings`.
    """

    @overload
    def int(self, key: _Str) -> Optional[_Int]: ...

    @overload
    def int(self, key: _Str, default: _T) -> Union[_Int, _T]: ...

    def int(self, key: _Str, default: Any = None) -> Any:
        """An int (the first one of a list); floats are an error."""
        return self.read(key, default, readers.read_int)

    @overload
    def float(self, key: _Str) -> Optional[_Float]: ...

    @overload
    def float(self, key: _Str, default: _T) -> Union[_Float, _T]: ...

    def float(self, key: _Str, default: Any = None) -> Any:
        """A number (the first one of a list)."""
        return self.read(key, default, readers.read_float)

    @overload
    def bool(self, key: _Str) -> Optional[_Bool]: ...

    @overload
    def bool(self, key: _Str, default: _T) -> Union[_Bool, _T]: ...

    def bool(self, key: _Str, default: Any = None) -> Any:
        """A bool; ints count, as text also true/yes/on and false/no/off."""
        return self.read(key, default, readers.read_bool)

    @overload
    def str(self, key: _Str) -> Optional[_Str]: ...

    @overload
    def str(self, key: _Str, default: _T) -> Union[_Str, _T]: ...

    def str(self, key: _Str, default: Any = None) -> Any:
        """The value as one string; lists are joined by commas."""
        return self.read(key, default, readers.read_str)

    value = str

    def list(self, key: _Str, default: Sequence[Any] = ()) -> List[Any]:
        """A list; one value becomes a list of one. The entries of a text stay strings."""
        return self.read(key, list(default), readers.read_list)

    def int_list(self, key: _Str, default: Sequence[_Int] = ()) -> List[_Int]:
        """A list of ints."""
        return self.read(key, list(default), readers.read_int_list)

    def float_list(self, key: _Str, default: Sequence[_Float] = ()) -> List[_Float]:
        """A list of numbers."""
        return self.read(key, list(default), readers.read_float_list)

    def int_pair(self, key: _Str, default: Any = None) -> Any:
        """Two ints: a pair, ``"50:25"``, or one int that counts twice."""
        return self.read(key, default, readers.read_int_pair)

    def bool_or_other(self, key: _Str, default: Any = None) -> Any:
        """A bool where a text says so, else the value (of a list the first one)."""
        return self.read(key, default, readers.read_bool_or_other)

    def typed(self, key: _Str, default: Any = None) -> Any:
        """The Python value, of whatever type; a text becomes the Python literal which it holds, else a string."""
        if key not in self:
            self._used.add(key)
            return default
        value = self.raw(key)
        return value.decoded() if isinstance(value, readers.Text) else value

    get = typed

    def typed_value(self, key: _Str, default: Any = None) -> Any:
        """The Python value; ``default`` for a text."""
        value = self.raw(key) if key in self else default
        return default if isinstance(value, readers.Text) else value

    def opt_typed_value(self, key: _Str, default: Any = None) -> Any:
        """The Python value; a text stays a string."""
        value = self.raw(key) if key in self else default
        return value.text if isinstance(value, readers.Text) else value

    @property
    def behavior_version(self) -> _Int:
        """The setting of this name: selects between old and new semantics; 0 if it is not set.

        :raises ConfigError: it is not an int from 0 to 30
        """
        return NetworkSettings(self).behavior_version

    def misspelt_keys(self) -> List[Tuple[_Str, _Str]]:
        """Return (key, suggestion) for each key that looks like a misspelt setting.

        Left out: functions, classes, names with a leading "_", what the config itself or any reader has used, and what
        may be a helper since the setting itself is set, too.
        """
        found = []
        for key in self.unread_values():
            suggestion = misspelt(key)
            if suggestion is not None and (suggestion not in self or self._is_slip(key, suggestion)):
                found.append((key, suggestion))
        return found

    def _is_slip(self, key: _Str, suggestion: _Str) -> _Bool:
        """Return whether the key cannot be a helper beside the setting: it is an override, or has swapped letters."""
        return self.is_override(key) or sorted(key) == sorted(suggestion)

    def __reduce__(self) -> Tuple[Any, ...]:
        return config_from_recipe, (self.recipe(),)


def config_from_recipe(recipe: ConfigRecipe) -> Config:
    """Repeat all that was done to a config: read its files again, set what was set."""
    config = Config()
    for action, *arguments in recipe.actions:
        getattr(config, action)(*arguments)
    return config
