"""Makes ``from TFUtil import where_bc`` and the like work in configs which were written for RETURNN.

Import statements of a config and of the files beside it, at the top level and in functions, give modules of
`returnn_tf.compat` for the names of RETURNN's. RETURNN itself is neither imported nor changed if it is installed, and
``sys.modules`` and the imports of other code stay as they are. ``import tensorflow as tf`` gives TensorFlow with the
names of TensorFlow 1 added, since old configs use both.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import linecache
import os
import pathlib
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import CodeError
from returnn_tf.config.registry import Registry
from returnn_tf.config.user_files import ConfigImports, is_user_file

ROOT = "returnn"
#: The modules of old versions, which were no packages.
OLD_MODULES = frozenset(
    (
        "CachedDataset2", "Config", "Dataset", "EngineBase", "EngineBatch", "EngineTask", "EngineUtil", "Fsa",
        "GeneratingDataset", "HDFDataset", "LearningRateControl", "LmDataset", "Log", "MapDataset", "MetaDataset",
        "NativeOp", "NormalizationData", "NumpyDumpDataset", "Pretrain", "SprintCache", "SprintDataset",
        "SprintErrorSignals", "SprintInterface", "TFCompat", "TFDataPipeline", "TFDistributed", "TFEngine",
        "TFHorovod", "TFKenLM", "TFNativeOp", "TFNetwork", "TFNetworkLayer", "TFNetworkNeuralTransducer",
        "TFNetworkRecLayer", "TFNetworkSigProcLayer", "TFSprint", "TFUpdater", "TFUtil", "TranslationDataset",
        "Util", "better_exchook",
    )
)  # fmt: skip

_REPLACEMENTS = {
    "LmDataset": "the dataset class in the options of the dataset: {'class': 'LmDataset', ...}",
    "get_sprint_automata_for_batch_op": "a layer of class 'fast_bw'",
    "TFNetwork": "from returnn_tf import Network",
    "Runner": "the commands of `returnn-tf --help`; in a program, Network.run and Trainer.step of returnn_tf",
    "Engine": "the commands of `returnn-tf --help`, or from returnn_tf import Network",
}


def line_of_caller() -> str:
    """Return file, line and text of the innermost running code of the user, or ""."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return "%s:%d%s" % (file, line, ": " + text if text else "")


class _Missing(type):
    """The class of names that can be imported, but not used."""

    def _fail(cls) -> Any:
        raise CodeError(vars(cls.__mro__[-2])["message"])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise an error that says what to write."""
        return cls._fail()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls._fail()


def missing_name(module: str, name: str, line: str) -> Any:
    """Return the stand-in for a name of RETURNN that is not here: using it is an error, deriving from it is not.

    :param line: where it is imported
    """
    hint = "Use instead: %s." % _REPLACEMENTS[name] if name in _REPLACEMENTS else _COPY
    text = "%r of RETURNN's module %r is not part of returnn_tf. %s" % (name, module, hint)
    text += "\n    imported in %s" % line if line else ""
    return _Missing(name, (), {"message": text, "__module__": module})


_COPY = "Copy what you need of it into the config, or into a file next to it."


def is_beside_configs(module: str) -> bool:
    """Return whether a file of the user has the name of an old module of RETURNN, but is no part of RETURNN."""
    spec = importlib.machinery.PathFinder.find_spec(module)
    if spec is None or not spec.origin or not is_user_file(spec.origin):
        return False
    folder = os.path.dirname(spec.origin)
    return not any(os.path.exists(os.path.join(folder, name)) for name in ("TFEngine.py", "returnn", "rnn.py"))


#: Stand-ins by the names of RETURNN modules that configs use; registered by the modules of `returnn_tf.compat.modules`.
COMPAT: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat.modules")
#: Modules that configs see in another form than other code.
REPLACED: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat.modules", module_per_entry=True)
#: Modules of other projects that configs import, by name; what is found on the path wins.
FALLBACK: Registry[types.ModuleType] = Registry("module", "returnn_tf.compat.modules")
_TENSORFLOW = "tensorflow"
#: The file in a checkout that serves the stand-ins to all code, see `serve_package`.
_SERVING = str(pathlib.Path(__file__).resolve().parents[3] / ROOT / "__init__.py")
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
            if root != ROOT and root not in OLD_MODULES:
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


_finder = _Finder()
_served = False


def serve_package(name: str) -> None:
    """Let all code of this process import the stand-ins from now on, as job managers and scripts do.

    :param name: "returnn", of the package in ``sys.modules`` in whose place they come
    """
    global _served
    COMPAT.load()
    _served = True
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    package = _finder.module(name)
    assert package is not None
    package.__spec__ = sys.modules[name].__spec__
    sys.modules[name] = package


class Imports(ConfigImports):
    """Resolves import statements of configs to stand-ins for RETURNN's modules, and TensorFlow with its older names."""

    def instead(self, name: str, fromlist: Any) -> Optional[types.ModuleType]:
        """Return TensorFlow, or the stand-in for a module of RETURNN unless a file of the user has its name."""
        if name == _TENSORFLOW:
            return REPLACED[_TENSORFLOW]
        root = name.partition(".")[0]
        if root != ROOT and (root not in OLD_MODULES or is_beside_configs(root)):
            return None
        parts = name.split(".")
        for i in range(len(parts)):  # also modules of which there is nothing here
            _finder.module(".".join(parts[: i + 1]))
        return _finder.module(name if fromlist else root)

    def fallback(self, name: str) -> Optional[types.ModuleType]:
        """Return the stand-in for a module of another project."""
        return FALLBACK.find(name)

    def spec_instead(self, name: str, path: Optional[Sequence[str]], file: str) -> Any:
        """Return the stand-in for what serves scripts: configs have the stand-ins only while they are read."""
        return _finder.find_spec(name, path) if os.path.realpath(file) == _SERVING else None

    @contextlib.contextmanager
    def resolving(self) -> Iterator[None]:
        """Within the context, resolve names that find nothing else to the stand-ins; remove these on exit."""
        if _finder not in sys.meta_path:
            sys.meta_path.append(_finder)
        try:
            yield
        finally:
            if not _served:
                sys.meta_path.remove(_finder)
                for name, module in _finder.modules.items():
                    if sys.modules.get(name) is module:
                        del sys.modules[name]

    def newest_name(self, module: str) -> Optional[str]:
        """Return the newest name of a module of RETURNN that has a stand-in."""
        COMPAT.load()
        home = COMPAT.find(module)
        return None if home is None else COMPAT.names_of(home)[0]


IMPORTS = Imports()
