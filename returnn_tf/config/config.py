"""The settings of a run: read from config files, overridden from the command line or from Python."""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar, Union, overload

from returnn_tf.config import loading, readers
from returnn_tf.config.errors import ConfigError, did_you_mean
from returnn_tf.config.foreign_modules import builtins_of_configs, foreign_modules
from returnn_tf.config.known_keys import misspelt
from returnn_tf.config.recipe import ConfigRecipe
from returnn_tf.config.user_code import CONFIG_MODULE

MAX_BEHAVIOR_VERSION = 30

# inside the class, "int" and the like are its readers
_Int = builtins.int
_Float = builtins.float
_Bool = builtins.bool
_Str = builtins.str
_T = TypeVar("_T")

_MODULE = CONFIG_MODULE
_COMMAND_LINE = "the command line"


class Config:
    """The settings of a run, with readers that check types.

    Values from Python and JSON configs have Python types; values of "key value" files and of ``++key value`` for a key
    which no config has set are text, which each reader converts. A setting of None counts as not set for the readers
    with a type. Mistakes raise :class:`ConfigError` naming the key and where it was set.

    ``files`` holds the config files in the order in which they were read.
    """

    def __init__(self, values: Optional[Mapping[_Str, Any]] = None):
        """
        :param values: settings with Python types
        """
        self.files: List[_Str] = []
        self._module = types.ModuleType(_MODULE)
        # the globals of Python configs, so that their functions see overrides, too
        self._values: Dict[_Str, Any] = self._module.__dict__
        self._values["config"] = self
        self._values["__builtins__"] = builtins_of_configs()
        self._texts: Dict[_Str, readers.Text] = {}
        self._places: Dict[_Str, _Str] = {}
        self._used: Set[_Str] = set()
        self._recipe: List[Tuple[Any, ...]] = []
        if values:
            self.update(values)

    @classmethod
    def from_file(cls, path: _Str) -> Config:
        """Reads one config file: Python, JSON with comments, or lines "key value"."""
        return cls.from_files([path])

    @classmethod
    def from_files(cls, paths: Iterable[_Str], overrides: Sequence[Tuple[_Str, _Str]] = ()) -> Config:
        """Reads config files in order; later ones win.

        :param paths: the files
        :param overrides: (key, text) as given by ``++key text``; set before the files are read, so that these can
            look at them, and again at the end, so that they win
        """
        config = cls()
        for key, text in overrides:
            config.set_text(key, text)
        for path in paths:
            config.load(path)
        for key, text in overrides:
            config.set_text(key, text)
        return config

    def load(self, path: _Str) -> None:
        """Reads a further config file into this one.

        :raises ConfigError: if it can't be read, is no config, or raises; with file, line number and the line
        """
        self.files.append(path)
        self._recipe.append(("load", os.path.abspath(path)))
        text = loading.read_text(path)
        getattr(self, "_load_" + loading.form_of(path, text))(path, text)

    def _load_python(self, path: _Str, text: _Str) -> None:
        source = loading.compile_python(path, text)
        folder = os.path.dirname(os.path.abspath(path))
        if folder not in sys.path:
            sys.path.append(folder)  # configs import files beside them, also later from their functions
        sys.modules[_MODULE] = self._module  # where classes of the config say that they come from
        before = dict(self._values)
        self._values["__file__"] = os.path.abspath(path)
        with foreign_modules():
            loading.run_python(path, text, source.code, self._values)
        self._values["config"] = self
        self._used |= source.names_read
        for key, value in self._values.items():
            if key not in before or before[key] is not value:
                self._texts.pop(key, None)
                line = source.lines_of_keys.get(key)
                self._places[key] = "%s:%d" % (path, line) if line else path

    def _load_json(self, path: _Str, text: _Str) -> None:
        for key, value in loading.parse_json(path, text).items():
            self._set(key, value, path)

    def _load_lines(self, path: _Str, text: _Str, including: Tuple[_Str, ...] = ()) -> None:
        for line, key, value in loading.parse_lines(path, text):
            place = "%s:%d" % (path, line)
            if key != "include":
                self._set_text(key, value, place)
                continue
            beside = os.path.join(os.path.dirname(path), value)
            target = value if os.path.exists(value) or not os.path.exists(beside) else beside
            if os.path.abspath(target) in including + (os.path.abspath(path),):
                raise ConfigError("%s: %r includes itself" % (place, value))
            included = loading.read_text(target)
            self._load_lines(target, included, including + (os.path.abspath(path),))

    # -- writing

    def update(self, values: Mapping[_Str, Any]) -> None:
        """Sets several keys to Python values."""
        for key, value in values.items():
            self.set(key, value)

    def set(self, key: _Str, value: Any) -> None:
        """Sets a key to a Python value."""
        if not isinstance(key, _Str):
            raise ConfigError("config keys are strings, got %r" % (key,))
        self._recipe.append(("set", key, value))
        self._set(key, value, None)

    def _set(self, key: _Str, value: Any, place: Optional[_Str]) -> None:
        self._texts.pop(key, None)
        self._values[key] = value
        self._places.pop(key, None)
        if place:
            self._places[key] = place

    def set_text(self, key: _Str, text: _Str) -> None:
        """Sets a key as ``++key text`` does.

        If the key has a Python value: a string stays a string, anything else is evaluated as Python (kept as a string
        if that is no valid Python). If it has none, the reader that asks converts the text.
        """
        self._recipe.append(("set_text", key, text))
        self._set_text(key, text, _COMMAND_LINE)

    def _set_text(self, key: _Str, text: _Str, place: _Str) -> None:
        if not self._is_typed(key):
            self._texts[key] = readers.Text(text)
            self._places[key] = place
            return
        old = self._values[key]
        self._set(key, text if isinstance(old, _Str) else _evaluated(key, text, old, place), place)

    # -- asking

    def _is_typed(self, key: _Str) -> _Bool:
        if key not in self._values or (key.startswith("__") and key.endswith("__")):
            return False
        value = self._values[key]
        return value is not self and not isinstance(value, types.ModuleType)

    def __contains__(self, key: object) -> _Bool:
        return key in self._texts or (isinstance(key, _Str) and self._is_typed(key))

    def keys(self) -> List[_Str]:
        """All keys which are set, functions and classes of the config among them, but no modules."""
        return sorted(set(self._texts) | {key for key in self._values if self._is_typed(key)})

    def has(self, key: _Str) -> _Bool:
        """Whether the key is set (to anything, None included)."""
        return key in self

    def where(self, key: _Str) -> _Str:
        """Where the key was set, for error messages: ``"config key 'x' (my.config:3)"``."""
        place = self._places.get(key)
        return "config key %r (%s)" % (key, place) if place else "config key %r" % key

    def is_override(self, key: _Str) -> _Bool:
        """Whether the key was set on the command line."""
        return self._places.get(key) == _COMMAND_LINE

    def __repr__(self) -> _Str:
        return "<Config %s, %d keys>" % (", ".join(self.files) or "without file", len(self.keys()))

    # -- readers

    def raw(self, key: _Str) -> Any:
        """The value as stored: a Python value, or :class:`readers.Text`.

        :raises ConfigError: if the key isn't set
        """
        self._used.add(key)
        if key in self._texts:
            return self._texts[key]
        if self._is_typed(key):
            return self._values[key]
        raise ConfigError("config key %r is not set. %s" % (key, did_you_mean(key, self.keys())))

    __getitem__ = raw

    def _read(self, key: _Str, default: Any, reader: Any) -> Any:
        self._used.add(key)
        if key not in self:
            return default
        value = self.raw(key)
        if value is None:
            return default
        try:
            value = reader(value)
        except ValueError as exc:
            raise ConfigError("%s: %s" % (self.where(key), exc)) from None
        return default if value is None else value

    @overload
    def int(self, key: _Str) -> Optional[_Int]: ...

    @overload
    def int(self, key: _Str, default: _T) -> Union[_Int, _T]: ...

    def int(self, key: _Str, default: Any = None) -> Any:
        """An int (the first one of a list); floats are an error."""
        return self._read(key, default, readers.read_int)

    @overload
    def float(self, key: _Str) -> Optional[_Float]: ...

    @overload
    def float(self, key: _Str, default: _T) -> Union[_Float, _T]: ...

    def float(self, key: _Str, default: Any = None) -> Any:
        """A number (the first one of a list)."""
        return self._read(key, default, readers.read_float)

    @overload
    def bool(self, key: _Str) -> Optional[_Bool]: ...

    @overload
    def bool(self, key: _Str, default: _T) -> Union[_Bool, _T]: ...

    def bool(self, key: _Str, default: Any = None) -> Any:
        """A bool; ints count, as text also true/yes/on and false/no/off."""
        return self._read(key, default, readers.read_bool)

    @overload
    def str(self, key: _Str) -> Optional[_Str]: ...

    @overload
    def str(self, key: _Str, default: _T) -> Union[_Str, _T]: ...

    def str(self, key: _Str, default: Any = None) -> Any:
        """The value as one string; lists are joined by commas."""
        return self._read(key, default, readers.read_str)

    value = str

    def list(self, key: _Str, default: Sequence[Any] = ()) -> List[Any]:
        """A list; one value becomes a list of one. The entries of a text stay strings."""
        return self._read(key, list(default), readers.read_list)

    def int_list(self, key: _Str, default: Sequence[_Int] = ()) -> List[_Int]:
        """A list of ints."""
        return self._read(key, list(default), readers.read_int_list)

    def float_list(self, key: _Str, default: Sequence[_Float] = ()) -> List[_Float]:
        """A list of numbers."""
        return self._read(key, list(default), readers.read_float_list)

    def int_pair(self, key: _Str, default: Any = None) -> Any:
        """Two ints: a pair, ``"50:25"``, or one int that counts twice."""
        return self._read(key, default, readers.read_int_pair)

    def bool_or_other(self, key: _Str, default: Any = None) -> Any:
        """A bool where a text says so, else the value (of a list the first one)."""
        return self._read(key, default, readers.read_bool_or_other)

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

    # -- the whole

    @property
    def behavior_version(self) -> _Int:
        """Selects between old and new semantics; 0 if the config doesn't say.

        :raises ConfigError: if it is no int from 0 to 30
        """
        value = self.int("behavior_version", 0)
        if isinstance(value, _Bool) or not 0 <= value <= MAX_BEHAVIOR_VERSION:
            raise ConfigError(
                "%s: expected an int from 0 to %d, got %r"
                % (self.where("behavior_version"), MAX_BEHAVIOR_VERSION, value)
            )
        return value

    def misspelt_keys(self) -> List[Tuple[_Str, _Str]]:
        """The (key, suggestion) of keys that look like misspelt known ones.

        Left out: functions, classes, names with a leading "_", what the config itself or any reader has used, and what
        may be a helper as the known key is set, too.
        """
        found = []
        for key in self.keys():
            value = self._texts.get(key, self._values.get(key))
            if key.startswith("_") or key in self._used or callable(value):
                continue
            suggestion = misspelt(key)
            if suggestion is not None and (suggestion not in self or self._is_slip(key, suggestion)):
                found.append((key, suggestion))
        return found

    def _is_slip(self, key: _Str, suggestion: _Str) -> _Bool:
        """Whether the key is no helper beside the known key which is set, too: it overrides, or has swapped letters."""
        return self._places.get(key) == _COMMAND_LINE or sorted(key) == sorted(suggestion)

    def recipe(self) -> ConfigRecipe:
        """What rebuilds this config in another process; picklable as long as values set from Python are."""
        return ConfigRecipe(tuple(self._recipe))

    def __reduce__(self) -> Tuple[Any, ...]:
        return config_from_recipe, (self.recipe(),)


def config_from_recipe(recipe: ConfigRecipe) -> Config:
    """Repeats all that was done to a config: reads its files again, sets what was set."""
    config = Config()
    for action, *arguments in recipe.actions:
        getattr(config, action)(*arguments)
    return config


def _evaluated(key: _Str, text: _Str, old: Any, place: _Str) -> Any:
    """The Python value of an override text. ``old`` of None: nothing says that it is no string, so it may be one."""
    try:
        return eval(text.strip(), {})
    except SyntaxError:
        return text
    except Exception as exc:
        if old is None:
            return text
        raise ConfigError(
            "%s: %s for config key %r: %s: %s" % (place, json.dumps(text), key, type(exc).__name__, exc)
        ) from exc
