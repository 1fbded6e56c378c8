"""Makes ``from TFUtil import where_bc`` and the like work in configs which were written for RETURNN.

The import statements of a config, at its top level and in its functions, first do what they do anywhere. Where nothing
is found, the modules in `_HOMES` stand in. ``sys.modules`` and the imports of other code stay as they are.
``import tensorflow as tf`` gives TensorFlow with the names of TensorFlow 1 added, since old configs use both.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from typing import Any, Dict, Iterator, List, Optional, Sequence

#: Module as configs call it -> ours, which is imported when a name of it is asked for; "" for a mere package.
_HOMES: Dict[str, str] = {
    "returnn": "",
    "returnn.config": "returnn_tf.compat.config",
    "returnn.datasets": "",
    "returnn.datasets.generating": "returnn_tf.compat.vocabulary",
    "returnn.pretrain": "returnn_tf.config.epoch_value",
    "returnn.tf": "",
    "returnn.tf.compat": "returnn_tf.compat.tf_compat",
    "returnn.tf.native_op": "returnn_tf.compat.native_op",
    "returnn.tf.horovod": "returnn_tf.compat.horovod",
    "returnn.tf.util": "",
    "returnn.tf.util.basic": "returnn_tf.compat.tf_util",
    "returnn.tf.util.data": "returnn_tf.compat.tensors",
    "returnn.util": "",
    "returnn.util.basic": "returnn_tf.compat.util",
}
#: Older names, which are known both with and without "returnn." in front.
_OLD_NAMES: Dict[str, str] = {
    "Config": "returnn.config",
    "GeneratingDataset": "returnn.datasets.generating",
    "Pretrain": "returnn.pretrain",
    "TFCompat": "returnn.tf.compat",
    "TFNativeOp": "returnn.tf.native_op",
    "TFHorovod": "returnn.tf.horovod",
    "TFUtil": "returnn.tf.util.basic",
    "Util": "returnn.util.basic",
}
_TENSORFLOW = "returnn_tf.compat.tensorflow"


class _ForeignModule(types.ModuleType):
    """Stands for a module of RETURNN; its names are those of one of ours."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name)
        self._home = home
        self.__path__: List[str] = []

    def __getattr__(self, name: str) -> Any:
        if self._home and not (name.startswith("__") and name.endswith("__")):
            return getattr(importlib.import_module(self._home), name)
        raise AttributeError("module %r has no attribute %r" % (self.__name__, name))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules which stand in; it is asked last."""

    def __init__(self) -> None:
        self.modules: Dict[str, _ForeignModule] = {}
        for name, home in _HOMES.items():
            self.modules[name] = _ForeignModule(name, home)
        for old, name in _OLD_NAMES.items():
            for full in (old, "returnn." + old):
                self.modules[full] = _ForeignModule(full, _HOMES[name])

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
        """The spec of one of ours, unless it is to be part of a real package."""
        parent = name.rpartition(".")[0]
        if name not in self.modules or (parent and sys.modules.get(parent) is not self.modules.get(parent)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        """Always the same one."""
        return self.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Nothing: the names come when they are asked for."""


_finder = _Finder()
_lock = threading.RLock()
_depth = 0


@contextlib.contextmanager
def foreign_modules() -> Iterator[None]:
    """Within, imports which find nothing else find the modules that stand in; afterwards these are forgotten."""
    global _depth
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
    if name == "tensorflow" and not level:
        return importlib.import_module(_TENSORFLOW).module
    if level or name.split(".")[0] not in _FIRST_NAMES:
        return builtins.__import__(name, globals, locals, fromlist, level)
    with foreign_modules():
        return builtins.__import__(name, globals, locals, fromlist, level)


_FIRST_NAMES = frozenset(name.split(".")[0] for name in _finder.modules)


def is_known(module: str) -> bool:
    """Whether there is a module of this name which stands in."""
    return module in _finder.modules


def builtins_of_configs() -> Dict[str, Any]:
    """The ``__builtins__`` for the code of configs."""
    return {**vars(builtins), "__import__": _import}
