"""Tables of classes, functions and records by name, filled on first use from a package and from plug-ins.

An entry is a class or function with a decorator, in a module of the registry's package: adding one takes one new file
and no other change. Looking up a name imports the modules that have it at a decorator, by their sources: a run needs
few of the layers and datasets. All modules are imported if that finds no entry, and to list the entries. A plug-in is
an installed package with an entry point in the group of the registry, e.g. ``returnn_tf.layers``, that names a module
which registers its entries on import.

Two folders of this package, `ROOMS`, add to the registries in the same way. The rest does not import them and works
without them. Each ``__init__`` has a table in place of the entry points of an installed package::

    PLUG_INS = {"returnn_tf.datasets": {"ExternSprintDataset": "returnn_tf.rasr.extern"}, ...}

It gives, by group, the modules that register entries, each under a name. In a registry with a module per entry, that
has to be the name of the entry, whose module alone is imported then.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Generic, Optional, TypeVar

from returnn_tf.config.errors import OptionError, did_you_mean, nearest_name, shown

E = TypeVar("E")
C = TypeVar("C", bound=Callable[..., Any])
_ROOT = __name__.partition(".")[0]

#: A decorator that registers: the beginning of its arguments, and what it decorates.
_REGISTERED = re.compile(
    r"^@[\w.]*register\w*\((?P<arguments>[^)]*)\).*?^(?:class|def) (?P<name>\w+)", re.MULTILINE | re.DOTALL
)
_QUOTED = re.compile("[\"']([^\"']+)[\"']")

#: Folders of this package that may be missing, with the other programs that they are for.
ROOMS: Mapping[str, str] = {_ROOT + ".compat": "RETURNN", _ROOT + ".rasr": "RASR"}


class Registry(Generic[E]):
    """Entries by the names that configs or the command line use.

    :param what: the noun for an entry in errors, e.g. "layer class"
    :param package: its modules are imported when names of theirs are looked up
    :param plugins: group of the entry points of plug-ins
    :param key: maps names that mean the same to one, e.g. `str.lower`
    :param module_per_entry: each entry is in the module of its name, so that looking it up imports no other
    :param max_listed: how many names an error lists
    :param absent: known but unsupported names -> the reason and a replacement
    """

    def __init__(
        self,
        what: str,
        package: str = "",
        *,
        plugins: str = "",
        key: Callable[[str], str] = str,
        module_per_entry: bool = False,
        max_listed: int = 12,
        absent: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.what = what
        self._absent = dict(absent or {})
        self._package = package
        self._plugins = plugins
        self._key = key
        self._module_per_entry = module_per_entry
        self._max_listed = max_listed
        self._entries: dict[str, E] = {}  # by key
        self._spelled: dict[str, str] = {}  # key -> name
        self._places: dict[str, str] = {}  # key -> where it is registered
        self._lock = threading.RLock()
        self._is_package_loaded = not package
        self._is_complete = not (package or plugins)

    def register(self, *names: str) -> Callable[[C], C]:
        """Decorate a class or function to register it under these names; the first is the main one."""

        def decorate(entry: C) -> C:
            self.add(entry, *names)  # type: ignore[arg-type]
            return entry

        return decorate

    def add(self, entry: E, *names: str, owner: Any = None) -> None:
        """Add an entry.

        An entry defined again at the same place replaces the earlier one, so that a config may be loaded twice.

        :param owner: the class, function or module that gives the place of a record (default: the entry itself)
        :raises ConfigError: a name is taken; names both places
        """
        owner = entry if owner is None else owner
        module = owner.__name__ if inspect.ismodule(owner) else owner.__module__
        place = module if inspect.ismodule(owner) else "%s.%s" % (module, owner.__qualname__)
        if module.partition(".")[0] != _ROOT:
            self._load_package()  # first, so that an extension cannot take a built-in name
        for name in names:
            old = self._places.get(self._key(name), place)
            if old != place:
                raise OptionError(
                    "%s %r is already taken by %s. Choose another name for %s." % (self.what, name, old, place)
                )
        for name in names:
            key = self._key(name)
            self._entries[key], self._spelled[key], self._places[key] = entry, name, place

    def find(self, name: Any) -> Optional[E]:
        """Return the entry of this name, or None."""
        if not isinstance(name, str):
            return None
        key = self._key(name)
        if key not in self._entries and self._module_per_entry:
            self._import_module_of(key)
        if key not in self._entries and not self._is_package_loaded:
            for module in self._modules.get(key, ()):
                importlib.import_module(module)
        if key not in self._entries:
            self.load()
        return self._entries.get(key)

    def get(self, name: Any, where: str) -> E:
        """Return the entry of this name.

        :param where: prefix of the error, e.g. ``Layer 'a/b'``
        :raises ConfigError: with the nearest known name
        """
        entry = self.find(name)
        if entry is None:
            raise OptionError("%s: %s" % (where, self.unknown(name)))
        return entry

    def unknown(self, name: Any) -> str:
        """Return the error message for an unknown name, with the nearest known one."""
        if isinstance(name, str) and name in self._absent:
            return "the %s %r is not available: %s" % (self.what, name, self._absent[name])
        names = self.names()
        spelled = [*names, *self._entries]
        near = nearest_name(name, spelled) is not None
        hint = did_you_mean(name, spelled) if near else did_you_mean(name, names, max_listed=self._max_listed)
        return " ".join(["unknown %s %s. %s" % (self.what, shown(name), hint), *missing_rooms()])

    def names(self) -> list[str]:
        """Return all names, aliases included, sorted."""
        self.load()
        return sorted(self._spelled.values())

    def __getitem__(self, name: str) -> E:
        entry = self.find(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def __contains__(self, name: object) -> bool:
        return self.find(name) is not None

    def names_of(self, entry: E) -> tuple[str, ...]:
        """Return the main name of an entry and its aliases."""
        return tuple(self._spelled[key] for key, other in self._entries.items() if other is entry)

    def items(self) -> list[tuple[str, E]]:
        """Return (main name, entry) of every entry once, sorted by name."""
        self.load()
        mains: dict[int, tuple[str, E]] = {}
        for key, entry in self._entries.items():
            mains.setdefault(id(entry), (self._spelled[key], entry))
        return sorted(mains.values(), key=lambda item: item[0])

    def load(self) -> None:
        """Import every module of the package and all plug-ins once, so that all decorators have run."""
        if self._is_complete:
            return
        with self._lock:
            self._load_package()
            for plugin in entry_points(self._plugins):
                try:
                    plugin.load()
                except ImportError as exc:
                    raise OptionError(
                        "the plug-in %s = %s (entry point group %s) can't be imported: %s"
                        % (plugin.name, plugin.value, self._plugins, exc)
                    ) from exc
            self._is_complete = True

    def _load_package(self) -> None:
        """Import every module of the package, once."""
        if self._is_package_loaded:
            return
        with self._lock:
            package = importlib.import_module(self._package)
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                importlib.import_module(module.name)
            self._is_package_loaded = True

    @functools.cached_property
    def _modules(self) -> dict[str, list[str]]:
        """Names of the modules whose source has a key at a decorator, by key; those without source are left out."""
        found: dict[str, list[str]] = {}
        package = importlib.import_module(self._package)
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for match in _REGISTERED.finditer(_source_of(module)):
                for name in (*_QUOTED.findall(match["arguments"]), match["name"]):
                    found.setdefault(self._key(name), []).append(module.name)
        return found

    def _import_module_of(self, key: str) -> None:
        """Import the module of an entry: that of its name in the package, else the one that a room names."""
        module = "%s.%s" % (self._package, key)
        if key.isidentifier() and importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
            return
        for plugin in _entry_points_of_rooms(self._plugins):
            if self._key(plugin.name) == key:
                plugin.load()


class OptionClasses(Registry[Any]):
    """A registry of classes whose options are typed fields (see `returnn_tf.config.options.option`).

    Registering makes a class a dataclass of its options, and sets its attributes ``class_name`` and
    ``has_only_options``: whether it has no constructor besides the one that this makes. It needs a docstring.
    """

    def add(self, entry: Any, *names: str, owner: Any = None) -> None:
        """Add a class, see `Registry.add`."""
        is_plain = "__dataclass_fields__" not in entry.__dict__
        entry.has_only_options = is_plain and "__init__" not in entry.__dict__ and not hasattr(entry, "__post_init__")
        if is_plain:
            dataclasses.dataclass(eq=False, repr=False)(entry)  # changes the class in place
        if not entry.__doc__ or entry.__doc__.startswith(entry.__name__ + "("):
            raise OptionError("%s %r (%s): give it a docstring." % (self.what, names[0], entry.__qualname__))
        super().add(entry, *names, owner=owner)
        entry.class_name = names[0]


def _source_of(module: pkgutil.ModuleInfo) -> str:
    """Return the source of a module without importing it, or "" if it is installed without."""
    spec = importlib.util.find_spec(module.name)  # not by `module_finder`: that of a zip file can't in Python 3.9
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(module.name)
    return source or ""


@functools.cache
def rooms() -> Mapping[str, types.ModuleType]:
    """Return those of `ROOMS` that are there, by name; importing one of them imports nothing else."""
    return {name: importlib.import_module(name) for name in ROOMS if _is_there(name)}


def _is_there(room: str) -> bool:
    """Return whether a room is beside this folder; one of another checkout that is installed does not count."""
    parent = room.rpartition(".")[0]
    path = sys.modules[parent].__path__ if parent else None
    return importlib.machinery.PathFinder.find_spec(room, path) is not None


def missing_rooms() -> list[str]:
    """Return a sentence for each of `ROOMS` that is not there, for errors about names that it may have."""
    return [
        "What is for %s needs %s, which is not part of this installation." % (program, name)
        for name, program in ROOMS.items()
        if name not in rooms()
    ]


def entry_points(group: str) -> list[Any]:
    """Return the entry points of a group: those of rooms, then those of all installed packages."""
    found = _all_entry_points()
    installed = found.select(group=group) if hasattr(found, "select") else found.get(group, ())  # Python 3.9: a dict
    return [*_entry_points_of_rooms(group), *installed]


def _entry_points_of_rooms(group: str) -> list[importlib.metadata.EntryPoint]:
    modules = {name: module for room in rooms().values() for name, module in room.PLUG_INS.get(group, {}).items()}
    return [importlib.metadata.EntryPoint(name, module, group) for name, module in modules.items()]


def of_rooms(group: str, default: E) -> E:
    """Return the object that a room provides as ``module:name`` in a group for a single one, or the default."""
    for plugin in _entry_points_of_rooms(group):
        found: E = plugin.load()
        return found
    return default


@functools.cache
def _all_entry_points() -> Any:
    return importlib.metadata.entry_points()
