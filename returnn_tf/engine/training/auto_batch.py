"""``batch_size = "auto"``: the number of sequences of a batch, by length, with which a step of training fits.

Steps of the largest network of the run are tried with real sequences: memory grows linearly with the number of
sequences of one length, so two small steps tell how many fit, and one of that size confirms it.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.step_memory import Sizes, activation_bytes
from returnn_tf.config import Config
from returnn_tf.config.derived import overridden
from returnn_tf.config.errors import BatchError, SettingDataError, did_you_mean
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.datasets import Dataset, batch_options_from_config
from returnn_tf.datasets.config import auto_keys, without_auto
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.engine.checkpoints.model_dir import written_model
from returnn_tf.engine.data.batch_table import BatchTable, path_of, read
from returnn_tf.engine.distributed import start_checks
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.checks import MAX_PLANNED, needed_data, plan_of
from returnn_tf.engine.pretrain.schedule import EpochNetwork, NetworkSchedule
from returnn_tf.engine.support import device_memory, devices
from returnn_tf.engine.support.device_memory import DeviceMemory
from returnn_tf.engine.support.fingerprint import as_text, settings
from returnn_tf.engine.support.nonfinite import NonFiniteError
from returnn_tf.engine.support.step_errors import naming_sequences
from returnn_tf.engine.update import options as update_options
from returnn_tf.engine.update.update_guard import LossSpikeError, SkippedStepsError
from returnn_tf.logging.log import log
from returnn_tf.logging.text import bytes_text
from returnn_tf.util.lazy_tf import tf

#: The lengths of two successive rows differ by this factor: self-attention of sequences that are longer needs twice as
#: much for each.
_RATIO = math.sqrt(2)
_MAX_ROWS = 8
#: Sequences that are looked at, where their lengths are known and where they have to be read.
_LOOKED_AT, _READ = 100_000, 300
#: Bytes that the small steps may take by the estimate: enough to tell them from what varies otherwise.
_SMALL = 256 << 20
#: A step that does not fit is tried again with this share of its sequences.
_LESS = 0.8
#: The number of sequences grows by this factor at most from step to step, and until it gains less than 1 of these.
_STEP, _CLOSE = 8, 20
_UNLIMITED = (1 << 31) - 1
#: What the numbers depend on, beside the networks.
_SETTINGS = (
    "batch_size", "max_seqs", "max_seq_length", "inc_seq_length", "min_seq_length", "chunking", "window",
    "context_window", "extern_data", "mixed_precision", "float_dtype", "optimizer", "accum_grad_multiple_step",
    "jit_compile",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Lengths:
    """A row of the table before it is filled: the sequences or chunks up to a length.

    :param most_frames: of the longest key
    :param longest: by data key: the longest one, as its position in the corpus, and its frames by key
    :param count: how many there are in the corpus
    """

    most_frames: int
    longest: Mapping[str, tuple[int, Mapping[str, int]]]
    count: int

    def frames(self) -> dict[str, int]:
        """Return the frames of the longest sequence by data key: the size of a batch of these."""
        return {key: max(lengths[key] for _, lengths in self.longest.values()) for key in self.longest}


def with_known_batches(config: Config, world: World) -> tuple[Config, Optional[Trials]]:
    """Return the config of a training without "auto", and the trials by which its numbers are still to be found.

    There are no trials if ``batch_size`` has numbers, or if some are kept beside the model for the same networks and
    settings.

    :raises ConfigError: "auto" makes no sense with other settings
    :raises DataError: the kept numbers can't be read
    """
    if world.size > 1:  # before they do different things
        start_checks.check_same(world, {"settings": settings(config, ["batch_size"])})
    if not auto_keys(DataSettings(config).batch_size):
        return config, None
    _check(config)
    base = without_auto(config)
    entries = NetworkSchedule(base).distinct(1, TrainingSettings(config).num_epochs)[:MAX_PLANNED]
    found_for = settings(config, _SETTINGS)
    found_for["network"] = as_text([entry.layers for entry in entries])
    kept = _kept(config, world, found_for)
    if kept is not None:
        return kept.fixes(config), None
    return base, Trials(config, base, entries, found_for, world)


@dataclasses.dataclass(frozen=True)
class Trials:
    """The steps that are to be tried.

    :param config: that of the user, in which code of it reads settings
    :param base: that without "auto"
    :param entries: the networks of the run
    :param found_for: see `BatchTable`
    """

    config: Config
    base: Config
    entries: Sequence[EpochNetwork]
    found_for: Mapping[str, str]
    world: World

    def run(self, dataset: Dataset) -> tuple[Config, BatchTable]:
        """Return the config with the numbers that fit, with several processes on each of them; and the table to keep.

        :param dataset: the training data
        :raises ConfigError: "auto" makes no sense for this data or network
        :raises DataError: not even a single sequence fits
        """
        planned = [(entry, plan_of(entry)) for entry in self.entries]
        for _, plan in planned:
            for spec in plan.kept.values():
                raise BatchError(
                    "batch_size = 'auto': layer %r keeps its state from batch to batch, so all batches must have the "
                    "same number of sequences. Set batch_size and max_seqs to numbers." % spec.layer_path
                )
        for key in auto_keys(DataSettings(self.config).batch_size):
            if key and key not in dataset.data_keys:
                raise BatchError(
                    "%s: the dataset 'train' has no data key %r. %s"
                    % (
                        DataSettings(self.config).describe_source("batch_size"),
                        key,
                        did_you_mean(key, dataset.data_keys),
                    )
                )
        mine = _find(self.config, self.base, planned, dataset, self.world)
        found = self.world.gather([sorted(mine.max_seqs_by_length.items()), mine.device, mine.limit])
        common = smallest([dict(map(tuple, rows)) for rows, _, _ in found])
        table = BatchTable(common, found[0][1], min(limit for _, _, limit in found), self.found_for)
        return table.fixes(self.config), table


def smallest(tables: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the table with as many sequences for each length as all of these have, which end with the same length."""
    lengths = sorted({frames for table in tables for frames in table})
    return {frames: min(_at(table, frames) for table in tables) for frames in lengths}


