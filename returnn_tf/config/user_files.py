"""The code of configs and of the files beside them: its builtins, its import statements, and how its files are loaded.

An import statement of such code finds what is on the path; a room may have further modules for it, see `ConfigImports`.
Frames of the code are known by their builtins, and its functions are called by `returnn_tf.config.user_code`.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config.registry import of_rooms

USER_CODE = "__returnn_tf_user_code__"  # in the builtins of configs and of the files beside them
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@functools.lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Return whether a file of Python code is the user's: neither of an installed package nor of this one."""
    if path.startswith("<") or not path:
        return False
    path = os.path.realpath(path)
    return not any(path.startswith(folder + os.sep) for folder in _installed_folders())


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    return tuple(os.path.realpath(path) for path in [*paths, _PACKAGE])


class ConfigImports:
    """Modules for import statements of configs besides those on the path. In this class: none."""

    def instead(self, name: str, fromlist: Any) -> Optional[types.ModuleType]:
        """Return the module that a statement gets whatever is on the path, or None.

        :param name: with all parents
        :param fromlist: the names after ``import`` in ``from ... import``, if any
        """
        del name, fromlist
        return None

    def fallback(self, name: str) -> Optional[types.ModuleType]:
        """Return the module for a name of which there is nothing on the path, or None."""
        del name
        return None

    def spec_instead(self, name: str, path: Optional[Sequence[str]], file: str) -> Any:
        """Return the spec that takes the place of a file of the user, or None."""
        del name, path, file
        return None

    def resolving(self) -> contextlib.AbstractContextManager[None]:
        """Extend ``importlib.import_module`` by further modules within the context, too."""
        return contextlib.nullcontext()

    def newest_name(self, module: str) -> Optional[str]:
        """Return today's name of a module of another program, given any of its names; None for other modules."""
        del module
        return None


@functools.cache
def config_imports() -> ConfigImports:
    """Return the imports for configs: those of a room, or the default."""
    return of_rooms("returnn_tf.imports", ConfigImports())


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
        instead = config_imports().spec_instead(name, path, loader.path)
        if instead is not None:
            return instead
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


_user_finder = _UserFinder()
_lock = threading.RLock()
_depth = 0
_entered = contextlib.ExitStack()


@contextlib.contextmanager
def resolving_imports() -> Iterator[None]:
    """Within the context, resolve all imports as those of configs, whose files are loaded as the user's.

    This holds for ``importlib.import_module`` and for statements of installed packages, too, also in other threads.
    """
    global _depth
    _installed_folders()  # before: Python imports a module of its own to tell them, for which the finder would ask
    with _lock:
        if _depth == 0:
            _entered.enter_context(config_imports().resolving())
            sys.meta_path.insert(0, _user_finder)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                sys.meta_path.remove(_user_finder)
                _entered.close()


def import_for_configs(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    """Stand in for ``__import__`` in the code of configs."""
    found = None if level else config_imports().instead(name, fromlist)
    if found is not None:
        return found
    with resolving_imports():
        try:
            return builtins.__import__(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as exc:
            root = name.partition(".")[0]
            found = None if level or exc.name != root else config_imports().fallback(root)
            if found is None:
                raise
            return found


_BUILTINS: dict[str, Any] = {}


def builtins_of_configs() -> dict[str, Any]:
    """Return the ``__builtins__`` for the code of configs."""
    if not _BUILTINS:
        _BUILTINS.update({**vars(builtins), "__import__": import_for_configs, USER_CODE: True})
    return _BUILTINS
