"""Further checks of several processes: how trainings end, and what they do with next to no data."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, Optional

import returnn_tf
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.stream import StreamDataset
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.step_boundary import StepBoundary
from tests.reliability import toy
from tests.reliability.ranks_checks import FOLDER, NETWORK, check


def train(world: Any, name: str, stop: Optional[StopRequest] = None, **settings: Any) -> dict[int, Any]:
    """Train the toy in a folder of its own.

    :return: learning rates and scores by epoch
    """
    folder = FOLDER.resolve() / name
    if world.is_chief and not folder.exists():
        toy.write_config(folder)
    world.barrier("config")
    os.chdir(folder)
    config = returnn_tf.Config.from_file("toy.config")
    config.update({"use_horovod": True, "network": NETWORK, **settings})
    with Engine(config, stop) as engine:
        engine.train()
    world.barrier("training")
    return toy.scores(folder)


def data(num_seqs: int, **options: Any) -> dict[str, Any]:
    """Return a dataset."""
    return {"class": "Task12AXDataset", "num_seqs": num_seqs, "fixed_random_seed": 1, **options}


@check
def check_stop_while_evaluating(world: Any) -> Any:
    """A signal comes to all while they evaluate: they do not wait for the end of that, and save if need be."""
    stop, batches = StopRequest(), 0
    original = StepBoundary.after_batch

    def after_batch(self: StepBoundary) -> None:
        nonlocal batches
        batches += 1
        if batches == 2 + world.rank:
            stop.signum = signal.SIGTERM
        original(self)

    StepBoundary.after_batch = after_batch  # type: ignore[method-assign]
    try:
        settings = {"train": data(4), "dev": data(80), "max_seqs": 1, "save_interval": 5, "chunking": None}
        train(world, "stopped", stop, **settings)
    except Stopped as exc:
        world.barrier("stopped")
        return [str(exc), batches, sorted(os.listdir("net")), toy.scores(FOLDER.resolve() / "stopped")[1][1]]
    finally:
        StepBoundary.after_batch = original  # type: ignore[method-assign]
    return ["not stopped", batches, [], {}]


@check
def check_fewer_sequences_than_ranks(world: Any) -> Any:
    """One sequence to train on, and one to evaluate: a rank has none of them."""
    few = {"train": data(1), "dev": data(1), "num_epochs": 2, "chunking": None}
    grad = train(world, "few", **few)
    param = train(world, "few_param", horovod_reduce_type="param", **few)
    return [sorted(found[2][1]) for found in (grad, param)]


class Stream(StreamDataset):
    """Sequences whose number shows at the end only."""

    def stream(self, epoch: int, **_: Any) -> Iterator[Example]:
        """Yield the sequences."""
        yield from Dataset.from_config(data(11)).sequences(epoch)


@check
def check_stream(world: Any) -> Any:
    """Train on a stream, whose number of sequences is known to no rank: tags that each has read, names of scores."""
    tags: dict[int, list[str]] = {}  # by number of the batch
    original = DataSource.batches

    def batches(self: DataSource, epoch: int, **options: Any) -> Iterator[Any]:
        for batch in original(self, epoch, **options):
            if self.name == "train":
                tags[batch.number] = batch.seq_tags
            yield batch

    DataSource.batches = batches  # type: ignore[method-assign]
    try:
        given = {"train": {"class": Stream}, "dev": data(3), "num_epochs": 1, "max_seqs": 1, "chunking": None}
        given["horovod_dataset_distribution"] = "shard"
        scores = train(world, "stream", **given)
    finally:
        DataSource.batches = original  # type: ignore[method-assign]
    return [[tag for found in tags.values() for tag in found], sorted(scores[1][1])]
