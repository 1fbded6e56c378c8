"""Where the values of a config are kept: config files, overrides, and the place where each value was set."""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar

from returnn_tf.config import loading, readers
from returnn_tf.config.errors import ConfigError, did_you_mean
from returnn_tf.config.foreign_modules import builtins_of_configs, foreign_modules
from returnn_tf.config.recipe import ConfigRecipe
from returnn_tf.config.user_code import CONFIG_MODULE

_COMMAND_LINE = "the command line"
_Store = TypeVar("_Store", bound="ConfigStore")


class ConfigStore:
    """The values of a config by key, and where each was set.

    ``files`` holds the config files in the order in which they were read.
    """

    def __init__(self, values: Optional[Mapping[str, Any]] = None):
        """
        :param values: settings with Python types
        """
        self.files: List[str] = []
        self._module = types.ModuleType(CONFIG_MODULE)
        # the globals of Python configs, so that their functions see overrides, too
        self._values: Dict[str, Any] = self._module.__dict__
        self._values["config"] = self
        self._values["__builtins__"] = builtins_of_configs()
        self._texts: Dict[str, readers.Text] = {}
        self._places: Dict[str, str] = {}
        self._used: Set[str] = set()
        self._recipe: List[Tuple[Any, ...]] = []
        if values:
            self.update(values)

    @classmethod
    def from_file(cls: Type[_Store], path: str) -> _Store:
        """Reads one config file: Python, JSON with comments, or lines "key value"."""
        return cls.from_files([path])

    @classmethod
    def from_files(cls: Type[_Store], paths: Iterable[str], overrides: Sequence[Tuple[str, str]] = ()) -> _Store:
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

    def load(self, path: str) -> None:
        """Reads a further config file into this one.

        :raises ConfigError: if it can't be read, is no config, or raises; with file, line number and the line
        """
        self.files.append(path)
        self._recipe.append(("load", os.path.abspath(path)))
        text = loading.read_text(path)
        getattr(self, "_load_" + loading.form_of(path, text))(path, text)

    def _load_python(self, path: str, text: str) -> None:
        source = loading.compile_python(path, text)
        folder = os.path.dirname(os.path.abspath(path))
        if folder not in sys.path:
            sys.path.append(folder)  # configs import files beside them, also later from their functions
        sys.modules[CONFIG_MODULE] = self._module  # where classes of the config say that they come from
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

    def _load_json(self, path: str, text: str) -> None:
        for key, value in loading.parse_json(path, text).items():
            self._set(key, value, path)

    def _load_lines(self, path: str, text: str, including: Tuple[str, ...] = ()) -> None:
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

    def update(self, values: Mapping[str, Any]) -> None:
        """Sets several keys to Python values."""
        for key, value in values.items():
            self.set(key, value)

    def set(self, key: str, value: Any) -> None:
        """Sets a key to a Python value."""
        if not isinstance(key, str):
            raise ConfigError("config keys are strings, got %r" % (key,))
        self._recipe.append(("set", key, value))
        self._set(key, value, None)

    def _set(self, key: str, value: Any, place: Optional[str]) -> None:
        self._texts.pop(key, None)
        self._values[key] = value
        self._places.pop(key, None)
        if place:
            self._places[key] = place

    def set_text(self, key: str, text: str) -> None:
        """Sets a key as ``++key text`` does.

        If the key has a Python value: a string stays a string, anything else is evaluated as Python (kept as a string
        if that is no valid Python). If it has none, the reader that asks converts the text.
        """
        self._recipe.append(("set_text", key, text))
        self._set_text(key, text, _COMMAND_LINE)

    def _set_text(self, key: str, text: str, place: str) -> None:
        if not self._is_typed(key):
            self._texts[key] = readers.Text(text)
            self._places[key] = place
            return
        old = self._values[key]
        self._set(key, text if isinstance(old, str) else _evaluated(key, text, old, place), place)

    # -- asking

    def _is_typed(self, key: str) -> bool:
        if key not in self._values or (key.startswith("__") and key.endswith("__")):
            return False
        value = self._values[key]
        return value is not self and not isinstance(value, types.ModuleType)

    def __contains__(self, key: object) -> bool:
        return key in self._texts or (isinstance(key, str) and self._is_typed(key))

    def keys(self) -> List[str]:
        """All keys which are set, functions and classes of the config among them, but no modules."""
        return sorted(set(self._texts) | {key for key in self._values if self._is_typed(key)})

    def has(self, key: str) -> bool:
        """Whether the key is set (to anything, None included)."""
        return key in self

    def where(self, key: str) -> str:
        """Where the key was set, for error messages: ``"config key 'x' (my.config:3)"``."""
        place = self._places.get(key)
        return "config key %r (%s)" % (key, place) if place else "config key %r" % key

    def is_override(self, key: str) -> bool:
        """Whether the key was set on the command line."""
        return self._places.get(key) == _COMMAND_LINE

    def __repr__(self) -> str:
        return "<Config %s, %d keys>" % (", ".join(self.files) or "without file", len(self.keys()))

    def raw(self, key: str) -> Any:
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

    def read(self, key: str, default: Any, reader: Callable[[Any], Any]) -> Any:
        """Return what a reader makes of the value; ``default`` if the key is not set, or set to None.

        :param reader: raises ValueError if the value is wrong
        :raises ConfigError: with the place where the value was set
        """
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

    def unread_values(self) -> List[str]:
        """Return the keys that neither the config itself nor a reader has used; without functions and private names."""
        return [
            key
            for key in self.keys()
            if key not in self._used and not key.startswith("_") and not callable(self._values.get(key))
        ]

    def recipe(self) -> ConfigRecipe:
        """Return what rebuilds this config in another process; picklable if the values set from Python are."""
        return ConfigRecipe(tuple(self._recipe))


def _evaluated(key: str, text: str, old: Any, place: str) -> Any:
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
