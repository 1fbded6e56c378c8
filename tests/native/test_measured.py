"""Which native ops are used on a GPU: trials, verdicts, their records. GPUs are CPUs here, or not there."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from returnn_tf.native import library, self_test
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu import card, gpu_test
from returnn_tf.native.sources import OPS
from returnn_tf.native.trials import measured
from returnn_tf.native.trials import process as trial_process
from returnn_tf.native.trials import trial as trials
from returnn_tf.native.trials.trial import Case, Size, Trial, Verdict, difference, time_in_turn, try_out
from returnn_tf.ops.all_trials import TRIALS
from returnn_tf.ops.cells.lstm import LSTM_TRIAL, NativeLstm
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.python_child import python_command
from tests.waiting import LONG

CARD = "H200 (sm_90), driver 550.54"
FASTER = Verdict("", 1e-6, (1.0, 2.0), (1.5, 2.0))
SLOWER = Verdict("", 1e-6, (1.0, 2.1), (1.5, 2.0))
WRONG = Verdict("its results differ from those of its form in TensorFlow by inf")


class Gpu:
    name = "/physical_device:GPU:0"


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """Make a GPU visible, and return the path of an op that seems to be compiled for it."""
    path = str(tmp_path / "rtf_lstm.so")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Gpu()])
    monkeypatch.setattr(measured, "library_path", lambda name: path)
    monkeypatch.setattr(measured, "card_in_use", lambda: CARD)
    _restart(monkeypatch)
    return path


def _restart(monkeypatch):
    """Forget what only this process knows."""
    monkeypatch.setattr(measured, "_known", {})
    monkeypatch.setattr(measured, "_refused", set())


@pytest.fixture
def child(monkeypatch):
    """Set what the process of a trial does, and return how often one was started, with its arguments."""
    calls = []

    def does(code):
        def command(_, *arguments):
            calls.append(arguments)
            return [sys.executable, "-c", code]

        monkeypatch.setattr(gpu_test, "python_command", command)
        return calls

    return does


def _says(verdict):
    return "print(%r)" % measured.verdict_line(verdict)


def lstm_pays(width=512, dtype="float32"):
    return measured.pays(LSTM_TRIAL, width, tf.as_dtype(dtype))


def test_all_ops_for_gpus_have_a_trial():
    assert {trial.op for trial in TRIALS} == {name for name in OPS if OPS[name].cuda}
    for trial in TRIALS:
        assert getattr(sys.modules[trial.module], trial.constant) is trial
    assert len({trial.name for trial in TRIALS}) == len(TRIALS)


@pytest.mark.parametrize("name", [name for name in OPS if OPS[name].cuda])
def test_all_ops_for_gpus_have_tests_there(name):
    """Those for the CPU, by the fixture `device`."""
    path = os.path.join(os.path.dirname(__file__), "test_%s.py" % name)
    with open(path, encoding="utf8") as f:
        assert '@pytest.mark.usefixtures("device")' in f.read()


def test_without_a_gpu_nothing_is_measured(child):
    calls = child("raise SystemExit(1)")
    assert lstm_pays() and not calls


@pytest.mark.parametrize(
    "verdict, used, told",
    [
        (FASTER, True, ""),
        (SLOWER, False, "is slower (1 against 1.5 ms and 2.1 against 2 ms in TensorFlow) on this GPU"),
        (WRONG, False, "is wrong: its results differ from those of its form in TensorFlow by inf on this GPU"),
    ],
    ids=["faster", "slower", "wrong"],
)
def test_a_verdict_is_kept(on_gpu, child, caplog, monkeypatch, verdict, used, told):
    """The first use tries the op out; later ones, also of other processes, read the record."""
    calls = child(_says(verdict))
    caplog.set_level(logging.INFO)
    for _ in range(2):
        assert lstm_pays() == lstm_pays() == used
        _restart(monkeypatch)
    assert len(calls) == 1 and calls[0][1:4] == ("512", "float32", "GPU:0")
    lines = [record.getMessage() for record in caplog.records if "is used" in record.getMessage()]
    expected = "The native op for lstm, width 512, tf32 %s: its form in TensorFlow is used." % told
    assert lines == ([expected] * 2 if told else [])  # once for each process
    assert measured.verdicts(on_gpu, CARD) == {"lstm 512 tf32": verdict}


@pytest.mark.parametrize("change", ["width", "type", "tf32", "card", "library", "forms", "again", "forgotten"])
def test_what_needs_a_new_trial(on_gpu, child, monkeypatch, change):
    calls = child(_says(FASTER))
    assert lstm_pays()
    if change == "card":
        monkeypatch.setattr(measured, "card_in_use", lambda: "H200 (sm_90), driver 570.1")
    elif change == "library":
        monkeypatch.setattr(measured, "library_path", lambda name: on_gpu + "2")
    elif change == "forms":  # of the Python code
        measured._known.clear()
        monkeypatch.setattr(measured, "_version_of_forms", lambda: "another")
    elif change == "forgotten":
        measured._known.clear()
        measured.forget(LSTM_TRIAL, "GPU:0")
        measured.forget(LSTM_TRIAL, "GPU:0")  # there is nothing left to remove
    elif change == "tf32":
        monkeypatch.setattr(tf.config.experimental, "tensor_float_32_execution_enabled", lambda: False)
    elif change == "again":
        measured.verdict_on(LSTM_TRIAL, 512, "float32", "GPU:0", [], again=True)
    assert lstm_pays({"width": 500}.get(change, 512), {"type": "bfloat16"}.get(change, "float32"))
    assert len(calls) == 2


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS], ids=lambda number: number.name)
def test_a_process_that_crashes_is_a_verdict(on_gpu, child, monkeypatch, number):
    """So that it is not repeated at each start."""
    calls = child("import os; os.kill(os.getpid(), %d)" % number)
    for _ in range(2):
        assert not lstm_pays()
        _restart(monkeypatch)
    text = "wrong: on the GPU: its test was ended by %s (no message)" % number.name
    assert len(calls) == 1 and [verdict.text for verdict in measured.verdicts(on_gpu, CARD).values()] == [text]


@pytest.mark.parametrize(
    "code, text",
    [
        ("import os; os.kill(os.getpid(), 15)", "on the GPU: its test was ended by SIGTERM (no message)"),
        ("import os; os.kill(os.getpid(), 9)", "on the GPU: its test was ended by SIGKILL (no message)"),
        ("import os; os.kill(os.getpid(), 10)", "on the GPU: its test was ended by SIGUSR1 (no message)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("pass", "its process said nothing"),
    ],
    ids=["scheduler", "memory", "warning", "import", "silence"],
)
def test_what_says_nothing_about_the_op(on_gpu, child, monkeypatch, caplog, code, text):
    """This run does without it, in all of its layers; the next one tries it out."""
    calls = child(code)
    for _ in range(2):
        assert not lstm_pays() and not lstm_pays()
        _restart(monkeypatch)
    assert len(calls) == 2 and measured.verdicts(on_gpu, CARD) == {}
    told = "lstm, width 512, tf32 can't be tried out on this GPU (%s): its form in TensorFlow is used." % text
    assert caplog.text.count(told) == 2


def test_a_cache_that_is_read_only(on_gpu, child, monkeypatch, caplog):
    calls = child(_says(FASTER))
    caplog.set_level(logging.INFO)

    def read_only(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(measured, "Temporary", read_only)
    assert lstm_pays() and lstm_pays() and lstm_pays(500)
    told = "can't be kept in %s (Read-only file system)" % os.path.dirname(os.path.dirname(on_gpu))
    assert len(calls) == 2 and caplog.text.count(told) == 1


def test_several_processes_decide_alike(tmp_path):
    """Of those that ask at once, one tries the op out, and the others wait for its verdict."""
    code = (
        "import sys, time; from returnn_tf.native.trials import measured\n"
        "from returnn_tf.native.trials.trial import Verdict\n"
        "from returnn_tf.native.gpu import card\n"
        "measured.library_path = lambda name: sys.argv[1]; measured.cpu_as_card = lambda: 'card'\n"
        "class Trial: name, op = 'twice', 'twice'\n"
        "def try_out(*_):\n"
        "    print('tried'); time.sleep(0.2); return Verdict('', 0.0, (time.monotonic(),), (0.0,))\n"
        "measured._try_out = try_out\n"
        "print(measured.verdict_on(Trial, 5, 'float32', 'CPU:0', []).native)\n"
    )
    processes = [
        subprocess.Popen(python_command(code, str(tmp_path / "x.so")), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=LONG)[0].split() for process in processes]
    assert sorted(map(len, said)) == [1, 2] and len({lines[-1] for lines in said}) == 1


def test_a_trial_that_hangs(on_gpu, child, monkeypatch):
    child("import time; time.sleep(1000)")
    monkeypatch.setattr(measured, "_SECONDS", 0.3)
    assert not lstm_pays()
    assert "did not end within 0.3 seconds" in measured.verdicts(on_gpu, CARD)["lstm 512 tf32"].failure


@pytest.mark.parametrize("memory", [True, False])
def test_a_gpu_for_one_process_only(on_gpu, child, monkeypatch, caplog, memory):
    """Then the op is tried out in this one. Lack of memory says nothing about it, and is not recorded."""
    child("print('CUDA_ERROR_DEVICE_UNAVAILABLE'); raise SystemExit(%d)" % gpu_test.NO_GPU)

    def try_here(*_, **__):
        if not memory:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return FASTER

    monkeypatch.setattr(measured, "load_library", lambda path: None)
    monkeypatch.setattr(measured, "try_out", try_here)
    assert lstm_pays() == memory
    assert bool(measured.verdicts(on_gpu, CARD)) == memory
    told = "can't be tried out on this GPU (the GPU has not enough free memory): its form in TensorFlow is used."
    assert (told in caplog.text) == (not memory)


def test_a_width_that_is_not_known(on_gpu, child):
    calls = child(_says(FASTER))
    assert not lstm_pays(None) and not calls


@pytest.mark.parametrize("content", ["", "{", "[]", '{"card": "another", "trials": {}}', '{"card": %r}' % CARD])
def test_a_damaged_record_is_made_again(on_gpu, child, content):
    calls = child(_says(FASTER))
    assert lstm_pays()
    (record,) = [path for path in os.listdir(os.path.dirname(on_gpu)) if ".trials" in path]
    with open(os.path.join(os.path.dirname(on_gpu), record), "w", encoding="utf8") as f:
        f.write(content)
    assert measured.verdicts(on_gpu, CARD) == {}
    measured._known.clear()
    assert lstm_pays() and len(calls) == 2 and measured.verdicts(on_gpu, CARD) == {"lstm 512 tf32": FASTER}


def test_a_verdict_of_another_version_does_not_count():
    as_json = json.loads(json.dumps(SLOWER.as_json()))
    assert Verdict.from_json(as_json) == SLOWER
    assert Verdict.from_json({**as_json, "more": 1}) is None
    assert Verdict.from_json({**as_json, "native": ["x"]}) is None
    assert Verdict.from_json({**as_json, "native": 1.0}) is None
    assert Verdict.from_json(None) is None


def test_a_layer_asks(on_gpu, child, monkeypatch):
    """With a GPU on which the op is slower, a cell has no native kernel."""
    monkeypatch.setattr("returnn_tf.ops.cells.lstm.lstm_ops", lambda dtype: object())
    child(_says(SLOWER))
    assert NativeLstm(512, 7).native_kernel(tf.float32) is None
    child(_says(FASTER))
    assert NativeLstm(500, 7).native_kernel(tf.float32) is not None


class Timer:
    """A clock that the functions under test move on."""

    now = 0.0

    def __call__(self):
        return self.now

    def taking(self, *seconds):
        left = list(seconds)

        def run():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_times_are_the_least_of_some_rounds():
    """The first call compiles; others may be disturbed."""
    clock = Timer()
    assert time_in_turn([clock.taking(9, 0.1, 0.1, 5, 0.1), clock.taking(3, 0.2)], clock) == pytest.approx([100, 200])
    assert time_in_turn([clock.taking(1e-4)], clock) == pytest.approx([0.1])


def test_differences():
    one = np.array([1.0, -4.0])
    assert difference([one], [one]) == 0
    assert difference([one + [0, 0.04]], [one]) == pytest.approx(0.01)
    for wrong in ([1.0, np.nan], [1.0, np.inf], [1.0]):
        assert difference([np.array(wrong)], [one]) == np.inf
    assert difference([np.zeros([0, 2])], [np.zeros([0, 2])]) == 0


def _twice(factor=2.0, gradient=2.0):
    def case(size: Size) -> Case:
        @tf.custom_gradient
        def native(x):
            return x * factor, lambda dy: dy * gradient

        inputs = trials.draw((1.0, (size.batch, size.width)))
        return Case(inputs, lambda ops, x: [native(x)], lambda x: [x + x])

    return Trial("twice", "twice", __name__, "_", case, "columns")


@pytest.fixture
def quick(monkeypatch):
    """Let trials be short."""
    monkeypatch.setattr(trials, "BATCHES", (2, 3))
    monkeypatch.setattr(trials, "FRAMES", 4)
    monkeypatch.setattr(trials, "_ROUNDS", 1)
    monkeypatch.setattr(trials, "_SECONDS", 0.0)


@pytest.mark.parametrize("factor, gradient", [(2.01, 2.0), (2.0, 2.01), (np.nan, 2.0)])
def test_wrong_values_and_wrong_gradients(quick, factor, gradient):
    right = try_out(_twice(), None, 5, "float32", "CPU:0", with_cpu=True)
    assert not right.failure and len(right.native) == len(right.plain) == 2 and right.from_cpu == 0
    wrong = try_out(_twice(factor, gradient), None, 5, "float32", "CPU:0")
    assert not wrong.is_used and "differ from those of its form in TensorFlow by" in wrong.failure
    assert try_out(_twice(2.01), None, 5, "bfloat16", "CPU:0").failure == ""  # within its precision


def test_products_in_tf32_are_compared_too(quick, monkeypatch):
    """They have kernels of their own; the limit is that of their precision."""
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled

    def case(error):
        def native(ops, x):
            return [x * tf.numpy_function(lambda: np.float32(1 + error * tf32()), [], tf.float32)]

        return lambda size: Case(trials.draw((1.0, (size.batch,))), native, lambda x: [x * 1.0])

    monkeypatch.setattr(trials, "numbers", lambda dtype, device: "tf32")
    for error, failure in (
        (0.0, ""),
        (0.01, ""),
        (0.05, "its results differ from those of its form in TensorFlow, with products in TF32, by"),
    ):
        verdict = try_out(dataclasses.replace(_twice(), case=case(error)), None, 5, "float32", "CPU:0")
        assert verdict.failure.startswith(failure) and bool(verdict.failure) == bool(failure)


@pytest.mark.slow
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_each_trial(quick, device, trial):
    """Both forms of every op agree, with their gradients; attention, on a GPU all ops, in all types of the trial.

    Those for a GPU agree with the kernels for the CPU, too.
    """
    gpu = device.startswith("GPU")
    ops = library.load(trial.op, OPS[trial.op].self_test)
    for dtype in trial.dtypes if gpu or trial.op == "attention" else ("float32",):
        verdict = try_out(trial, ops, 6, dtype, device, with_cpu=gpu)
        assert verdict.failure == ""
        if dtype == "float32":
            assert max(verdict.difference, verdict.from_cpu or 0.0) < 2e-4
        else:
            assert verdict.difference > 1e-4
    if trial is TRIALS[0]:
        bad = dataclasses.replace(trial, case=lambda size: _spoilt(trial.case(size)))
        assert try_out(bad, ops, 6, "float32", device).failure


def _spoilt(case):
    return dataclasses.replace(case, native=lambda ops, *inputs: case.native(ops, inputs[0] * 1.01, *inputs[1:]))


@pytest.mark.slow
def test_the_real_process(tmp_path, monkeypatch):
    """From the question to the record, with the CPU in place of a GPU."""
    _restart(monkeypatch)
    library.load("chunk", OPS["chunk"].self_test)
    path = tmp_path / "rtf_chunk.so"
    path.symlink_to(library.library_path("chunk"))
    monkeypatch.setattr(measured, "library_path", lambda name: str(path))
    (trial,) = (trial for trial in TRIALS if trial.name == "chunk")
    verdict = measured.verdict_on(trial, 3, "float32", "CPU:0", [], with_cpu=True)
    assert verdict.failure == "" and verdict.from_cpu == 0 and min(*verdict.native, *verdict.plain) > 0
    assert measured.verdicts(str(path), card.cpu_as_card()) == {"chunk 3 float32": verdict}


def test_doctor_shows_the_verdicts(on_gpu, child, monkeypatch, capsys):
    """Below each op, those for this card."""
    child(_says(SLOWER))
    assert not lstm_pays()
    capsys.readouterr()
    monkeypatch.setattr(self_test.log, "attach", lambda: None)
    monkeypatch.setattr(self_test, "OPS", {"lstm": OPS["lstm"]})
    monkeypatch.setattr(self_test, "visible_archs", lambda: ("sm_90",))
    monkeypatch.setattr(self_test, "examine", lambda name: "")
    monkeypatch.setattr(self_test, "devices", lambda name: ["CPU:0", "GPU:0"])
    monkeypatch.setattr(self_test, "library_path", lambda name: on_gpu)
    monkeypatch.setattr(self_test, "card_in_use", lambda: CARD)
    assert self_test.main() == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "lstm: ok on CPU, GPU:0",
        "  lstm 512 tf32: slower (1 against 1.5 ms and 2.1 against 2 ms in TensorFlow)",
    ]


def test_doctor_leaves_out_what_is_for_newer_gpus(monkeypatch, capsys):
    """TensorFlow's forms are used there, as they are meant to: no other failure is hidden behind that."""
    monkeypatch.setattr(self_test.log, "attach", lambda: None)
    monkeypatch.setattr(self_test, "OPS", {name: OPS[name] for name in ("attention", "norm", "pack")})
    monkeypatch.setattr(self_test, "visible_archs", lambda: ("sm_75",))
    monkeypatch.setattr(self_test, "devices", lambda name: ["CPU:0"])
    examined = []
    monkeypatch.setattr(self_test, "examine", lambda name: examined.append(name) or "")
    assert self_test.main() == 0 and examined == ["norm", "pack"]
    reason = "its kernels need compute capability 8.0, but the GPU has 7.5"
    assert capsys.readouterr().out.splitlines()[1] == "  attention is TensorFlow's: " + reason