def _at(table: Mapping[int, int], frames: int) -> int:
    return table[min(longest for longest in table if longest >= frames)]


def keep(table: Optional[BatchTable], config: Config, world: World) -> None:
    """Write what was found beside the model, and log it."""
    if table is None or not world.is_chief:
        return
    model = written_model(config)
    where = ""
    if model:
        table.write(path_of(model))
        where = " Kept in %s." % path_of(model)
    frames = [frames * count for frames, count in table.max_seqs_by_length.items()]
    batches = max(update_options.from_config(config).accum_grad_multiple_step, 1) * world.size
    log.write(
        2,
        "batch_size = 'auto': max_seqs_by_length = %r: batches of up to %s frames, %d per update. Choose learning_rate "
        "for that.%s"
        % (
            dict(table.max_seqs_by_length),
            max(frames) if len(frames) == 1 else "%d to %d" % (min(frames), max(frames)),
            batches,
            where,
        ),
    )


def _check(config: Config) -> None:
    """Check what else the config says about batches.

    :raises ConfigError: it leaves nothing to find
    """
    settings_of_data = DataSettings(config)
    where = settings_of_data.describe_source("batch_size")
    if settings_of_data.max_seqs == 1:
        raise BatchError("%s is 'auto', but max_seqs = 1 leaves nothing to find. Remove one of them." % where)
    if settings_of_data.max_seqs_by_length is not None:
        raise BatchError("%s is 'auto', which finds max_seqs_by_length, but that is set, too. Remove one." % where)


def _kept(config: Config, world: World, found_for: Mapping[str, str]) -> Optional[BatchTable]:
    """Return the table beside the model, as the chief reads it; None: there is none for these networks and settings."""
    model = written_model(config)
    table = read(path_of(model)) if model and world.is_chief else None
    if table is not None and table.found_for != found_for:
        log.write(2, "%s is for other networks or settings, so batch_size = 'auto' is found anew." % path_of(model))
        table = None
    sent = world.gather(None if table is None else dataclasses.asdict(table))[0]
    if sent is None:
        return None
    by_length = {int(frames): count for frames, count in sent["max_seqs_by_length"].items()}
    table = BatchTable(by_length, sent["device"], sent["limit"], sent["found_for"])
    if world.is_chief:
        log.write(
            2,
            "batch_size = 'auto': max_seqs_by_length = %r, kept in %s, found on %s with %s for steps. Remove the file "
            "to have it found again." % (by_length, path_of(model), table.device, bytes_text(table.limit)),
        )
    return table


