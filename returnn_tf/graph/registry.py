"""Which layer and loss classes exist. A new one is one new file with one decorator; nothing else changes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import pkgutil
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, TypeVar

from returnn_tf.config import ConfigError, did_you_mean

C = TypeVar("C", bound=type)


class Registry:
    """Classes by the names that configs use.

    :param what: how errors call an entry, e.g. "layer class"
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._classes: Dict[str, Type[Any]] = {}
        self._names: Dict[Type[Any], Tuple[str, ...]] = {}

    def register(self, name: str, *aliases: str) -> Callable[[C], C]:
        """Class decorator: makes the class a dataclass of its options and known under these names.

        A class of the same module and name replaces its earlier form, so that a config may be loaded twice.
        """

        def decorate(cls: C) -> C:
            if "__dataclass_fields__" not in cls.__dict__:
                dataclasses.dataclass(eq=False, repr=False)(cls)  # changes the class in place
            if not cls.__doc__ or cls.__doc__.startswith(cls.__name__ + "("):
                raise ConfigError("%s %r (%s): give it a docstring." % (self._what, name, cls.__qualname__))
            for key in (name,) + aliases:
                old = self._classes.get(key)
                if old is not None and (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
                    raise ConfigError(
                        "%s %r is already taken by %s.%s. Choose another name for %s.%s."
                        % (self._what, key, old.__module__, old.__qualname__, cls.__module__, cls.__qualname__)
                    )
            for key in (name,) + aliases:
                self._classes[key] = cls
            self._names[cls] = (name,) + aliases
            cls.class_name = name  # type: ignore[attr-defined]
            return cls

        return decorate

    def get(self, name: Any, where: str) -> Type[Any]:
        """The class of this name.

        :param where: how an error begins, e.g. ``Layer 'a/b'``
        :raises ConfigError: with the nearest known name
        """
        load_builtin_classes()
        if not isinstance(name, str) or name not in self._classes:
            raise ConfigError("%s: unknown %s %r. %s" % (where, self._what, name, did_you_mean(name, self._classes)))
        return self._classes[name]

    def find(self, name: Any) -> Optional[Type[Any]]:
        """Return the class of this name, or None if there is none."""
        load_builtin_classes()
        return self._classes.get(name) if isinstance(name, str) else None

    def names(self) -> List[str]:
        """All names, aliases included, sorted."""
        load_builtin_classes()
        return sorted(self._classes)

    def names_of(self, cls: Type[Any]) -> Tuple[str, ...]:
        """The name of a class and its aliases."""
        return self._names[cls]

    def items(self) -> List[Tuple[str, Type[Any]]]:
        """(name, class) of every class once, sorted by name."""
        load_builtin_classes()
        return sorted((names[0], cls) for cls, names in self._names.items() if self._classes[names[0]] is cls)


#: Entry points of this group are modules that register layer classes and losses.
PLUGIN_GROUP = "returnn_tf.layers"

LAYERS = Registry("layer class")
LOSSES = Registry("loss")

register_layer = LAYERS.register
register_loss = LOSSES.register


@functools.lru_cache(maxsize=None)
def load_builtin_classes() -> None:
    """Imports every module of `returnn_tf.layers` and all plug-ins, so that all decorators have run.

    A plug-in is an installed package with an entry point of the group "returnn_tf.layers" which names a module.
    """
    package = importlib.import_module("returnn_tf.layers")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    for plugin in _entry_points(PLUGIN_GROUP):
        plugin.load()


def _entry_points(group: str) -> List[Any]:
    found: Any = importlib.metadata.entry_points()
    if hasattr(found, "select"):
        return list(found.select(group=group))
    return list(found.get(group, ()))  # Python 3.9