def test_what_the_process_says(monkeypatch, capsys):
    def out_of_memory(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(trial_process, "load_library", lambda path: None)
    monkeypatch.setattr(trial_process, "claim", lambda names: ["GPU:0"])
    arguments = ["x.so", "512", "float32", "GPU:0", "0", "1", Gpu.name]
    monkeypatch.setattr(measured, "try_out", lambda *_, **__: FASTER)
    assert trial_process.main(LSTM_TRIAL, arguments) == 0
    assert capsys.readouterr().out == measured.verdict_line(FASTER) + "\n"
    monkeypatch.setattr(measured, "try_out", out_of_memory)
    assert trial_process.main(LSTM_TRIAL, arguments) == gpu_test.NO_GPU
    assert capsys.readouterr().out == "the GPU has not enough free memory\n"

    def no_library(path):
        raise NativeOpError("it does not fit this TensorFlow")

    monkeypatch.setattr(trial_process, "load_library", no_library)
    assert trial_process.main(LSTM_TRIAL, arguments) == 1
    assert capsys.readouterr().out == "it does not fit this TensorFlow\n"


@pytest.mark.parametrize(
    "error, failure",
    [
        (lambda: tf.errors.InternalError(None, None, "CUDA error\nmore"), "CUDA error"),
        (lambda: ValueError("Dimensions must be equal\nmore"), "ValueError: Dimensions must be equal"),
        (AssertionError, "AssertionError: no message"),
        (lambda: tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"), None),
        (MemoryError, None),
    ],
)
def test_no_error_of_a_trial_reaches_a_training(monkeypatch, error, failure):
    """It may be tried out in its process."""

    def fail(*_, **__):
        raise error()

    monkeypatch.setattr(measured, "try_out", fail)
    if failure:
        assert measured.verdict_here(LSTM_TRIAL, None, 5, "float32", "GPU:0", False) == Verdict(failure)
    else:
        with pytest.raises(measured.NoMemoryError, match="not enough free memory"):
            measured.verdict_here(LSTM_TRIAL, None, 5, "float32", "GPU:0", False)


def test_the_name_of_a_card(tmp_path, monkeypatch):
    """With its driver, which nvidia-smi tells."""
    card.driver_version.cache_clear()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 550.54.15\necho 550.54.15\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Gpu(), Gpu()])
    details = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert card.card_in_use() == "NVIDIA H200 (sm_90), driver 550.54.15"
    card.driver_version.cache_clear()
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert card.card_in_use() == "NVIDIA H200 (sm_90), driver unknown"
    card.driver_version.cache_clear()
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    assert card.card_in_use() == ""


def test_no_process_can_be_started(on_gpu, monkeypatch):
    monkeypatch.setattr(gpu_test, "python_command", lambda *_: ["/no/such/python"])
    assert not lstm_pays()
    assert measured.verdicts(on_gpu, CARD) == {}
    with pytest.raises(NativeOpError, match="No such file"):
        gpu_test.output_of_child("", [], 1)
