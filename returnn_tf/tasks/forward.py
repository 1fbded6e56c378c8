"""Task ``forward``: writes the output of a layer for all sequences of a dataset to an HDF file."""

from __future__ import annotations

import os
import time
from typing import Any, List

from returnn_tf.config import ConfigError
from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.data_source import DataSource, dataset_name
from returnn_tf.engine.forwarding import Forwarder
from returnn_tf.engine.load_model import load_network
from returnn_tf.engine.prefetch import Prefetcher
from returnn_tf.engine.step_errors import naming_sequences
from returnn_tf.log import log, pass_line, phase_text
from returnn_tf.tasks.registry import register_task


@register_task("forward", "hpx")
def forward(config: Any) -> int:
    """Writes ``output_file``; the layer is ``forward_output_layer``, the dataset ``forward_data``."""
    net, choice = load_network(config)
    epoch = choice.epoch or 1
    path = _output_path(config, epoch)
    forwarder = Forwarder(net, config.str("forward_output_layer", "output") or "output")
    used = {key: net.extern_data[key] for key in forwarder.used_data_keys}
    source = DataSource(config, dataset_name(config, "forward_data"), used)
    changes = {}
    if config.typed("forward_batch_size") is not None:
        changes["batch_size"] = config.typed("forward_batch_size")
    try:
        _write(forwarder, source, path, config.str("target", "classes"), epoch, changes)
    finally:
        source.close()
    return 0


def _output_path(config: Any, epoch: int) -> str:
    path = config.str("output_file", "") or "dump-fwd-epoch-%i.hdf" % epoch
    if os.path.exists(path):
        if not config.bool("forward_override_hdf_output", False):
            raise ConfigError(
                "output_file %r exists already. Remove it, choose another, or set forward_override_hdf_output = True."
                % path
            )
    return path


def _write(forwarder: Forwarder, source: DataSource, path: str, target: str, epoch: int, changes: Any) -> None:
    output = forwarder.output
    phase = phase_text("forward", epoch, source.name)
    partial = "%s.new-%i" % (path, os.getpid())  # the final name only once it is complete
    start, compute, steps = time.perf_counter(), 0.0, 0
    prefetcher = Prefetcher(source.batches(epoch, **changes), lambda batch: forwarder.tensors(batch.feed))
    bar = log.progress(phase)
    try:
        with HDFWriter(partial, dim=output.dim, labels=_labels(source, target, output), ndim=output.rank - 1) as writer:
            for batch, tensors in prefetcher:
                before = time.perf_counter()
                with naming_sequences(phase, batch.seq_tags):
                    result = forwarder.run(tensors)
                compute += time.perf_counter() - before
                writer.insert_batch(result.value, result.lengths, batch.seq_tags)
                steps += 1
                bar.update(steps, batch.complete)
        os.replace(partial, path)
    finally:
        bar.close()
        prefetcher.close()
        if os.path.exists(partial):
            os.remove(partial)
    log.write(3, pass_line(phase, steps, time.perf_counter() - start, compute))
    log.write(3, "Wrote %s: %s for %i sequences" % (path, output, writer.num_seqs))


def _labels(source: DataSource, target: str, output: Any) -> List[str]:
    """Names of the classes of the target if the output has as many."""
    labels = source.dataset.labels.get(target, [])
    return labels if len(labels) == output.dim else []
