"""The settings of a run: config files, overrides, where each value was set, and the typed readers."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, TypeVar, Union, overload

from returnn_tf.config import loading, readers
from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.config.option_types import shown_with_kind, with_python_numbers
from returnn_tf.config.user_code import CONFIG_MODULE
from returnn_tf.config.user_files import builtins_of_configs, resolving_imports
from returnn_tf.util.html import code, paragraph, shortened, table


@dataclass(frozen=True)
class ConfigRecipe:
    """The calls that built a config, in order.

    They are ("load", path), ("set", key, value), ("set_text", key, text) and ("remove", key).
    The process that rebuilds the config executes its files again, so the functions, classes and layers that they define
    need no pickling.
    """

    actions: tuple[tuple[Any, ...], ...] = ()


_COMMAND_LINE = "the command line"
#: What configs branch on: where the command line sets it, an assignment in a Python config has no effect.
_FIXED = ("task",)
T = TypeVar("T")
_Config = TypeVar("_Config", bound="Config")


class Config:
    """The settings of a run, with the readers which configs call: ``config.int("n", 3)``.

    Values from Python and JSON configs have Python types. Values of "key value" files, and of ``++key value`` for a key
    which no config has set, are text, which each reader converts. The typed readers treat None as not set. Mistakes
    raise `ConfigError` naming the key and where it was set.

    The program itself reads its settings through their declarations, see `returnn_tf.config.settings`.

    ``files`` holds the config files in the order in which they were read.
    """

    def __init__(self, values: Optional[Mapping[str, Any]] = None):
        """:param values: settings with Python types"""
        self.files: list[str] = []
        self._module = types.ModuleType(CONFIG_MODULE)
        # the globals of Python configs, so that their functions see overrides, too
        self._values: dict[str, Any] = self._module.__dict__
        self._values["config"] = self
        self._values["__builtins__"] = builtins_of_configs()
        self._texts: dict[str, readers.RawSetting] = {}
        self._places: dict[str, str] = {}
        self._sources: dict[str, str] = {}  # the texts of files, which may change later, or be pipes
        self._used: set[str] = set()
        self._recipe: list[tuple[Any, ...]] = []
        self._overrides: dict[str, str] = {}  # set by `set_text`
        self._read_at: dict[str, str] = {}  # keys that the code of configs has read, and the place
        self._stale: dict[str, str] = {}  # of these, the ones that the command line changed later: a text about it
        if values:
            self.update(values)

    @classmethod
    def from_file(cls: type[_Config], path: str) -> _Config:
        """Read one config file: Python, JSON with comments, or lines "key value"."""
        return cls.from_files([path])

    @classmethod
    def from_files(cls: type[_Config], paths: Iterable[str], overrides: Sequence[tuple[str, str]] = ()) -> _Config:
        """Read config files in order; later ones win.

        :param paths: the files
        :param overrides: (key, text) as given by ``++key text``; set before the files are read, so that these can
            use them, and again at the end, so that they win
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
        """Read a further config file into this one.

        :raises ConfigError: if it can't be read, is not a config, or raises; with file, line number and the line
        """
        self.files.append(path)
        self._recipe.append(("load", os.path.abspath(path)))
        text = self._sources[path] = loading.read_text(path)
        getattr(self, "_load_" + loading.form_of(path, text))(path, text)

    def _load_python(self, path: str, text: str) -> None:
        fixed = {key: self._overrides[key] for key in _FIXED if key in self._overrides}
        source = loading.compile_python(path, text, fixed)
        folder = os.path.dirname(os.path.abspath(path))
        if folder not in sys.path:
            sys.path.append(folder)  # configs import files next to them, also later from their functions
        self.become_global()
        before = dict(self._values)
        self._values["__file__"] = os.path.abspath(path)
        with resolving_imports():
            loading.run_python(path, text, source.code, self._values)
        self._values["config"] = self
        self._used |= source.names_read
        for key, number in source.lines_of_reads.items():
            self._read_at.setdefault(key, "%s:%d" % (path, number))
        for key, value in self._values.items():
            if key not in before or before[key] is not value:
                self._texts.pop(key, None)
                line = source.lines_of_keys.get(key)
                self._places[key] = "%s:%d" % (path, line) if line else path

    def become_global(self) -> None:
        """Make this the global config, as loading a file does."""
        sys.modules[CONFIG_MODULE] = self._module  # also the module of classes defined in the config

    def _load_json(self, path: str, text: str) -> None:
        for key, value in loading.parse_json(path, text).items():
            self._set(key, value, path)

    def _load_lines(self, path: str, text: str, including: tuple[str, ...] = ()) -> None:
        for line, key, value in loading.parse_lines(path, text):
            place = "%s:%d" % (path, line)
            if key != "include":
                self._set_text(key, value, place)
                continue
            beside = os.path.join(os.path.dirname(path), value)
            target = value if os.path.exists(value) or not os.path.exists(beside) else beside
            if os.path.abspath(target) in including + (os.path.abspath(path),):
                raise SettingError("%s: %r includes itself" % (place, value))
            included = self._sources[target] = loading.read_text(target)
            self._load_lines(target, included, including + (os.path.abspath(path),))

    # -- writing

    def update(self, values: Mapping[str, Any]) -> None:
        """Set several keys to Python values."""
        for key, value in values.items():
            self.set(key, value)

    def set(self, key: str, value: Any) -> None:
        """Set a key to a Python value."""
        if not isinstance(key, str):
            raise SettingError("config keys are strings, got %r" % (key,))
        self._recipe.append(("set", key, value))
        self._set(key, value, None)

    def _set(self, key: str, value: Any, place: Optional[str]) -> None:
        self._texts.pop(key, None)
        self._values[key] = value
        self._places.pop(key, None)
        if place:
            self._places[key] = place

    def set_text(self, key: str, text: str) -> None:
        """Set a key as ``++key text`` does.

        If the key has a Python value: a string stays a string, anything else is evaluated as Python (kept as a string
        if that is not valid Python). If it has none, each reader converts the text.
        """
        self._recipe.append(("set_text", key, text))
        self._overrides[key] = text
        old = self._values.get(key)
        self._set_text(key, text, _COMMAND_LINE)
        if key in self._read_at and isinstance(old, (bool, int, float, str)) and self._values[key] != old:
            reader = "value" if isinstance(old, str) else type(old).__name__
            self._stale[key] = (
                "++%s %s: %s has computed with %r before, since the command line comes after the file. There, write "
                "%s = config.%s(%r, %r)" % (key, text, self._read_at[key], old, key, reader, key, old)
            )

    def _set_text(self, key: str, text: str, place: str) -> None:
        if not self._is_typed(key):
            self._texts[key] = readers.RawSetting(text)
            self._places[key] = place
            return
        old = self._values[key]
        self._set(key, text if isinstance(old, str) else _evaluated(key, text, old, place), place)

    def remove(self, key: str) -> None:
        """Remove a key that is set.

        :raises ConfigError: it is not
        """
        self.raw(key)
        self._recipe.append(("remove", key))
        self._texts.pop(key, None)
        self._values.pop(key, None)
        self._places.pop(key, None)

    # -- reading

    def _is_typed(self, key: str) -> bool:
        if key not in self._values or (key.startswith("__") and key.endswith("__")):
            return False
        value = self._values[key]
        return value is not self and not isinstance(value, types.ModuleType)

    def __contains__(self, key: object) -> bool:
        return key in self._texts or (isinstance(key, str) and self._is_typed(key))

    def keys(self) -> list[str]:
        """Return all keys that are set, including functions and classes of the config, but no modules."""
        return sorted(set(self._texts) | {key for key in self._values if self._is_typed(key)})

    def has(self, key: str) -> bool:
        """Return whether the key is set (to anything, None included)."""
        return key in self

    def describe_source(self, key: str) -> str:
        """Return key and place of a setting, as a prefix for error messages: ``"config key 'x' (my.config:3)"``."""
        place = self._places.get(key)
        return "config key %r (%s)" % (key, place) if place else "config key %r" % key

    def place_of(self, key: str) -> str:
        """Return the place of the last assignment to a key, e.g. "my.config:3"; "" if unknown."""
        return self._places.get(key, "")

    def sources(self) -> dict[str, str]:
        """Return the texts of the config files, included ones among them, by path, in the order of reading."""
        return dict(self._sources)

    def is_override(self, key: str) -> bool:
        """Return whether the key was set on the command line."""
        return self._places.get(key) == _COMMAND_LINE

    def stale_values(self) -> list[str]:
        """Return a text for each setting of the command line of which code of a config has read another value."""
        return list(self._stale.values())

    def __repr__(self) -> str:
        return "<Config %s, %d keys>" % (", ".join(self.files) or "without file", len(self.keys()))

    def _repr_html_(self) -> str:
        rows = []
        for key in self.keys():
            value = self._texts[key].text if key in self._texts else self._values[key]
            text = value.__name__ if callable(value) and hasattr(value, "__name__") else repr(value)
            rows.append((key, code(shortened(text)), self.place_of(key)))
        return paragraph(", ".join(self.files) or "without file") + table(("setting", "value", "set in"), rows)

    def raw(self, key: str) -> Any:
        """Return the value as stored: a Python value, or `readers.RawSetting`.

        :raises ConfigError: if the key isn't set
        """
        self._used.add(key)
        return self.stored(key)

    def stored(self, key: str) -> Any:
        """Return what `raw` returns, for reports: the key does not count as used.

        :raises ConfigError: if the key isn't set
        """
        if key in self._texts:
            return self._texts[key]
        if self._is_typed(key):
            return self._values[key]
        raise SettingError("config key %r is not set. %s" % (key, did_you_mean(key, self.keys())))

    __getitem__ = raw

    def read(self, key: str, default: T, reader: Callable[[Any], Optional[T]]) -> T:
        """Return the value converted by a reader; ``default`` if the key is not set, or set to None.

        Scalars of numpy count as numbers of Python.

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
            result = reader(with_python_numbers(value, Any))
        except ValueError as exc:
            raise SettingError("%s: %s" % (self.describe_source(key), exc)) from None
        return default if result is None else result

    def unread_values(self) -> list[str]:
        """Return the keys that neither the config itself nor a reader has used, except functions and private names."""
        return [
            key
            for key in self.keys()
            if key not in self._used and not key.startswith("_") and not callable(self._values.get(key))
        ]

    def recipe(self) -> ConfigRecipe:
        """Return the recipe to rebuild this config in another process; picklable if the values set from Python are."""
        return ConfigRecipe(tuple(self._recipe))

    def load_file(self, path: Union[str, os.PathLike[str]]) -> None:
        """Read a further config file into this one, see `load`."""
        self.load(os.fspath(path))

    # -- typed readers

    @overload
    def _int(self, key: str) -> Optional[int]: ...

    @overload
    def _int(self, key: str, default: T) -> Union[int, T]: ...

    def _int(self, key: str, default: Any = None) -> Any:
        """Read an int (of a list the first one); floats are an error."""
        return self.read(key, default, readers.read_int)

    @overload
    def _float(self, key: str) -> Optional[float]: ...

    @overload
    def _float(self, key: str, default: T) -> Union[float, T]: ...

    def _float(self, key: str, default: Any = None) -> Any:
        """Read a number (of a list the first one)."""
        return self.read(key, default, readers.read_float)

    @overload
    def _bool(self, key: str) -> Optional[bool]: ...

    @overload
    def _bool(self, key: str, default: T) -> Union[bool, T]: ...

    def _bool(self, key: str, default: Any = None) -> Any:
        """Read a bool; ints count, as text also true/yes/on and false/no/off."""
        return self.read(key, default, readers.read_bool)

    @overload
    def _str(self, key: str) -> Optional[str]: ...

    @overload
    def _str(self, key: str, default: T) -> Union[str, T]: ...

    def _str(self, key: str, default: Any = None) -> Any:
        """Read the value as one string; lists are joined by commas."""
        return self.read(key, default, readers.read_str)

    def _list(self, key: str, default: Sequence[Any] = ()) -> list[Any]:
        """Read a list; a single value becomes a list of one. The entries of a text stay strings."""
        return self.read(key, list(default), readers.read_list)

    def int_list(self, key: str, default: Sequence[int] = ()) -> list[int]:
        """Read a list of ints."""
        return self.read(key, list(default), readers.read_int_list)

    def float_list(self, key: str, default: Sequence[float] = ()) -> list[float]:
        """Read a list of numbers."""
        return self.read(key, list(default), readers.read_float_list)

    def int_pair(self, key: str, default: Any = None) -> Any:
        """Read two ints: a pair, ``"50:25"``, or one int that counts twice."""
        return self.read(key, default, readers.read_int_pair)

    def bool_or_other(self, key: str, default: Any = None) -> Any:
        """Read a bool if a text spells one, else the value (of a list the first one)."""
        return self.read(key, default, readers.read_bool_or_other)

    def typed(self, key: str, default: Any = None) -> Any:
        """Return the Python value of any type; a text becomes the Python literal that it holds, else a string."""
        if key not in self:
            self._used.add(key)
            return default
        value = self.raw(key)
        return value.decoded() if isinstance(value, readers.RawSetting) else value

    def typed_value(self, key: str, default: Any = None) -> Any:
        """Return the Python value; ``default`` for a text."""
        value = self.raw(key) if key in self else default
        return default if isinstance(value, readers.RawSetting) else value

    def opt_typed_value(self, key: str, default: Any = None) -> Any:
        """Return the Python value; a text stays a string."""
        value = self.raw(key) if key in self else default
        return value.text if isinstance(value, readers.RawSetting) else value

    def is_true(self, key: str, default: bool = False) -> bool:
        """Return whether a value is true; that of a text is what it spells."""
        return bool(self.bool_or_other(key, default))

    def is_typed(self, key: str) -> bool:
        """Return whether a key is set to a Python value, not a text."""
        return key in self.typed_dict

    @property
    def typed_dict(self) -> TypedValues:
        """Return the Python values as a dict that can be changed."""
        return TypedValues(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return config_from_recipe, (self.recipe(),)

    # The names under which configs know the readers. They are last in the class: above, they would hide the types.
    get = typed
    value = _str
    int = _int
    float = _float
    bool = _bool
    str = _str
    list = _list


class TypedValues(MutableMapping[str, Any]):
    """The keys of a config that have Python values; those that have texts, as ``++key value`` sets them, are left out.

    :param config: which is read and changed
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._config.raw(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._config.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._config.remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._config and not isinstance(self._config.raw(str(key)), readers.RawSetting)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self._config.keys() if key in self])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))


