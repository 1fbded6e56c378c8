"""The parts of the check that compile, test and try out native ops, each run in a child process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from returnn_tf.cli.gpu_check.messages import print_row
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.cuda_toolchain import too_old, visible_archs
from returnn_tf.native.library import examine, load
from returnn_tf.native.sources import OPS
from returnn_tf.native.trials.measured import forget, verdict_on
from returnn_tf.native.trials.trial import Trial, numbers
from returnn_tf.ops.all_trials import TRIALS
from returnn_tf.ops.cells import run_cell, unit_class
from returnn_tf.util.lazy_tf import tf

_ROUNDS = 5
#: frames, sequences, units of the LSTM beside those of others
_LSTMS = ((50, 8, 512), (100, 64, 512), (100, 64, 1024))
_QUICK_LSTMS = ((10, 4, 32),)


def use(device: str) -> str:
    """Make the device the only one, and return its name."""
    if device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return "CPU:0"
    for gpu in tf.config.get_visible_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    return "GPU:0"


def compile_ops(device: str, quick: bool) -> None:
    """Compile all ops that have CUDA kernels, and run their self-tests."""
    use(device)
    for name in [name for name in OPS if OPS[name].cuda]:
        reason = too_old(visible_archs(), OPS[name].capability)
        if reason:
            print_row(op=name, left_out=reason)
            continue
        start = time.perf_counter()
        failure = examine(name)
        print_row(op=name, seconds=time.perf_counter() - start, failed=failure)


def try_ops(device: str, quick: bool) -> None:
    """Try out all ops at usual widths, against their forms for the CPU and in TensorFlow; the verdicts are recorded.

    Those for other widths are removed, so that nothing of former trials is left.
    """
    where = use(device)
    gpus = [gpu.name for gpu in tf.config.get_visible_devices("GPU")]
    begun: set[str] = set()
    broken: set[str] = set()
    archs = visible_archs()
    for trial, width, dtype in _trials(where, quick):
        if too_old(archs, OPS[trial.op].capability):
            continue
        row: dict[str, Any] = {"op": trial.name, "width": "%d %s" % (width, trial.width), "type": numbers(dtype, where)}
        if trial.op not in begun:
            begun.add(trial.op)
            try:
                self_test = OPS[trial.op].self_test
                assert self_test is not None
                load(trial.op, self_test)
                forget(trial, where)
            except NativeOpError as exc:
                broken.add(trial.op)
                print_row(op=trial.op, failed=str(exc))
        if trial.op in broken:
            continue
        try:
            verdict = verdict_on(trial, width, dtype, where, gpus, with_cpu=True, again=True)
        except NativeOpError as exc:
            print_row(**row, failed=str(exc))
            continue
        print_row(
            **row, failed=verdict.failure, difference=verdict.difference, from_cpu=verdict.from_cpu,
            native=verdict.native, plain=verdict.plain, used=verdict.is_used,
        )  # fmt: skip


def _trials(where: str, quick: bool) -> Iterator[tuple[Trial, int, str]]:
    for trial in TRIALS:
        widths = trial.widths[:1] if quick else trial.widths
        dtypes = ["float32"] if where.startswith("CPU") else trial.dtypes
        yield from ((trial, width, dtype) for width in widths for dtype in dtypes)


def compare_lstms(device: str, quick: bool) -> None:
    """Time a training step of a whole LSTM layer, also with cuDNN by Keras, and with PyTorch if it is installed."""
    where = use(device)
    for size in _QUICK_LSTMS if quick else _LSTMS:
        for name, make in (
            ("returnn_tf", _our_lstm),
            ("Keras (cuDNN on a GPU)", _keras_lstm),
            ("PyTorch", _torch_lstm),
        ):
            row: dict[str, Any] = {"layer": "LSTM, %d frames x %d sequences, %d units" % size, "by": name}
            try:
                print_row(**row, ms=_milliseconds(make(where, *size)))
            except ModuleNotFoundError as exc:
                print_row(**row, left_out=str(exc))
            except Exception as exc:  # of another program
                print_row(**row, failed="%s: %s" % (type(exc).__name__, (str(exc) or "no message").splitlines()[0]))


def _milliseconds(step: Callable[[], Any]) -> float:
    step()
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _input(frames: int, batch: int, units: int) -> Any:
    return np.random.RandomState(1).normal(0, 1, (frames, batch, units)).astype("float32")


def _our_lstm(where: str, frames: int, batch: int, units: int) -> Callable[[], Any]:
    cell, rng = unit_class("lstm")(units, units), np.random.RandomState(2)
    with tf.device(where):
        params = [
            tf.constant(rng.normal(0, units**-0.5, spec.shape), tf.float32) for spec in cell.param_specs()
        ]  # fmt: skip
    names = [spec.name for spec in cell.param_specs()]
    return _tf_step(
        where, _input(frames, batch, units), params, lambda x: run_cell(cell, dict(zip(names, params)), x, None)[0]
    )


def _keras_lstm(where: str, frames: int, batch: int, units: int) -> Callable[[], Any]:
    with tf.device(where):
        layer = tf.keras.layers.LSTM(units, return_sequences=True)
        x = _input(batch, frames, units)  # the batch is the first axis
        layer(x)
    weights = [weight.value for weight in layer.trainable_weights]
    return _tf_step(where, x, weights, lambda x: layer(x, training=True))


def _tf_step(where: str, x: Any, params: Any, layer: Callable[[Any], Any]) -> Callable[[], Any]:
    def forward_and_backward(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, *params])
            loss = tf.reduce_sum(layer(x))
        grads = tape.gradient(loss, [x, *params])
        return tf.add_n([tf.reduce_sum(grad) for grad in grads])

    traced = tf.function(forward_and_backward, autograph=False)
    with tf.device(where):
        on_device = tf.constant(x)

    def step() -> Any:
        with tf.device(where):
            return traced(on_device).numpy()

    return step


def _torch_lstm(where: str, frames: int, batch: int, units: int) -> Callable[[], Any]:
    import torch

    device = "cpu" if where.startswith("CPU") else "cuda"
    layer = torch.nn.LSTM(units, units).to(device)
    x = torch.from_numpy(_input(frames, batch, units)).to(device).requires_grad_()

    def step() -> Any:
        layer.zero_grad()
        loss = layer(x)[0].sum()
        loss.backward()
        return sum(float(part.grad.sum()) for part in (x, *layer.parameters()))

    return step
