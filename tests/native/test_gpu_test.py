"""The test of an op on GPUs, in a process of its own. GPUs are CPUs here, or not there."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from returnn_tf.native import build as build_module
from returnn_tf.native import gpu_test_process, library
from returnn_tf.native.cache import was_tested
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu import gpu_test
from returnn_tf.native.sources import OPS
from returnn_tf.util.lazy_tf import tf
from tests.waiting import LONG

GPU = "/physical_device:GPU:0"


CARD = "H200, driver 1"


class Gpu:
    name = GPU


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """Return an op that seems to have been compiled just now, and a GPU beside the CPU."""
    path = tmp_path / "op.so"
    path.write_text("")
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(library, "built", lambda name: str(path))
    monkeypatch.setattr(library, "load_library", lambda path: None)
    monkeypatch.setattr(library, "devices", lambda name: ["CPU:0", "GPU:0"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Gpu()])
    monkeypatch.setattr(library, "_has_kernels", lambda name: True)
    monkeypatch.setattr(library, "card_in_use", lambda: CARD)
    return str(path)


@pytest.fixture
def child(monkeypatch):
    """Set the code that runs in place of the process."""

    def runs(code, seconds=LONG):
        monkeypatch.setattr(gpu_test, "python_command", lambda *args: [sys.executable, "-c", code])
        monkeypatch.setattr(gpu_test.passes_on_gpus, "__defaults__", (seconds,))

    return runs


@pytest.mark.parametrize(
    "code, message",
    [
        ("import os; os.kill(os.getpid(), 11)", "on the GPU: its test was ended by SIGSEGV (no message)"),
        ("import os; os.abort()", "on the GPU: its test was ended by SIGABRT (no message)"),
        ("print('on GPU:0: wrong results'); raise SystemExit(1)", "on GPU:0: wrong results"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
    ids=["crash", "abort", "wrong", "broken"],
)  # fmt: skip
def test_one_warning_and_the_plain_form(on_gpu, child, caplog, code, message):
    child(code)
    assert library.native_op("lstm", lambda ops: None) is None and library.native_op("lstm", lambda ops: None) is None
    assert [record.getMessage() for record in caplog.records] == [
        "The native op lstm cannot be used; falling back to plain TensorFlow, which is slower: %s." % message
    ]
    assert not was_tested(on_gpu, CARD)


def test_a_kernel_that_hangs(on_gpu, child, monkeypatch, caplog):
    """The process is ended; the next start tries again."""
    started = []

    def popen(*args, process=subprocess.Popen, **options):
        started.append(process(*args, **options))
        return started[-1]

    monkeypatch.setattr(gpu_test.subprocess, "Popen", popen)
    child("import time; time.sleep(1000)", seconds=0.3)
    assert library.native_op("lstm", lambda ops: None) is None
    assert "slower: on the GPU: its test did not end within 0.3 seconds." in caplog.text
    assert not was_tested(on_gpu, CARD)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_good(on_gpu, child):
    child("raise SystemExit(0)")
    library.load("lstm", lambda ops: None)
    assert was_tested(on_gpu, CARD) and not was_tested(on_gpu)


def test_each_card_and_driver_is_tested(on_gpu, child, monkeypatch):
    """What passed on another one says nothing."""
    tests = []
    for card in (CARD, CARD, "H200, driver 2", "A100, driver 1"):
        child("open(%r, 'a').write('x')" % (on_gpu + "-runs"))
        monkeypatch.setattr(library, "card_in_use", lambda card=card: card)
        library.load("lstm", lambda ops: tests.append(card))  # noqa: B023 (run at once)
    assert tests == [CARD, "H200, driver 2", "A100, driver 1"]
    assert pathlib.Path(on_gpu + "-runs").read_text() == "xxx"


def test_a_gpu_for_one_process_only(on_gpu, child):
    """Then the test runs in this one; the GPU is a CPU that is called so."""
    child("raise SystemExit(3)")
    devices = []
    with pytest.raises(NativeOpError, match="on GPU:0: wrong results"):
        library.load("lstm", lambda ops: devices.append(1) or len(devices) < 2 or _wrong())
    assert len(devices) == 2 and not was_tested(on_gpu, CARD)


def _wrong():
    raise NativeOpError("wrong results")


@pytest.mark.slow
def test_the_real_process(tmp_path):
    """It starts from anywhere, with what this process imports; without the GPU it says nothing about the op."""
    (tmp_path / "numpy.py").write_text("raise ImportError('a file of the user')\n")
    code = "from returnn_tf.native.gpu.gpu_test import passes_on_gpus; print(passes_on_gpus('lstm', 'op.so', [%r]))" % (
        GPU + "7"
    )
    environ = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.remove(''); " + code],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["False"]


def _replace_test(monkeypatch, self_test):
    monkeypatch.setitem(OPS._entries, "chunk", dataclasses.replace(OPS["chunk"], self_test=self_test))


def test_what_the_process_says(monkeypatch, capsys):
    path, _ = build_module.build(OPS["chunk"])
    monkeypatch.setattr(gpu_test_process, "claim", lambda names: ["CPU:0"])
    assert gpu_test_process.main(["chunk", path, GPU]) == 0
    _replace_test(monkeypatch, lambda ops: _wrong())
    assert gpu_test_process.main(["chunk", path, GPU]) == 1
    assert capsys.readouterr().out == "wrong results\n"


def test_memory_that_others_have_says_nothing_about_the_op(monkeypatch):
    def full(_ops):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    path, _ = build_module.build(OPS["chunk"])
    monkeypatch.setattr(gpu_test_process, "claim", lambda names: ["CPU:0"])
    _replace_test(monkeypatch, full)
    assert gpu_test_process.main(["chunk", path, GPU]) == gpu_test.NO_GPU


def test_it_ends_with_its_parent():
    code = "from returnn_tf.native.gpu_test_process import end_with_parent; import time; end_with_parent()"
    code += "; print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    with process:
        assert process.stdout.readline() == "1\n"
        process.stdin.close()
        assert process.wait(timeout=LONG) == 1
