"""Task ``forward``: writes the output of a layer for all sequences of a dataset to an HDF file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any

from numpy.typing import NDArray

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.settings import NetworkSettings, TaskSettings
from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.data.data_source import DataSource, dataset_name
from returnn_tf.engine.distributed import world
from returnn_tf.engine.distributed.in_order import in_order
from returnn_tf.engine.passes.dataset_pass import DatasetPass
from returnn_tf.engine.passes.forwarder import Forwarder, ForwardResult
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.engine.support.signals import StopRequest
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.lines import phase_text
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task

_Rows = tuple[NDArray[Any], dict[int, NDArray[Any]], list[str]]  # [sequence, ...], axis -> lengths, tags


@register_task("forward", "hpx")
def forward(config: Config) -> int:
    """Write the output of ``forward_output_layer`` for ``forward_data`` to ``output_file``."""
    members = world.start(config)
    net, choice = load_network(config)
    epoch = choice.epoch or 1
    path = _output_path(config, epoch)
    forwarder = Forwarder(net, TaskSettings(config).forward_output_layer)
    used = {key: net.extern_data[key] for key in forwarder.used_data_keys}
    source = DataSource(config, dataset_name("forward_data", TaskSettings(config).forward_data), used, members)
    changes = {}
    if TaskSettings(config).forward_batch_size is not None:
        changes["batch_size"] = TaskSettings(config).forward_batch_size
    try:
        with StopRequest(config, idle="ending; output_file is not written") as stop:
            _write(forwarder, source, path, NetworkSettings(config).target, epoch, changes, stop)
    finally:
        source.close()
    return 0


def _output_path(config: Config, epoch: int) -> str:
    path = TaskSettings(config).output_file or "dump-fwd-epoch-%i.hdf" % epoch
    if os.path.exists(path):
        if not TaskSettings(config).forward_override_hdf_output:
            raise ConfigError(
                "output_file %r exists already. Remove it, choose another, or set forward_override_hdf_output = True."
                % path
            )
    return path


def _write(
    forwarder: Forwarder, source: DataSource, path: str, target: str, epoch: int, changes: Any, stop: StopRequest
) -> None:
    output = forwarder.output
    one_pass = _Pass(forwarder, source, epoch, changes)
    if not source.world.is_chief:
        for _ in in_order(source.world, one_pass.results()):
            pass  # the chief gets them
        return
    labels = _labels(source, target, output)
    with contextlib.closing(one_pass.all_results()) as rows:
        # `_output_path` has checked that the file may be replaced
        with HDFWriter(path, dim=output.dim, labels=labels, ndim=output.rank - 1, replace=True) as writer:
            stop.on_abort.append(writer.remove_temporary)
            for value, lengths, tags in rows:
                writer.insert_batch(value, lengths, tags)
    log.write(3, "Wrote %s: %s for %i sequences" % (path, output, writer.num_seqs))


class _Pass:
    """Computes the values of the shard of this process, and collects those of all sequences of a dataset."""

    def __init__(self, forwarder: Forwarder, source: DataSource, epoch: int, changes: Any) -> None:
        self._forwarder = forwarder
        self._source = source
        self._epoch = epoch
        self._changes = changes

    def batches(self) -> Iterator[_Rows]:
        """Yield value, lengths and tags of each batch of this process."""
        phase = phase_text("forward", self._epoch, self._source.name)
        one_pass: DatasetPass[ForwardResult] = DatasetPass(
            phase, self._forwarder.tensors, lambda tensors, batch: self._forwarder.run(tensors), self._source.world
        )
        state = PassState()
        with contextlib.closing(one_pass.steps(self._source.batches(self._epoch, **self._changes), state)) as steps:
            for step in steps:
                yield step.result.value, step.result.lengths, step.batch.seq_tags
        one_pass.log_end(state)

    def results(self) -> Iterator[list[_Rows]]:
        """Yield, for each batch, a list with an entry for each sequence."""
        for value, lengths, tags in self.batches():
            yield [
                (value[row : row + 1], {axis: lens[row : row + 1] for axis, lens in lengths.items()}, [tag])
                for row, tag in enumerate(tags)
            ]

    def all_results(self) -> Generator[_Rows, None, None]:
        """Yield the values of all processes, in the order of the dataset.

        :raises DataError: a process had other sequences than its shard
        """
        if self._source.world.size == 1:
            yield from self.batches()
            return
        order = self._source.order(self._epoch)
        number = 0
        for number, (value, lengths, tags) in enumerate(in_order(self._source.world, self.results()), 1):
            wanted = self._source.dataset.tag(int(order[number - 1])) if number <= len(order) else "no further sequence"
            if tags != [wanted]:
                raise DataError(
                    "forward: the processes returned %r instead of %r. Sequences must not be cut or skipped: set "
                    "chunking = None and no limits, or use a single process." % (tags[0], wanted)
                )
            yield value, lengths, tags
        if number < len(order):
            raise DataError("forward: %d of %d sequences are missing." % (len(order) - number, len(order)))


def _labels(source: DataSource, target: str, output: Any) -> list[str]:
    """Return the class names of the target if their number matches the output; else none."""
    labels = source.dataset.labels.get(target, [])
    return labels if len(labels) == output.dim else []
