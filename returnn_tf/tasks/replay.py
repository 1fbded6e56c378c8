"""Task ``replay``: repeats a failed step, and shows the values of all layers and gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.compiler.network import Network, dense_gradients
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.checkpoints.selection import checkpoint_exists
from returnn_tf.engine.monitoring import reproducer
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task
from returnn_tf.util.lazy_tf import tf

EXIT_BAD = 1
"""The exit code if NaN or Inf occurs again."""


@register_task("replay")
def replay(config: Config) -> int:
    """Compute the batch in the folder ``failure`` with the parameters kept there, or else those of ``load``.

    :return: 0 if all values are finite, else 1
    """
    folder = TaskSettings(config).failure
    if not folder:
        raise CommandError("Task replay needs the folder of a failed step: ++failure <model>.failure-<step>")
    failure, feed = reproducer.load(folder)
    params = os.path.join(folder, reproducer.PARAMS)
    exact = checkpoint_exists(params)
    if exact:
        config.set("load", params)
    config.set("load_epoch", failure.epoch)  # selects the network of that epoch
    net, _ = load_network(config)
    if failure.noise_seed is not None:
        net.noise_seed = failure.noise_seed
    log.write(1, "Step %i of epoch %i failed: %s" % (failure.step, failure.epoch, failure.error))
    net.global_step.assign(failure.step)
    rows = _values(net, feed)
    log.write(1, _table(rows))
    bad = next((name for name, value in rows.items() if _is_bad(name, value)), None)
    if bad is not None:
        log.write(1, "First value with NaN or Inf: %s" % bad)
        return EXIT_BAD
    reason = "" if exact else " The parameters were not kept, so these are not the ones of the failed step."
    log.write(1, "There is no NaN.%s" % reason)
    return 0


def _is_bad(name: str, value: NDArray[Any]) -> bool:
    """Return whether a value is bad: NaN, or Inf outside of layers, which may mask with Inf."""
    return bool(np.isnan(value).any() if name.startswith("layer") else not np.isfinite(value).all())


def _values(net: Network, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return layer outputs in network order, losses, and gradients by parameter."""
    names: list[str] = []

    def compute(tensors: dict[str, Any]) -> list[Any]:
        graph = net.lower(tensors, train=True)
        found = {
            "layer %s" % node.path: value
            for node, value in graph.lowering.values.outputs.items()
            if tf.is_tensor(value) and value.dtype.is_floating
        }
        found.update({"loss %s" % name: value for name, value in graph.losses.items()})
        grads = dense_gradients(graph.objective, net.trainable_params)
        found.update({"gradient %s" % name: grad for name, grad in grads.items()})
        names.extend(found)
        return list(found.values())

    values = FeedFunction(net.feed_format(), compute)(feed)
    return {name: np.asarray(value) for name, value in zip(names, values)}


def _table(rows: Mapping[str, NDArray[Any]]) -> str:
    lines = ["%-50s %-20s %10s %10s %10s %6s %6s" % ("value", "shape", "min", "mean", "max", "NaN", "Inf")]
    for name, value in rows.items():
        good = value[np.isfinite(value)]
        facts = (good.min(), good.mean(), good.max()) if good.size else (np.nan,) * 3
        shape = "x".join(map(str, value.shape)) or "scalar"
        counts = (int(np.isnan(value).sum()), int(np.isinf(value).sum()))
        lines.append("%-50s %-20s %10.3g %10.3g %10.3g %6i %6i" % (name, shape, *facts, *counts))
    return "\n".join(lines)
