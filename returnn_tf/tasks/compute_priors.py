"""Task ``compute_priors``: the mean of a layer's output over the training data, for hybrid systems."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed import world
from returnn_tf.engine.passes.forward_pass import ForwardPass, Rows
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.support.atomic_files import write_text
from returnn_tf.engine.support.signals import StopRequest
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task


@register_task("compute_priors")
def compute_priors(config: Config) -> int:
    """Write the logarithm of the mean of ``forward_output_layer`` to ``output_file``.

    The mean is over all frames that ``train`` has in the epoch of the model; with ``partition_epoch`` that is a part.
    """
    settings = TaskSettings(config)
    path = _new_path(settings)
    members = world.start(config)
    net, choice = load_network(config)
    forwarder = Forwarder(net, settings.forward_output_layer)
    dim = forwarder.output.dim
    if dim is None or forwarder.output.sparse:
        raise CommandError(
            "Task compute_priors needs a layer with a probability for each class, but %r gives %s. Set "
            "forward_output_layer." % (forwarder.layer, forwarder.output)
        )
    used = {key: net.extern_data[key] for key in forwarder.used_data_keys}
    source = DataSource(config, "train", used, members)
    one_pass = ForwardPass(forwarder, source, choice.epoch or 1, {"seq_drop": 0.0})
    total, frames = np.zeros(dim, "float64"), 0
    try:
        with (
            StopRequest(config, idle="ending; output_file is not written"),
            net.sinks,
            contextlib.closing(one_pass.own()) as rows,
        ):
            for some in rows:
                sums, count = _sums(some, forwarder)
                total, frames = total + sums, frames + count
    finally:
        source.close()
    parts = members.gather([total.tolist(), frames])
    total, frames = np.sum([np.array(part) for part, _ in parts], axis=0), sum(count for _, count in parts)
    if members.is_chief:
        _write(path, total, frames, forwarder.layer, choice.epoch or 1)
    return 0


def _new_path(settings: TaskSettings) -> str:
    path = settings.output_file
    if not path:
        raise CommandError("Task compute_priors needs output_file = '<path>', the text file for the priors.")
    if os.path.exists(path):
        raise CommandError("output_file %r exists already. Remove it, or choose another." % path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CommandError("output_file: the folder %s does not exist. Create it first." % folder)
    return path


def _sums(rows: Rows, forwarder: Forwarder) -> tuple[NDArray[Any], int]:
    """Return the sums over the valid frames [dim] of a batch, and the number of frames."""
    assert forwarder.output.feature_axis is not None
    feature = forwarder.order.index(forwarder.output.feature_axis)
    values = np.moveaxis(rows.value.astype("float64"), feature, -1)
    mask = np.ones(values.shape[:-1], bool)
    for axis, lengths in rows.lengths.items():
        inside = np.arange(values.shape[axis + 1]) < lengths[:, None]
        mask &= inside.reshape([len(lengths)] + [-1 if i == axis + 1 else 1 for i in range(1, mask.ndim)])
    return values[mask].sum(axis=0), int(mask.sum())


def _write(path: str, total: NDArray[Any], frames: int, layer: str, epoch: int) -> None:
    if not frames:
        raise CommandDataError(
            "The training data has no frame, so there are no priors. Check the dataset and its limits."
        )
    mean = total / frames
    if not np.isfinite(mean).all() or (mean < 0).any():
        raise CommandDataError(
            "The mean of layer %r has values that are negative, NaN or Inf, so these are no probabilities. Set "
            "forward_output_layer to a layer with softmax, not logits." % layer
        )
    with np.errstate(divide="ignore"):
        text = io.StringIO()
        np.savetxt(text, np.log(mean))
    write_text(path, text.getvalue())
    log.write(
        3,
        "Wrote %s: the priors of %d classes over the %d frames that train has in epoch %d, sum %.6g"
        % (path, len(mean), frames, epoch, mean.sum()),
    )
