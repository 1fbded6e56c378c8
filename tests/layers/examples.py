"""The examples in the docstrings of all layer and loss classes of the package, as configs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from returnn_tf.cli.layer_docs import example_of
from returnn_tf.config import Config
from returnn_tf.graph.registry import LAYERS, LOSSES

EMULATOR = str(Path(__file__).parents[1] / "datasets" / "rasr" / "emulator.py")
DEFAULTS: dict[str, Any] = {
    "behavior_version": 21,
    "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}},
}


def _own(kind: str, registry: Any) -> dict[str, Any]:
    items = [(name, cls) for name, cls in registry.items() if cls.__module__.startswith("returnn_tf.")]
    return {"%s:%s" % (kind, name): cls for name, cls in items}


#: "layer:<name>" or "loss:<name>" -> class; plug-ins left out.
CLASSES: dict[str, Any] = {**_own("layer", LAYERS), **_own("loss", LOSSES)}


def example_settings(name: str) -> dict[str, Any]:
    """Return the settings of the example of a class, with defaults for what it leaves out.

    :param name: a key of `CLASSES`
    """
    example = example_of(CLASSES[name])
    assert example, "%s: the docstring has no 'Example::' block with network = {...}" % name
    names: dict[str, Any] = {}
    exec(compile(example, "<example of %s>" % name, "exec"), names)
    for layer in names["network"].values():
        options = (layer.get("loss_opts") or {}).get("sprint_opts")
        if options:  # a stand-in for RASR
            mode = "iter" if layer["loss"] == "sprint" else "loop"
            options.update(sprintExecPath=[sys.executable, EMULATOR], sprintConfigStr="--fake.mode=" + mode)
    return {**DEFAULTS, **{k: v for k, v in names.items() if k in ("network", "extern_data", "behavior_version")}}


def example_config(name: str) -> Config:
    """Return the example of a class as a config."""
    return Config(example_settings(name))