def _find(
    config: Config, base: Config, planned: Sequence[tuple[EpochNetwork, Plan]], dataset: Dataset, world: World
) -> BatchTable:
    """Try steps on the device of this process.

    :param config: that of the user, in which code of it reads settings
    :param base: that without "auto"
    :param dataset: the training data
    """
    needed = {key: data for key, data in needed_data(list(planned)).items() if data.batch_axis is not None}
    # the last epoch has the longest sequences, with inc_seq_length
    options = batch_options_from_config(base, train=True, epoch=TrainingSettings(config).num_epochs)
    rows = rows_of(dataset, sorted(needed), options)
    entry, plan = max(planned, key=lambda each: _estimate(each[1], rows[-1], 1))
    devices.set_up(config)
    memory = device_memory.of_this_process(world.local_size)
    if world.is_chief:
        log.write(
            2,
            "batch_size = 'auto': trying steps of %s on %s, where %s are for steps"
            % (entry.name, memory.device, bytes_text(memory.limit)),
        )
    with overridden(config, entry.settings):
        trial = _Trial(entry, plan, dataset, {key: Declared.of(data) for key, data in needed.items()}, memory)
        trial.peak(rows[0], 1)  # makes the graph, which takes memory, too
        found = fill(rows, trial.peak, trial.estimate, memory.limit, DataSettings(config).max_seqs, world)
    del trial
    gc.collect()  # the network of the trials
    return BatchTable(found, memory.device, memory.limit, {})


def rows_of(dataset: Dataset, keys: Sequence[str], options: Mapping[str, Any]) -> list[Lengths]:
    """Return the rows of the table for the lengths of a dataset, in ascending order.

    :param keys: the data keys that the network needs
    :param options: of the batches, as the config sets them
    :raises ConfigError: the dataset does not tell lengths before it is read
    """
    if dataset.is_stream or dataset.num_seqs is None:
        raise BatchError(
            "batch_size = 'auto' needs the lengths of the training data, but %s is %s. Give batch_size a number of "
            "frames." % (dataset.described, "a stream" if dataset.is_stream else "endless")
        )
    total = dataset.num_seqs
    looked_at = min(total, _LOOKED_AT if dataset.knows_lengths else _READ)
    order = np.unique(np.linspace(0, total - 1, looked_at).astype("int64")).tolist()
    given = {"used_data_keys": [key for key in keys if key in dataset.data_keys], "max_seqs": -1, "seq_drop": 0.0}
    found = list(dataset.slice_lengths(1, order, **{**options, **given}))
    if not found:
        raise SettingDataError(
            "batch_size = 'auto': max_seq_length and min_seq_length leave no sequence of the dataset 'train'."
        )
    return _rows([(order[position], lengths) for position, lengths in found], total / len(order))


def _rows(found: Sequence[tuple[int, Mapping[str, int]]], weight: float) -> list[Lengths]:
    """Return the rows for sequences, each as its position in the corpus and its frames by key.

    :param weight: how many of the corpus each stands for
    """
    by_length = sorted(found, key=lambda each: max(each[1].values()))
    lengths = np.array([max(frames.values()) for _, frames in by_length])
    longest: dict[str, tuple[int, Mapping[str, int]]] = {}
    rows: list[Lengths] = []
    done = 0
    top = max(int(lengths[-1]), 1)
    for most in sorted({math.ceil(top / _RATIO**number) for number in range(_MAX_ROWS)}):
        end = int(np.searchsorted(lengths, most, side="right"))
        for each in by_length[done:end]:
            for key, frames in each[1].items():
                if key not in longest or frames > longest[key][1][key]:
                    longest[key] = each
        if end > done:
            rows.append(Lengths(int(lengths[end - 1]), dict(longest), math.ceil(end * weight)))
            done = end
    return rows


def _estimate(plan: Plan, row: Lengths, sequences: int) -> int:
    """Return the bytes of the activations of a step by the plan."""
    frames = row.frames()
    dims = {
        dim: frames[key]
        for key, data in plan.extern_data.items()
        for dim in data.dims
        if key in frames and dim.is_dynamic()
    }
    return activation_bytes(plan, Sizes(sequences, dims, row.most_frames))


def fill(
    rows: Sequence[Lengths],
    peak: Callable[[Lengths, int], Optional[int]],
    estimate: Callable[[Lengths], int],
    limit: int,
    max_seqs: Optional[int],
    world: World,
) -> dict[int, int]:
    """Return the largest number of sequences for each row for which a step fits.

    :param peak: row, number of sequences -> bytes at the peak of a step; None: they did not suffice
    :param estimate: row -> bytes of one sequence, about
    :param limit: bytes at the peak
    :param max_seqs: setting: another limit
    :raises DataError: a single sequence does not fit
    """
    found: dict[int, int] = {}
    enough = 0  # what fits of longer sequences fits of shorter ones
    for row in reversed(rows):
        most = row.count if max_seqs is None or max_seqs <= 0 else min(max_seqs, row.count)
        if most <= enough:
            continue
        world.heartbeat.long_phase("finding the size of batches")
        count, used = largest(functools.partial(peak, row), estimate(row), limit, most)
        if not count:
            raise SettingDataError(
                "batch_size = 'auto': a step of training with one sequence of %s does not fit into %s. Cut sequences "
                "with chunking, or leave out long ones with max_seq_length."
                % (" and ".join("%d frames of %r" % (n, key) for key, n in row.frames().items()), bytes_text(limit))
            )
        if world.is_chief:
            log.write(3, "  up to %d frames: %d sequences, %s" % (row.most_frames, count, bytes_text(used)))
        if count > enough:
            found[row.most_frames] = enough = count
    return dict(sorted(found.items()))