def config_from_recipe(recipe: ConfigRecipe) -> Config:
    """Rebuild a config from its recipe: read its files again and repeat its assignments."""
    config = Config()
    for action, *arguments in recipe.actions:
        getattr(config, action)(*arguments)
    return config


def _evaluated(key: str, text: str, old: Any, place: str) -> Any:
    """Evaluate an override text. ``old`` of None: the type is unknown, so the value may be a string."""
    try:
        return eval(text.strip(), {})
    except SyntaxError:
        return text
    except Exception as exc:
        if old is None or _is_name_of_dataset(text, old):
            return text
        if isinstance(exc, NameError) and text.strip().isidentifier():
            kept = "The config has %s there. For a string, write ++%s %s" % (
                shown_with_kind(old, most=80), key, '"%r"' % text.strip(),
            )  # fmt: skip
            raise SettingError(
                "config key %r (%s): %s is no number, nor another value of Python. %s"
                % (key, place, text.strip(), kept)
            ) from exc
        raise SettingError(
            "%s: %s for config key %r: %s: %s" % (place, json.dumps(text), key, type(exc).__name__, exc)
        ) from exc


def _is_name_of_dataset(text: str, old: Any) -> bool:
    """Return whether a text may name the dataset that stood there in full: ``++search_data dev``."""
    return isinstance(old, dict) and text.strip().isidentifier()
