"""The module that RASR imports to train or to forward with this program inside of it.

RASR's options: ``*.pymod-path`` is the folder of the package (or its folder ``rasr/names``, where the module has
the names of RETURNN), ``*.pymod-name=returnn_tf.rasr.interface``, ``*.pymod-config=action:train,configfile:a``.
To train, also ``*.python-segment-order=true`` with path and name, and the config file as ``...-config``. RASR calls the
functions by keywords; further ones of newer versions are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import RasrError
from returnn_tf.config.settings import setting_by_key
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.logging.log import log
from returnn_tf.rasr.inside.forwarding import FeatureScorer, ForwardingInRasr
from returnn_tf.rasr.inside.training import TrainingInRasr
from returnn_tf.rasr.settings import RasrSettings

ACTIONS = ("train", "forward", "nop")


def parse_pairs(text: str) -> dict[str, str]:
    """Return the pairs of ``action:train,configfile:my.config,...``; a file name alone is the ``configfile``.

    :raises ConfigError: a part is no pair, or there is no config file of that name
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) == 1 and ":" not in parts[0]:
        parts = ["configfile:" + parts[0]]
    for part in parts:
        if ":" not in part:
            raise RasrError("pymod-config: %r must be a list key:value,key:value, but has %r" % (text, part))
    pairs = dict(part.split(":", 1) for part in parts)
    if pairs.get("action", "forward") not in ACTIONS:
        raise RasrError("pymod-config: action:%s is unknown; there are %s" % (pairs["action"], ", ".join(ACTIONS)))
    path = pairs.get("configfile")
    if not path or not os.path.isfile(path):
        raise RasrError(
            "pymod-config: %s (current directory: %s)"
            % ("the config file %r does not exist" % path if path else "configfile:<config> is missing", os.getcwd())
        )
    return pairs


def read_config(pairs: dict[str, str], task: str) -> Config:
    """Return the config of the pairs, which are also set in it; the log is set up.

    :param task: of the config, train or forward
    """
    given = [(key, value) for key, value in pairs.items() if key not in ("action", "configfile")]
    config = Config.from_files([pairs["configfile"]], [*given, ("task", task)])
    settings = LoggingSettings(config)
    log.configure([str(target) for target in settings.log], settings.log_verbosity, settings.log_format)
    for key, value in given:
        if key not in setting_by_key():
            log.write(2, "warning: pymod-config: %s:%s is no setting; only code of the config reads it" % (key, value))
    return config


_UNIT = "PythonFeatureScorer"

#: The running training or forwarding of this process.
_running: dict[str, Any] = {}


class Nothing:
    """Accepts every call of RASR and does nothing, for ``action:nop``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda **arguments: None


def getSegmentList(
    segmentList: Iterable[str] = (),
    config: str = "",
    **_: Any,
) -> Iterator[str]:
    """Yield the segments of all epochs of a training, which begins with this."""
    pairs = parse_pairs(config)
    training = _running["training"] = TrainingInRasr(read_config(pairs, "train"))
    return training.segments(segmentList)


def init(
    name: Optional[str] = None,
    sprint_unit: str = "",
    config: str = "",
    inputDim: int = 0,
    outputDim: int = 0,
    targetMode: str = "target-alignment",
    **others: Any,
) -> Any:
    """Begin: as feature scorer (with a name), else as trainer, which trains or forwards."""
    pairs = parse_pairs(config)
    action = pairs.get("action", "forward" if name else "train")
    if action == "nop":
        _running["training"] = Nothing()
        return Nothing()
    if name is not None:
        return _feature_scorer(pairs, action, sprint_unit=sprint_unit, name=name, config=config, **others)
    if action == "forward":
        if targetMode != "forward-only":
            raise RasrError("action:forward needs *.target-mode=forward-only, not %s" % targetMode)
        forwarding = _running["forwarding"] = ForwardingInRasr(read_config(pairs, "forward"))
        forwarding.check_dims(inputDim, outputDim)
        return None
    if targetMode != "target-alignment":
        raise RasrError("action:train needs *.target-mode=target-alignment, not %s" % targetMode)
    _training().check_dims(inputDim, outputDim)
    return None


def _feature_scorer(pairs: dict[str, str], action: str, *, sprint_unit: str, **arguments: Any) -> Any:
    if sprint_unit != _UNIT or action != "forward":
        raise RasrError(
            "RASR's unit %s with action:%s is not possible. With PythonControl there is %s with action:forward; to "
            "train, use *.trainer=python-trainer" % (sprint_unit, action, _UNIT)
        )
    config = read_config(pairs, "forward")
    own = RasrSettings(config).SprintInterfacePythonFeatureScorer
    return FeatureScorer(config) if own is None else own(sprint_unit=sprint_unit, **arguments)


def exit(**_: Any) -> None:
    """End: wait for the training."""
    training = _running.pop("training", None)
    _running.clear()
    if isinstance(training, TrainingInRasr):
        training.end()


def _training() -> TrainingInRasr:
    if "training" not in _running:
        raise RasrError("to train, RASR needs *.python-segment-order=true with this module and the config file")
    training: TrainingInRasr = _running["training"]
    return training


def feedInputAndTargetAlignment(
    features: Any,
    targetAlignment: Any,
    weights: Any = None,
    segmentName: Optional[str] = None,
    **_: Any,
) -> None:
    """Train on a sequence: features [dim, time], classes [time]."""
    _training().feed(str(segmentName), features, {"classes": np.asarray(targetAlignment, np.uint32)})


def feedInputForwarding(
    features: Any,
    weights: Any = None,
    segmentName: Optional[str] = None,
    **_: Any,
) -> NDArray[Any]:
    """Return the posteriors [outputs, time] of features [dim, time]."""
    if "forwarding" not in _running:
        raise RasrError("RASR forwards, so pymod-config needs action:forward")
    forwarding: ForwardingInRasr = _running["forwarding"]
    return np.asfortranarray(forwarding.posteriors(str(segmentName), features).T)


def _refuse(name: str) -> Any:
    def refuse(**_: Any) -> None:
        raise RasrError("RASR calls %s, which is not possible: use *.target-mode=target-alignment to train" % name)

    return refuse


feedInputAndTarget = _refuse("feedInputAndTarget")
feedInputAndTargetSegmentOrth = _refuse("feedInputAndTargetSegmentOrth")
feedInputUnsupervised = _refuse("feedInputUnsupervised")
feedInput = _refuse("feedInput")
