"""Values that layers such as hdf_dump write in a pass over a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.compiler.network import Network
from returnn_tf.engine.distributed.world import World
from returnn_tf.graph.after_step.sinks import OpenSinks, RunInfo
from returnn_tf.logging.log import log


@dataclasses.dataclass(frozen=True)
class Dump:
    """The sinks of a network in one pass."""

    sinks: OpenSinks
    run: RunInfo

    @contextlib.contextmanager
    def opened(self, phase: str, steps_done: int) -> Iterator[None]:
        """Open the sinks for the values of a pass.

        :param steps_done: steps of this pass that an earlier run did, whose values are lost
        """
        if steps_done:
            log.warn("%s: the files of hdf_dump layers lack the first %d batches of the pass." % (phase, steps_done))
        with self.sinks.run(self.run):
            yield

    def write(self, batch: Any, values: Mapping[str, Any]) -> None:
        """Pass on the values of a step, by path of the layer."""
        self.sinks.write(values, batch.seq_tags)


def dump_of(
    net: Network, dataset: str, epoch: int, world: Optional[World], *, events: Optional[str] = None
) -> Optional[Dump]:
    """Return the sinks of a network for a pass, or None if no layer writes values.

    :param dataset: its name
    :param world: the processes which share the batches; None: this one alone
    :param events: folder of the event files
    """
    if not net.sinks:
        return None
    rank, size = (0, 1) if world is None else (world.rank, world.size)
    return Dump(net.sinks, RunInfo(dataset, epoch, rank, size, events))
