"""Trials of a native op against its form in TensorFlow: the same results, and not slower, on one device at one size.

Whoever chooses between both forms declares a trial beside them, as a constant of its module, and asks
`returnn_tf.native.trials.measured.pays` before it takes the native one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import exact_products
from returnn_tf.util.lazy_tf import tf

#: Sequences of a batch: few, and as many as fill a GPU. An op has to be as fast as its form in TensorFlow for both.
BATCHES = (8, 64)
#: Frames of a sequence.
FRAMES = 50
#: The largest difference between results, in proportion to the largest number of a result.
TOLERANCES = {"float32": 1e-3, "tf32": 2e-2, "float16": 2e-2, "bfloat16": 1e-1}

_ROUNDS = 5
#: Seconds that a form runs in a round.
_SECONDS = 0.02
_MOST_RUNS = 50

Clock = Callable[[], float]


@dataclass(frozen=True)
class Size:
    """Sizes of the inputs of a trial."""

    frames: int
    batch: int
    width: int
    dtype: str


@dataclass(frozen=True)
class Case:
    """Inputs, and both forms.

    :param inputs: float arrays, for which there are gradients if ``has_gradients``
    :param native: takes the module of the ops, and the inputs as float32 tensors, which it casts to the type of the
        trial if that is another one; returns tensors of float32
    :param plain: takes the inputs as float32 tensors, and returns such tensors; in TensorFlow, with products in float32
        whatever the type of the trial, or in this type where that is what would be used
    """

    inputs: Sequence[NDArray[Any]]
    native: Callable[..., Sequence[tf.Tensor]]
    plain: Callable[..., Sequence[tf.Tensor]]
    has_gradients: bool = True


@dataclass(frozen=True)
class Trial:
    """A native op with its form in TensorFlow.

    :param name: of the function that has both forms
    :param op: name of the native op
    :param module: where this is a constant
    :param constant: its name there
    :param case: makes the inputs
    :param width: what the width of a `Size` is, for people
    :param widths: usual ones, for `returnn-tf doctor --gpu`
    :param dtypes: types that have kernels on a GPU
    """

    name: str
    op: str
    module: str
    constant: str
    case: Callable[[Size], Case]
    width: str
    widths: Sequence[int] = (64, 512, 1024)
    dtypes: Sequence[str] = ("float32",)


@dataclass(frozen=True)
class Verdict:
    """The outcome of a trial.

    :param failure: why the op is wrong or can't run; "" if it gives the results of the form in TensorFlow
    :param difference: the largest one, in proportion to the largest number of a result
    :param native: milliseconds of a call with its gradient, for each of `BATCHES`
    :param plain: those of the form in TensorFlow
    :param from_cpu: like ``difference``, from the kernels for the CPU; None if they were not compared
    """

    failure: str = ""
    difference: float = 0.0
    native: tuple[float, ...] = ()
    plain: tuple[float, ...] = ()
    from_cpu: Optional[float] = None

    @property
    def is_used(self) -> bool:
        """Return whether the op was right, and for no batch slower."""
        return not self.failure and all(native <= plain for native, plain in zip(self.native, self.plain))

    @property
    def text(self) -> str:
        """Return the outcome in a few words."""
        if self.failure:
            return "wrong: %s" % self.failure
        times = " and ".join("%.3g against %.3g ms" % pair for pair in zip(self.native, self.plain))
        return "%s (%s in TensorFlow)" % ("used" if self.is_used else "slower", times)

    def as_json(self) -> dict[str, Any]:
        """Return the fields, for a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Any) -> Optional[Verdict]:
        """Return what `as_json` gave; None if it is something else, such as the record of another version."""
        if not isinstance(found, dict) or set(found) != {field.name for field in fields(cls)}:
            return None
        times = [found["native"], found["plain"]]
        if not all(isinstance(side, list) and all(isinstance(t, float) for t in side) for side in times):
            return None
        return cls(**{**found, "native": tuple(times[0]), "plain": tuple(times[1])})


def numbers(dtype: str, device: str) -> str:
    """Return the type of the products of a trial, as records name it: TF32 is a setting of TensorFlow, not a type."""
    tf32 = dtype == "float32" and not device.startswith("CPU")
    return "tf32" if tf32 and tf.config.experimental.tensor_float_32_execution_enabled() else dtype


