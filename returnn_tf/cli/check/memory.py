"""``returnn-tf check --memory``: what a step of training needs, estimated from the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.step_memory import Sizes, activation_bytes, item_bytes, params_bytes
from returnn_tf.config import Config
from returnn_tf.config.settings.data import AUTO, DataSettings
from returnn_tf.engine.update import options as update_options
from returnn_tf.engine.update.averages import options_of as averages_of
from returnn_tf.engine.update.optimizers import create_optimizer
from returnn_tf.logging.text import bytes_text
from returnn_tf.tensor import Dim

#: Frames of the sequences of a row.
_LENGTHS = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclasses.dataclass(frozen=True)
class Row:
    """A batch of sequences of one length.

    :param frames: of a sequence
    :param sequences: as many as ``batch_size`` and ``max_seqs`` allow
    :param activations: bytes that the backward pass reads
    :param step: bytes of all
    """

    frames: int
    sequences: int
    activations: int
    step: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """The estimate, in bytes.

    :param optimizer: its slots, accumulated gradients, and averages of the parameters
    """

    parameters: int
    gradients: int
    optimizer: int
    rows: list[Row]

    @property
    def constant(self) -> int:
        """Return the bytes that do not depend on the batch."""
        return self.parameters + self.gradients + self.optimizer

    def record(self) -> dict[str, Any]:
        """Return the entry of the JSON document."""
        return {**dataclasses.asdict(self), "rows": [dataclasses.asdict(row) for row in self.rows]}

    def table(self) -> str:
        """Return it as text."""
        lines = [
            "memory of a step of training, estimated: parameters %s, gradients %s, optimizer %s"
            % tuple(map(bytes_text, (self.parameters, self.gradients, self.optimizer))),
            "%10s %10s %12s %12s" % ("frames", "sequences", "activations", "step"),
        ]
        cells = [(row.frames, row.sequences, bytes_text(row.activations), bytes_text(row.step)) for row in self.rows]
        return "\n".join([*lines, *("%10d %10d %12s %12s" % row for row in cells)])


def estimate(plan: Plan, config: Config) -> Memory:
    """Return the memory for batches of some lengths; other data keys are as long as the limits of the config let them.

    :param plan: for training
    :param config: of this network
    """
    trainable = params_bytes(plan, trainable=True)
    optimizer = _optimizer_bytes(plan, config)
    constant = params_bytes(plan) + trainable + optimizer
    rows = []
    for frames, sequences, sizes in _batches(plan, DataSettings(config)):
        kept = activation_bytes(plan, sizes)
        rows.append(Row(frames, sequences, kept, constant + kept))
    return Memory(params_bytes(plan), trainable, optimizer, rows)


def _optimizer_bytes(plan: Plan, config: Config) -> int:
    """Return the bytes of slots, accumulated gradients and averages."""
    specs = plan.params
    names = [name for name, spec in specs.items() if spec.trainable]
    found = update_options.options_of_params(plan, update_options.from_config(config), names)
    averages = averages_of(config).decay is not None
    size = 0
    for name, options in found.items():
        spec = specs[name]
        optimizer = create_optimizer(dict(options.optimizer), where="optimizer of parameter %r" % name)
        numbers = optimizer.numbers_kept(spec.shape) + spec.size * (averages + (options.accum_grad_multiple_step > 1))
        size += numbers * item_bytes(spec.dtype)
    return size


def _batches(plan: Plan, settings: DataSettings) -> Iterator[tuple[int, int, Sizes]]:
    """Yield (frames, sequences, sizes) of the largest batches of sequences of some lengths."""
    dims = {key: [dim for dim in data.dims if dim.is_dynamic()] for key, data in plan.extern_data.items()}
    keys = [key for key, found in dims.items() if found]
    frames_of = {key: _limit(settings.batch_size, key) for key in keys}
    longest = {key: _limit(settings.max_seq_length, key) for key in keys}
    most = -1 if settings.max_seqs is None else settings.max_seqs
    by_length = sorted((settings.max_seqs_by_length or {}).items())
    last = 0
    for wanted in _LENGTHS:
        lengths = {key: min(wanted, longest[key] or wanted, frames_of[key] or wanted) for key in keys}
        frames = max(lengths.values(), default=wanted)
        if frames == last:  # the limits allow no longer ones
            return
        last = frames
        limits = [(frames_of[key] or 0) // lengths[key] for key in keys if frames_of[key]]
        limits += [most] if most > 0 else []
        if by_length:
            limits.append(next((count for longest_one, count in by_length if frames <= longest_one), 1))
        sequences = max(1, min(limits, default=1))
        by_dim: dict[Dim, int] = {dim: lengths[key] for key in keys for dim in dims[key]}
        yield frames, sequences, Sizes(sequences, by_dim, frames)


def _limit(given: Any, key: str) -> Optional[int]:
    """Return the limit of a data key, of a number or a dict; None: there is none."""
    if isinstance(given, Mapping):
        given = given.get(key)
    if given == AUTO:
        return None
    if isinstance(given, (int, float)) and given < 0:
        given = -given if key == "classes" else None
    return int(given) if given and given < float("inf") else None
