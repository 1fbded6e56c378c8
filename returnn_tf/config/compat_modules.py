"""Makes ``from TFUtil import where_bc`` and the like work in configs which were written for RETURNN.

The import statements of a config, at its top level and in its functions, first do what they do anywhere. If nothing is
found, modules of `returnn_tf.compat` stand in. ``sys.modules`` and the imports of other code are not changed.
``import tensorflow as tf`` gives TensorFlow with the names of TensorFlow 1 added, since old configs use both.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config.registry import Registry

#: Stand-ins by the names of RETURNN modules that configs use; registered by the modules of `returnn_tf.compat`.
COMPAT: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat")
#: Modules that configs see in another form than other code.
REPLACED: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat", module_per_entry=True)
_ROOT = "returnn"


def register_compat(module: str, name: str, old_name: str = "") -> None:
    """Register a module of ours as the stand-in for one of RETURNN in configs.

    :param module: ``__name__`` of the module of ours
    :param name: e.g. "returnn.tf.util.basic"
    :param old_name: an older name, which is known both with and without the prefix "returnn."
    """
    names = [name] + ([old_name, "%s.%s" % (_ROOT, old_name)] if old_name else [])
    COMPAT.add(sys.modules[module], *names, owner=sys.modules[module])


def _is_package(name: str) -> bool:
    """Return whether the name is only a package that contains stand-ins."""
    return name not in COMPAT and any(other.startswith(name + ".") for other in COMPAT)


class _CompatModule(types.ModuleType):
    """Stand-in for a module of RETURNN: it has the names of one of ours, or is an empty package."""

    def __init__(self, name: str, home: Optional[types.ModuleType]) -> None:
        super().__init__(name)
        self._home = home
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if self._home is not None and not (name.startswith("__") and name.endswith("__")):
            return getattr(self._home, name)
        raise AttributeError("module %r has no attribute %r" % (self.__name__, name))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Meta path finder for the stand-ins; it comes last."""

    def __init__(self) -> None:
        self.modules: dict[str, _CompatModule] = {}

    def module(self, name: str) -> Optional[_CompatModule]:
        """Return the stand-in for a module, always the same one; None if there is none."""
        if name not in self.modules and (name in COMPAT or _is_package(name)):
            self.modules[name] = _CompatModule(name, COMPAT.find(name))
        return self.modules.get(name)

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
        """Return the spec of a stand-in, unless it would be part of a real package."""
        parent = name.rpartition(".")[0]
        if self.module(name) is None or (parent and sys.modules.get(parent) is not self.modules.get(parent)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        """Return the stand-in, always the same one."""
        return self.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Do nothing: names are looked up on access."""


_TENSORFLOW = "tensorflow"
_finder = _Finder()
_lock = threading.RLock()
_depth = 0


@contextlib.contextmanager
def compat_modules() -> Iterator[None]:
    """Resolve imports that find nothing else to the stand-ins within the context; remove these on exit."""
    global _depth
    COMPAT.load()  # now: the finder may be asked while a module that ours need is half imported
    with _lock:
        _depth += 1
        if _depth == 1:
            sys.meta_path.append(_finder)
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                sys.meta_path.remove(_finder)
                for name, module in _finder.modules.items():
                    if sys.modules.get(name) is module:
                        del sys.modules[name]


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if name == _TENSORFLOW and not level:
        return REPLACED[_TENSORFLOW]
    try:
        return builtins.__import__(name, globals, locals, fromlist, level)
    except ModuleNotFoundError:
        if level or _finder.module(name.split(".")[0]) is None:
            raise
    with compat_modules():
        return builtins.__import__(name, globals, locals, fromlist, level)


def is_known(module: str) -> bool:
    """Return whether a module of this name has a stand-in."""
    return _finder.module(module) is not None


def current_name(module: str) -> Optional[str]:
    """Return the newest name of a module of RETURNN, given any of its names; None if it has no stand-in."""
    COMPAT.load()
    home = COMPAT.find(module)
    return None if home is None else COMPAT.names_of(home)[0]


def builtins_of_configs() -> dict[str, Any]:
    """Return the ``__builtins__`` for the code of configs."""
    return {**vars(builtins), "__import__": _import}
