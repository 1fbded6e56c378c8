"""Explains what to do when a config uses something of RETURNN that does not exist here.

A name that is imported but never used is no mistake, so it is an object that raises an error once it is used.
"""

from __future__ import annotations

import importlib.machinery
import linecache
import os
import sys
from typing import Any

from returnn_tf.config.errors import ConfigError
from returnn_tf.config.user_code import is_user_file

ERROR_TOPIC = "code-in-configs"

ROOT = "returnn"
#: The modules of old versions, which were no packages.
OLD_MODULES = frozenset(
    (
        "CachedDataset2", "Config", "Dataset", "EngineBase", "EngineBatch", "EngineTask", "EngineUtil", "Fsa",
        "GeneratingDataset", "HDFDataset", "LearningRateControl", "LmDataset", "Log", "MetaDataset",
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
    "RecLayer": "from returnn_tf import Layer, or a layer of class 'rec'",
    "TFNetwork": "from returnn_tf import Network",
    "Engine": "the commands of `returnn-tf --help`, or from returnn_tf import Network",
}


def line_of_caller() -> str:
    """Return file and line of the code of the user that is being run, with its text; "" if there is none."""
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
        raise ConfigError(vars(cls.__mro__[-2])["message"])

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