def try_out(
    trial: Trial,
    ops: Any,
    width: int,
    dtype: str,
    device: str,
    *,
    with_cpu: bool = False,
    clock: Clock = time.perf_counter,
) -> Verdict:
    """Compare and time both forms.

    :param ops: the module of the native op
    :param device: "GPU:0", or "CPU:0"
    :param with_cpu: compare with the native op on the CPU, too (float32)
    """
    compared, kind = with_cpu and dtype == "float32", numbers(dtype, device)
    worst = worst_tf32 = from_cpu = 0.0
    times: list[list[float]] = []
    for batch in BATCHES:
        case = trial.case(Size(FRAMES, batch, width, dtype))
        native, plain = (_step(form, case) for form in (partial(case.native, ops), case.plain))
        sides = [_on_device(step, case, device) for step in (native, plain)]
        with exact_products():
            ours, expected = map(_results, sides)
            worst = max(worst, difference(ours, expected))
            if compared:
                from_cpu = max(from_cpu, difference(ours, _results(_on_device(native, case, "CPU:0"))))
        if worst <= TOLERANCES[dtype] and kind == "tf32":  # another kernel, with the products of the training
            worst_tf32 = max(worst_tf32, difference(_results(sides[0]), expected))
        for found, limit, other in [
            (worst, dtype, "form in TensorFlow"),
            (worst_tf32, "tf32", "form in TensorFlow, with products in TF32,"),
            (from_cpu, dtype, "kernel for the CPU"),
        ]:
            if not found <= TOLERANCES[limit]:
                return Verdict("its results differ from those of its %s by %.1e" % (other, found), found)
        times.append(time_in_turn([partial(_wait_for, side) for side in sides], clock))
    ours_ms, plain_ms = (tuple(pair[side] for pair in times) for side in range(2))
    return Verdict("", worst, ours_ms, plain_ms, from_cpu if compared else None)


def difference(ours: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> float:
    """Return the largest difference, in proportion to the largest number of a result; infinite if one is NaN."""
    worst = 0.0
    for one, other in zip(ours, expected):
        if one.shape != other.shape or not np.isfinite(one).all():
            return float("inf")
        if one.size:
            worst = max(worst, float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-6)))
    return worst


def time_in_turn(sides: Sequence[Callable[[], Any]], clock: Clock = time.perf_counter) -> list[float]:
    """Return the milliseconds of a call of each function, which take turns: the least of some rounds.

    The least, since other programs can only make a round longer.
    """
    runs = []
    for side in sides:
        side()  # compiled, and memory taken
        start = clock()
        side()
        runs.append(int(min(max(_SECONDS / max(clock() - start, 1e-6), 1), _MOST_RUNS)))
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(_ROUNDS):
        for side, count, taken in zip(sides, runs, times):
            start = clock()
            for _ in range(count):
                side()
            taken.append(1e3 * (clock() - start) / count)
    return [min(taken) for taken in times]


def _step(form: Callable[..., Sequence[tf.Tensor]], case: Case) -> Callable[..., Any]:
    """Return a traced function of the inputs: results and gradients, and a number that depends on all of them."""

    def step(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            results = list(form(*inputs))
            loss = tf.add_n([tf.reduce_sum(y * _weights(y)) for y in results])
        if case.has_gradients:
            results += tape.gradient(loss, inputs)
        return results, tf.add_n([tf.reduce_sum(y) for y in results])

    traced: Callable[..., Any] = tf.function(step, autograph=False)
    return traced


def _weights(y: tf.Tensor) -> tf.Tensor:
    """Return factors between -1 and 1, another one for each entry, so that no part of a gradient is left out."""
    return tf.reshape(tf.sin(tf.range(tf.cast(tf.size(y), tf.float32))), tf.shape(y))


def _on_device(step: Callable[..., Any], case: Case, device: str) -> Callable[[], Any]:
    """Return the step with its inputs in the memory of a device."""
    with tf.device(device):
        inputs = [tf.constant(x, tf.float32) for x in case.inputs]

    def run() -> Any:
        with tf.device(device):
            return step(*inputs)

    return run


def _wait_for(run: Callable[[], Any]) -> None:
    """Run a step until the device has computed everything."""
    run()[1].numpy()


def _results(run: Callable[[], Any]) -> list[NDArray[Any]]:
    return [y.numpy() for y in run()[0]]


def draw(*arrays: tuple[float, Sequence[int]]) -> list[NDArray[Any]]:
    """Return normally distributed float32 arrays, the same in each call.

    :param arrays: standard deviation and shape of each
    """
    rng = np.random.default_rng(1)
    return [np.float32(scale) * rng.standard_normal(shape, "float32") for scale, shape in arrays]


def ragged(size: Size) -> NDArray[Any]:
    """Return lengths int32 [batch], from all frames down to half of them."""
    return np.linspace(size.frames, (size.frames + 1) // 2, size.batch).round().astype("int32")


def in_type(form: Callable[..., Sequence[tf.Tensor]], dtype: str) -> Callable[..., Sequence[tf.Tensor]]:
    """Return the native form of a `Case`, given one that takes and returns tensors of another type than float32.

    :param form: takes the module of the ops, and tensors
    """

    def native(ops: Any, *inputs: tf.Tensor) -> list[tf.Tensor]:
        return [tf.cast(y, tf.float32) for y in form(ops, *(tf.cast(x, dtype) for x in inputs))]

    return native
