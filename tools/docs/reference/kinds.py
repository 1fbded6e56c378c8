"""The kinds of classes that configs name: of layers, losses, units, datasets, optimizers, schedules, and exports."""

from __future__ import annotations

import posixpath
from typing import Any

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.registry import DATASETS
from returnn_tf.engine.learning_rate.schedule import SCHEDULES, Schedule
from returnn_tf.engine.update.optimizers import Optimizer
from returnn_tf.engine.update.optimizers.registry import OPTIMIZERS
from returnn_tf.export.exporters import EXPORTERS, Exporter
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.loss import Loss
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.ops.cells.base import Cell
from returnn_tf.ops.cells.registry import UNITS
from tools.docs.reference.classes import Kind, Pages
from tools.docs.reference.docstrings import code
from tools.docs.reference.examples import example_section


def _with_drawing(cls: type[Any], path: str) -> tuple[str, Pages]:
    picture = posixpath.splitext(path)[0] + ".svg"
    section, drawing = example_section(cls, posixpath.basename(picture))
    return section, {picture: drawing} if drawing else {}


def _unit_example(cls: type[Any], path: str) -> tuple[str, Pages]:
    """Return a config with a layer of the unit, and the parameters that this layer has."""
    name = UNITS.names_of(cls)[0]
    layer = {"class": "rec", "unit": name, "n_out": 64, "from": "data"}
    dim = 64 if cls.keeps_size else 4
    settings = {"extern_data": {"data": {"dim": dim}}, "network": {"output": layer}, "behavior_version": 21}
    plan = plan_from_config(Config(settings), train=True)
    rows = ["| %s | %s |" % (code(key), code(str(list(spec.shape)))) for key, spec in sorted(plan.params.items())]
    shown = ", ".join('"%s": %s' % (key, '"%s"' % v if isinstance(v, str) else v) for key, v in layer.items())
    parts = [
        "## Example",
        '```python\nextern_data = {"data": {"dim": %d}}\nnetwork = {"output": {%s}}\n```' % (dim, shown),
        "Its parameters:\n\n" + "\n".join(["| parameter | shape |", "|---|---|", *rows]) if rows else "No parameters.",
    ]
    return "\n\n".join(parts), {}


def _export_example(cls: type[Any], path: str) -> tuple[str, Pages]:
    command = "returnn-tf export my.config --to %s --output exported" % EXPORTERS.names_of(cls)[0]
    return "## Example\n\n```\n%s\n```\n\nOptions follow as `--option value`; a bool is on by `--option`." % command, {}


KINDS = (
    Kind("layers", "Layers", LAYERS, Layer, "layers", more=_with_drawing, by_topic=True),
    Kind("losses", "Losses", LOSSES, Loss, "losses", more=_with_drawing),
    Kind(
        "units",
        "Units",
        UNITS,
        Cell.Options,
        "units",
        options="Options",
        intro='What `"unit"` of a [rec](../layers/rec/rec.md) layer names; their options go into `unit_opts`. '
        "In the formulas x is the input of a step, h the output of the step before, and a prime marks a new state.",
        more=_unit_example,
    ),
    Kind("datasets", "Datasets", DATASETS, Dataset.Options, "datasets", options="Options", by_topic=True),
    Kind("optimizers", "Optimizers", OPTIMIZERS, Optimizer, "optimizers"),
    Kind(
        "rate_schedules",
        "Schedules of the learning rate",
        SCHEDULES,
        Schedule,
        "schedules",
        intro="Classes of `learning_rate_schedule`; [the guide](../../guide/schedules.md) draws them.",
    ),
    Kind(
        "exporters",
        "Targets of exports",
        EXPORTERS,
        Exporter,
        intro="What `returnn-tf export --to` takes; [the guide](../../export.md) compares them.",
        more=_export_example,
    ),
)
