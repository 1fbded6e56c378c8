"""Makes ``from TFUtil import where_bc`` and the like work in configs which were written for RETURNN.

Import statements of a config and of the files beside it, at the top level and in functions, give modules of
`returnn_tf.compat` for the names of RETURNN's. RETURNN itself is neither imported nor changed if it is installed, and
``sys.modules`` and the imports of other code stay as they are. ``import tensorflow as tf`` gives TensorFlow with the
names of TensorFlow 1 added, since old configs use both.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config.compat_imports import OLD_MODULES, ROOT, is_beside_configs, line_of_caller, missing_name
from returnn_tf.config.registry import Registry
from returnn_tf.config.user_code import USER_CODE, is_user_file

ERROR_TOPIC = "code-in-configs"

#: Stand-ins by the names of RETURNN modules that configs use; registered by the modules of `returnn_tf.compat`.
COMPAT: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat.modules")
#: Modules that configs see in another form than other code.
REPLACED: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat.modules", module_per_entry=True)
#: Modules of other projects that configs import, by name; what is found on the path wins.
FALLBACK: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat.modules")
_TENSORFLOW = "tensorflow"
#: The file in a checkout that serves the stand-ins to all code, see `serve_package`.
_SERVING = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), ROOT, "__init__.py"
)
#: Names with underscores that stand-ins have.
_FACTS = ("__file__", "__version__", "__long_version__")


def register_compat(module: str, name: str, *old_names: str) -> None:
    """Register a module of ours as the stand-in for one of RETURNN in configs.

    :param module: ``__name__`` of the module of ours
    :param name: e.g. "returnn.tf.util.basic"
    :param old_names: older names, which are known both with and without the prefix "returnn."
    """
    names = [name] + [n for old in old_names for n in (old, "%s.%s" % (ROOT, old))]
    COMPAT.add(sys.modules[module], *names, owner=sys.modules[module])


class _CompatModule(types.ModuleType):
    """Stand-in for a module of RETURNN: it has the names of one of ours. Other names can be imported, but not used."""

    def __init__(self, name: str, home: Optional[types.ModuleType]) -> None:
        super().__init__(name)
        self._home = home
        self.__path__: list[str] = []
        if home is not None and "__all__" in vars(home):
            self.__all__ = home.__all__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            if name in _FACTS and self._home is not None:
                return getattr(self._home, name)
            raise AttributeError("module %r has no attribute %r" % (self.__name__, name))
        if self._home is not None:
            with contextlib.suppress(AttributeError):
                return getattr(self._home, name)
        part = "%s.%s" % (self.__name__, name)
        if part in _finder.modules or _has_parts(part):
            return _finder.module(part)
        return missing_name(self.__name__, name, line_of_caller())


def _has_parts(name: str) -> bool:
    """Return whether there is a stand-in of this name, or one that is a part of it."""
    return name in COMPAT or any(other.startswith(name + ".") for other in COMPAT)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins; as a meta path finder, for ``importlib.import_module``, it comes last."""

    def __init__(self) -> None:
        self.modules: dict[str, _CompatModule] = {}

    def module(self, name: str) -> Optional[_CompatModule]:
        """Return the stand-in for a module of RETURNN, always the same one; None for other modules.

        A module of RETURNN of which there is nothing here has only names that cannot be used.
        """
        if name not in self.modules:
            root = name.partition(".")[0]
            if root != ROOT and name not in COMPAT and root not in OLD_MODULES:
                return None
            self.modules[name] = _CompatModule(name, COMPAT.find(name))
        return self.modules[name]

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


class _UserLoader(importlib.machinery.SourceFileLoader):
    """Loads a file beside a config, whose imports are those of a config."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the file."""
        vars(module)["__builtins__"] = builtins_of_configs()
        super().exec_module(module)


class _UserFinder(importlib.abc.MetaPathFinder):
    """Finds the files of the user: everything on the path but installed packages. It comes first."""

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
        """Return the spec of a file of the user, or None."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = None if spec is None else spec.loader
        if spec is None or type(loader) is not importlib.machinery.SourceFileLoader or not is_user_file(loader.path):
            return None
        if (
            os.path.realpath(loader.path) == _SERVING
        ):  # for scripts; configs have the stand-ins only while they are read
            return _finder.find_spec(name, path)
        spec.loader = _UserLoader(loader.name, loader.path)
        return spec


def load_user_file(name: str, path: str) -> types.ModuleType:
    """Return the module in a file of the user; its imports are those of a config.

    :param name: of the module in ``sys.modules``; it is loaded once
    """
    if name not in sys.modules:
        loader = _UserLoader(name, path)
        spec = importlib.machinery.ModuleSpec(name, loader, origin=path)
        spec.has_location = True
        if os.path.basename(path) == "__init__.py":
            spec.submodule_search_locations = [os.path.dirname(path)]
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


_finder = _Finder()
_user_finder = _UserFinder()
_lock = threading.RLock()
_depth = 0
_served = False


@contextlib.contextmanager
def compat_modules() -> Iterator[None]:
    """Within the context, resolve imports by name that find nothing else to the stand-ins; remove these on exit."""
    global _depth
    COMPAT.load()  # now: the finder may be asked while a module that ours need is half imported
    with _lock:
        _depth += 1
        if _depth == 1:
            sys.meta_path.insert(0, _user_finder)
        if _finder not in sys.meta_path:
            sys.meta_path.append(_finder)
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                sys.meta_path.remove(_user_finder)
            if _depth == 0 and not _served:
                sys.meta_path.remove(_finder)
                for name, module in _finder.modules.items():
                    if sys.modules.get(name) is module:
                        del sys.modules[name]


def serve_package(name: str) -> None:
    """Let all code of this process import the stand-ins from now on, as job managers and scripts do.

    :param name: "returnn", of the package in ``sys.modules`` in whose place they come
    """
    global _served
    COMPAT.load()
    with _lock:
        _served = True
        if _finder not in sys.meta_path:
            sys.meta_path.append(_finder)
    package = _finder.module(name)
    assert package is not None
    package.__spec__ = sys.modules[name].__spec__
    sys.modules[name] = package


def import_for_configs(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Stand in for ``__import__`` in the code of configs."""
    if name == _TENSORFLOW and not level:
        return REPLACED[_TENSORFLOW]
    root = name.partition(".")[0]
    ours = not level and (root == ROOT or (root in OLD_MODULES and not is_beside_configs(root)))
    if ours:
        parts = name.split(".")
        for i in range(len(parts)):  # also modules of which there is nothing here
            _finder.module(".".join(parts[: i + 1]))
        return _finder.module(name if fromlist else root)
    with compat_modules():
        try:
            return builtins.__import__(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as exc:
            if level or exc.name != root or root not in FALLBACK:
                raise
            return FALLBACK[root]


_BUILTINS: dict[str, Any] = {}


def current_name(module: str) -> Optional[str]:
    """Return the newest name of a module of RETURNN, given any of its names; None if it has no stand-in."""
    COMPAT.load()
    home = COMPAT.find(module)
    return None if home is None else COMPAT.names_of(home)[0]


def builtins_of_configs() -> dict[str, Any]:
    """Return the ``__builtins__`` for the code of configs."""
    if not _BUILTINS:
        _BUILTINS.update({**vars(builtins), "__import__": import_for_configs, USER_CODE: True})
    return _BUILTINS
