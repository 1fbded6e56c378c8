"""The examples in the docstrings of all layer and loss classes of the package, as configs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from returnn_tf.cli import layers
from returnn_tf.config import Config
from returnn_tf.graph.registry import LAYERS, LOSSES

EMULATOR = str(Path(__file__).parents[1] / "rasr" / "emulator.py")


def _own(kind: str, registry: Any) -> dict[str, Any]:
    items = [(name, cls) for name, cls in registry.items() if cls.__module__.startswith("returnn_tf.")]
    return {"%s:%s" % (kind, name): cls for name, cls in items}


#: "layer:<name>" or "loss:<name>" -> class; plug-ins left out.
CLASSES: dict[str, Any] = {**_own("layer", LAYERS), **_own("loss", LOSSES)}
#: Examples that are fed one label per sequence: an alignment by CTC needs more frames than labels.
ONE_LABEL = {"layer:ctc_loss", "loss:ctc", "loss:fast_bw"}


def example_settings(name: str) -> dict[str, Any]:
    """Return the settings of the example of a class, with defaults for what it leaves out.

    :param name: a key of `CLASSES`
    """
    settings = layers.example_settings(CLASSES[name])
    for layer in settings["network"].values():
        options = (layer.get("loss_opts") or {}).get("sprint_opts")
        if options:  # a stand-in for RASR
            mode = "iter" if layer["loss"] == "sprint" else "loop"
            options.update(sprintExecPath=[sys.executable, EMULATOR], sprintConfigStr="--fake.mode=" + mode)
    return settings


def example_config(name: str) -> Config:
    """Return the example of a class as a config."""
    return Config(example_settings(name))