def largest(peak: Callable[[int], Optional[int]], estimate: int, limit: int, most: int) -> tuple[int, int]:
    """Return the largest number of sequences for which a step fits, and its peak; (0, 0) if not even one does.

    :param peak: number of sequences -> bytes at the peak of a step; None: they did not suffice
    :param estimate: bytes of one sequence
    :param limit: bytes that a peak may have
    :param most: the number to stop at
    """
    sizes: dict[int, float] = {}

    def fits(number: int) -> bool:
        if number not in sizes:
            used = peak(number)
            sizes[number] = math.inf if used is None else used
        return sizes[number] <= limit

    def wanted(fitting: int, other: int) -> int:
        """Return how many the limit allows by a line through two points."""
        each = max((sizes[other] - sizes[fitting]) / (other - fitting), 1)  # infinite without memory
        return fitting + int((limit - sizes[fitting]) / each)

    number = min(most, max(2, _SMALL // max(estimate, 1)))
    while not fits(number):
        if number == 1:
            return 0, 0
        number = max(1, int(number * _LESS / 2))
    smaller = number // 2
    if number == most or not smaller:
        return number, int(sizes[number])
    fits(smaller)
    while number + number // _CLOSE < (larger := min(most, _STEP * number, wanted(number, smaller))):
        if fits(larger):
            smaller, number = number, larger
            continue
        while larger > number and not fits(larger):
            between = wanted(number, larger)
            larger = min(between, larger - 1) if between > number else int(larger * _LESS)
        number = max(number, larger)
        break
    return number, int(sizes[number])


class _Trial:
    """Steps of a network with sequences of given lengths, as often as asked for."""

    def __init__(
        self, entry: EpochNetwork, plan: Plan, dataset: Dataset, declared: Mapping[str, Declared], memory: DeviceMemory
    ) -> None:
        self._plan, self._dataset, self._declared, self._memory = plan, dataset, declared, memory
        net = Network(plan, entry.config, seed=TrainingSettings(entry.config).random_seed)
        self._trainer = StepTrainer(net, entry.config, World())
        self._trainer.splits = False
        self._feeds: dict[int, tuple[dict[str, Any], Sequence[str]]] = {}

    def estimate(self, row: Lengths) -> int:
        """Return the bytes that one more sequence takes, by the plan."""
        return _estimate(self._plan, row, 2) - _estimate(self._plan, row, 1)

    def peak(self, row: Lengths, number: int) -> Optional[int]:
        """Return the peak of a step with a number of sequences; None: the memory did not suffice."""
        rows, tags = self._rows(row)
        feed = {name: np.resize(value, (number, *value.shape[1:])) for name, value in rows.items()}
        return self._memory.peak_of(lambda: self._step(feed, tags))

    def _step(self, feed: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Run a step; what it changes is not used.

        :raises DataError: an op failed, for another reason than memory
        """
        failed = None
        with naming_sequences("batch_size = 'auto'", tags):
            try:
                self._trainer.step(feed, 0.0)
            except (NonFiniteError, LossSpikeError, SkippedStepsError):
                pass
            except tf.errors.ResourceExhaustedError as exc:
                failed = exc
        if failed is not None:
            raise failed

    def _rows(self, row: Lengths) -> tuple[dict[str, Any], Sequence[str]]:
        """Return a feed with the longest sequences or chunks of a row, one for each data key; and their names."""
        if row.most_frames not in self._feeds:
            order = sorted({index for index, _ in row.longest.values()})
            keys = [*row.longest, *(key for key in self._declared if key not in row.longest)]
            options: dict[str, Any] = {"batch_size": _UNLIMITED, "max_seqs": -1, "used_data_keys": keys}
            (batch,) = self._dataset.batches(1, seq_order=order, declared=self._declared, **options)
            chosen = sorted({int(np.argmax(_sizes(batch.feed, key))) for key in row.longest})
            feed = {name: np.asarray(value)[chosen] for name, value in batch.feed.items()}
            self._feeds[row.most_frames] = feed, list(batch.seq_tags)
        return self._feeds[row.most_frames]


def _sizes(feed: Mapping[str, Any], key: str) -> Any:
    """Return the frames of each row of a feed."""
    value = np.asarray(feed[key])
    return feed.get("%s/size0" % key, np.full(value.shape[:1], value.shape[1] if value.ndim > 1 else 1))
