"""Task ``forward``: the output of a layer for all sequences of a dataset, to an HDF file or code of the config."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets import HDFWriter
from returnn_tf.datasets.config import without_auto
from returnn_tf.engine.data.data_source import DataSource, dataset_name
from returnn_tf.engine.distributed import world
from returnn_tf.engine.passes.forward_callback import callback_of, run_callback
from returnn_tf.engine.passes.forward_pass import ForwardPass
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.support.signals import StopRequest
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task
from returnn_tf.util.temporary import remove_all


@register_task("forward", "hpx")
def forward(config: Config) -> int:
    """Write the output of ``forward_output_layer`` for ``forward_data`` to ``output_file`` or a callback."""
    settings = TaskSettings(config)
    members = world.start(config)
    callback = callback_of(config)
    net, choice = load_network(config, search=settings.forward_use_search)
    epoch = choice.epoch or 1
    path = "" if callback is not None else _output_path(config, epoch)
    forwarder = Forwarder(net, settings.forward_output_layer)
    used = {key: net.extern_data[key] for key in forwarder.used_data_keys}
    changes = {} if settings.forward_batch_size is None else {"batch_size": settings.forward_batch_size}
    of_data = without_auto(config) if changes else config
    source = DataSource(of_data, dataset_name("forward_data", settings.forward_data), used, members, finite=True)
    one_pass = ForwardPass(forwarder, source, epoch, changes)
    try:
        with StopRequest(config, idle="ending; output_file is not written") as stop, net.sinks:
            if not members.is_chief:
                one_pass.help_chief()
            elif callback is not None:
                _call(callback, forwarder, one_pass)
            else:
                _write(forwarder, source, one_pass, path, NetworkSettings(config).target, stop)
    finally:
        source.close()
    return 0


def _call(callback: Any, forwarder: Forwarder, one_pass: ForwardPass) -> None:
    with contextlib.closing(one_pass.all()) as rows:
        count = run_callback(callback, forwarder.net, forwarder.layer, forwarder.output, forwarder.order, rows)
    log.write(3, "forward_callback got %s of %i sequences" % (forwarder.output, count))


def _output_path(config: Config, epoch: int) -> str:
    path = TaskSettings(config).output_file or "dump-fwd-epoch-%i.hdf" % epoch
    if os.path.exists(path):
        if not TaskSettings(config).forward_override_hdf_output:
            raise CommandError(
                "output_file %r exists already. Remove it, choose another, or set forward_override_hdf_output = True."
                % path
            )
    return path


def _write(
    forwarder: Forwarder, source: DataSource, one_pass: ForwardPass, path: str, target: str, stop: StopRequest
) -> None:
    output = forwarder.output
    labels = _labels(source, target, output)
    with contextlib.closing(one_pass.all()) as rows:
        # `_output_path` has checked that the file may be replaced
        with HDFWriter(path, dim=output.dim, labels=labels, ndim=output.rank - 1, replace=True) as writer:
            stop.on_abort.append(remove_all)
            for value, lengths, tags in rows:
                writer.insert_batch(value, lengths, tags)
    log.write(3, "Wrote %s: %s for %i sequences" % (path, output, writer.num_seqs))


def _labels(source: DataSource, target: str, output: Any) -> list[str]:
    """Return the class names of the target if their number matches the output; else none."""
    labels = source.dataset.label_names.get(target, [])
    return labels if len(labels) == output.dim else []
