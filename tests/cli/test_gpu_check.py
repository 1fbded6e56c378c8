"""returnn-tf doctor --gpu: what it says without a GPU, what each part makes of its process, and the report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_tf.cli.gpu_check import check, kernels, machine, parts
from returnn_tf.cli.gpu_check.messages import Machine, machine_of, print_machine, print_row, rows_of
from returnn_tf.cli.gpu_check.page import failures, page
from returnn_tf.cli.gpu_check.parts import CheckOptions, CheckPart, run_process
from returnn_tf.cli.main import main
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.cuda_toolchain import CudaToolchain
from returnn_tf.native.sources import OPS
from returnn_tf.native.trials.trial import Verdict
from returnn_tf.ops.all_trials import TRIALS
from returnn_tf.util.lazy_tf import tf
from tests.waiting import LONG, until

SETTING = CheckOptions("gpu", False, "")
#: PCI bus IDs as CUDA and as nvidia-smi write them; the latter with the free and the total memory.
BUS, ROW, OTHER = "0000:3b:00.0", "00000000:3B:00.0, %s", "00000000:AF:00.0, 500, 81920"
BUSY = "the GPU is busy: 500 of 81920 MB are free, and the check needs 6000. Wait for other programs."


class Gpu:
    name = "/physical_device:GPU:0"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Return a function that puts an ``nvidia-smi`` on the path: an answer for each query, or a script."""
    folder = tmp_path / "smi"
    folder.mkdir()
    monkeypatch.setenv("PATH", "%s:/usr/bin:/bin" % folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answers(text=None, **queries):
        lines = ["*%s*) echo '%s';;" % (query.replace("_", "."), answer) for query, answer in queries.items()]
        program = folder / "nvidia-smi"
        program.write_text("#!/bin/sh\n" + (text or 'case "$*" in\n%s\nesac\n' % "\n".join(lines)))
        program.chmod(0o755)

    return answers


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that makes TensorFlow see a GPU of this compute capability."""

    def have(capability, cuda="12.3"):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Gpu()])
        monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *_: None)
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)
        monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_version": cuda})
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [Gpu()])
        monkeypatch.setattr(machine, "gpu_in_use", lambda: BUS)
        monkeypatch.setattr(tf, "device", lambda name: tf.name_scope("gpu"))
        details = {"device_name": "Some GPU", "compute_capability": capability}
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)

    return have


def nvcc(monkeypatch, version):
    """Let there be an nvcc, or an error."""

    def find(archs, driver):
        if isinstance(version, Exception):
            raise version
        return CudaToolchain(("nvcc",), version, tuple(archs))

    monkeypatch.setattr(machine, "find_cuda_toolchain", find)


@pytest.mark.parametrize(
    "setup, reason",
    [
        ("none", "there is no NVIDIA GPU (no nvidia-smi, which comes with the driver): the CPU is used."),
        ("driver", "there is no NVIDIA GPU (NVIDIA-SMI has failed because it found no driver): the CPU is used."),
        ("cpu", "A100, but this TensorFlow is for the CPU only: the CPU is used. Install tensorflow[and-cuda]."),
        ("hidden", "A100, but CUDA_VISIBLE_DEVICES=7 shows TensorFlow none: the CPU is used."),
        ("libraries", "A100, but TensorFlow doesn't find its CUDA libraries: the CPU is used."),
    ],
)
def test_no_gpu(monkeypatch, smi, setup, reason):
    """One line says why, and what is used instead."""
    if setup == "driver":
        smi("echo 'NVIDIA-SMI has failed because it found no driver'; exit 9")
    elif setup != "none":
        smi(name="A100")
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: setup != "cpu")
    if setup == "hidden":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found = machine.look("gpu")
    assert found.reason.startswith(reason) and "\n" not in found.reason


@pytest.mark.parametrize(
    "free, reason",
    [
        (ROW % "4000, 4096", "the GPU is too small: it has 4096 MB, and the check needs 6000; the CPU is used."),
        (ROW % "500, 81920", BUSY),
        (ROW % "80000, 81920", ""),
        (ROW % "[N/A], [N/A]", ""),
        ("another, 500, 81920", BUSY),  # there is only one
        (OTHER + "\n" + ROW % "80000, 81920", ""),
        (OTHER.replace("500", "80000") + "\n" + ROW % "500, 81920", BUSY),
        (OTHER + "\n" + OTHER, ""),
    ],
)
def test_a_gpu_without_memory(monkeypatch, smi, gpus, free, reason):
    smi(memory_free=free, driver_version="550")
    gpus((9, 0))
    nvcc(monkeypatch, "nvcc V12.3.1")
    found = machine.look("gpu")
    assert found.reason == reason
    if not reason:
        assert found.facts["memory"] == ("80000 of 81920 MB free" if ROW % "80000" in free else "unknown")


def test_a_gpu_in_exclusive_mode(monkeypatch, smi, gpus):
    smi(memory_free=ROW % "80000, 81920")
    gpus((9, 0))

    def busy(shape):
        raise tf.errors.InternalError(None, None, "CUDA_ERROR_DEVICE_UNAVAILABLE\nmore")

    monkeypatch.setattr(tf, "zeros", busy)
    reason = machine.look("gpu").reason
    assert reason.startswith("the GPU can't be used now (CUDA_ERROR_DEVICE_UNAVAILABLE). Wait")


def test_a_gpu_that_tensorflow_ignores(monkeypatch, smi, gpus):
    smi(memory_free=ROW % "80000, 81920")
    gpus((3, 5))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    reason = machine.look("gpu").reason
    assert reason.startswith("Some GPU (sm_35), driver ")
    assert reason.endswith(" is not supported by this TensorFlow, e.g. too old: the CPU is used.")


@pytest.mark.parametrize(
    "capability, version, remarks",
    [
        ((9, 0), "nvcc V12.8.93", []),
        ((9, 0), "nvcc V13.0.88", ["nvcc and TensorFlow are of different releases of CUDA (nvcc V13.0.88, 12.3)"]),
        (
            (7, 5),
            "nvcc V12.3.1",
            ["Compute capability 7.5 is too old for the kernels of attention, gru, lstm, mdlstm, slstm: their forms"],
        ),
        ((9, 0), NativeOpError("no nvcc"), ["No native op is compiled for the GPU, and the forms in TensorFlow are"]),
    ],
)
def test_what_limits_a_check(monkeypatch, smi, gpus, capability, version, remarks):
    smi(driver_version="550.1")
    gpus(capability)
    nvcc(monkeypatch, version)
    found = machine.look("gpu")
    assert not found.reason and found.facts["device"].startswith("Some GPU (sm_%d%d), driver " % capability)
    assert len(found.remarks) == len(remarks)
    assert all(one.startswith(other) for one, other in zip(found.remarks, remarks))


@pytest.fixture
def looks(monkeypatch):
    """Set what the process says that looks at the machine, and the parts."""

    def set_up(code, *parts_of_check):
        monkeypatch.setattr(check, "python_command", lambda *_: [sys.executable, "-c", code])
        monkeypatch.setattr(parts, "PARTS", parts_of_check)

    return set_up


def saying(found, capsys):
    """Return the code of a process that tells of a machine."""
    print_machine(found)
    return "print(%r)" % capsys.readouterr().out


def test_exit_codes_and_the_report(looks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    good, bad = (
        CheckPart("Good", lambda setting: [{"ms": 1.0}]),
        CheckPart("Bad", lambda setting: [{"op": "x", "failed": "a|b"}]),
    )
    looks(saying(Machine({"device": "H200"}), capsys), good)
    assert main(["doctor", "--gpu"]) == 0
    out = capsys.readouterr().out
    assert "Good ... 0:00, ok" in out and "gpu-check.md has all figures. Please send it" in out
    assert "Nothing." in Path("gpu-check.md").read_text()
    looks(saying(Machine({"device": "H200"}), capsys), good, bad)
    assert "--quick" not in Path("gpu-check.md").read_text()
    assert main(["doctor", "--gpu", "--quick", "--output", "other.md"]) == 1
    assert "With --quick: small sizes" in Path("other.md").read_text()
    assert main(["doctor", "--gpu", "--output", "other.md"]) == 1
    assert "FAILED Bad, x: a|b" in capsys.readouterr().out
    assert "* Bad, x: a\\|b" in Path("other.md").read_text()
    looks(saying(Machine({}, [], "there is no NVIDIA GPU: the CPU is used."), capsys), good)
    Path("gpu-check.md").unlink()
    assert main(["doctor", "--gpu"]) == 2
    assert capsys.readouterr().err == "doctor --gpu: there is no NVIDIA GPU: the CPU is used.\n"
    assert not Path("gpu-check.md").exists()
    looks("raise SystemExit('no module named tensorflow')")
    assert main(["doctor", "--gpu"]) == 2
    assert "TensorFlow can't be asked: exit code 1: no module named tensorflow" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args, code, text",
    [
        (["--gpu", "--output", "no/such/folder/x.md"], 2, "doctor --gpu: 'no/such/folder/x.md' can't be written"),
        (["--output", "x.md"], 2, "--output and --device are options of doctor --gpu"),
        (["--gup"], 2, "Did you mean '--gpu'?"),
        (["--gpu", "--device", "tpu"], 2, "invalid choice: 'tpu'"),
    ],
)
def test_wrong_arguments(looks, tmp_path, monkeypatch, capsys, args, code, text):
    monkeypatch.chdir(tmp_path)
    looks(saying(Machine({"device": "H200"}), capsys), CheckPart("Good", lambda setting: []))
    assert main(["doctor", *args]) == code
    said = capsys.readouterr()
    assert text in said.err and "Good" not in said.out  # before anything is computed


@pytest.mark.parametrize(
    "code, failure",
    [
        ("print('x')", ""),
        ("import sys; print('said', file=sys.stderr); sys.exit(3)", "exit code 3: said"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV: no message"),
        ("print('label error rate'); print('ValueError: y'); print('z'); exit(1)", "exit code 1: ValueError: y"),
        ("print('error: no memory'); raise SystemExit('it ends here')", "exit code 1: error: no memory"),
        ("import time; time.sleep(1000)", "it did not end within 1 seconds"),
    ],
    ids=["good", "error", "crash", "exception", "message", "hang"],
)
def test_a_process(code, failure):
    done = run_process([sys.executable, "-c", code], 1 if "sleep" in code else LONG)
    assert done.failure == failure and ("x" in done.output) == ("'x'" in code)
    assert run_process(["/no/such/program"], 1).failure.startswith("it can't be run")


def _alive(pid):
    try:
        return ") Z " not in Path("/proc/%d/stat" % pid).read_text()
    except OSError:
        return False


@pytest.mark.parametrize("end", ["time", "Ctrl-C"])
def test_what_a_process_has_started_ends_with_it(tmp_path, monkeypatch, end):
    """Such as the trainings of a demo: they would keep the GPU from the parts that follow."""
    inner = "open('started', 'w').write(str(__import__('os').getpid())); __import__('time').sleep(1000)"
    code = "import subprocess, sys; print('x', flush=True); subprocess.run([sys.executable, '-c', %r])" % inner
    command = [sys.executable, "-c", code]
    started = tmp_path / "started"

    def communicate(process, timeout=None, real=subprocess.Popen.communicate):
        until(lambda: started.exists() and started.read_text())
        if end == "Ctrl-C" and timeout == LONG:
            raise KeyboardInterrupt
        return real(process, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    if end == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            run_process(command, LONG, folder=str(tmp_path))
    else:
        done = run_process(command, 0.1, folder=str(tmp_path))
        assert done.failure == "it did not end within 0.1 seconds" and done.output == "x\n"
    until(lambda: not _alive(int(started.read_text())))


def test_the_last_lines_of_what_failed():
    code = "import sys; print('ROW {}'); [print(i) for i in range(99)]; print('said', file=sys.stderr); sys.exit(%d)"
    lines = run_process([sys.executable, "-c", code % 1], LONG).last.splitlines()
    assert lines == [*map(str, range(69, 99)), "said"]
    assert run_process([sys.executable, "-c", code % 0], LONG).last == ""


def test_rows_up_to_a_crash_count(monkeypatch, capsys):
    print_row(op="a", failed="")
    printed = capsys.readouterr().out
    code = "import os; print(%r, flush=True); os.abort()" % printed
    monkeypatch.setattr(parts, "python_command", lambda *_: [sys.executable, "-c", code])
    assert parts.PARTS[0].run(SETTING) == [{"op": "a", "failed": ""}, {"failed": "SIGABRT: no message", "last": ""}]
    assert rows_of("ROW no\n".replace("no", "{}") + "else") == [{}] and machine_of("nothing") is None


def test_what_pytest_says(monkeypatch):
    """The failed tests, and how many there were."""

    def said(text, code):
        program = "print(%r); raise SystemExit(%d)" % (text, code)
        monkeypatch.setattr(parts, "python_command", lambda *_: [sys.executable, "-c", program])
        return parts._tests(SETTING)

    assert said("..\n=== 2 passed in 1s ===", 0) == [{"tests": "2 passed in 1s", "failed": "", "last": ""}]
    failed = said("FAILED tests/x.py::y - wrong\n1 failed, 2 passed in 1s", 1)
    assert failures([("Tests", failed)]) == ["Tests, FAILED tests/x.py::y - wrong: see pytest"]
    assert failed[-1]["last"].endswith("1 failed, 2 passed in 1s")
    assert said("", 4)[0]["failed"] == "exit code 4: no message"
    assert said("12 skipped in 1s", 0)[0]["failed"] == "no test passed on the GPU"


def test_an_installed_package_has_no_demos_and_tests(monkeypatch):
    monkeypatch.setattr(parts, "_DIGITS", "/no/such/file")
    monkeypatch.setattr(parts, "_TESTS", "/no/such/folder")
    for part in (parts._digits, parts._tests):
        assert [*part(SETTING)[0]] == ["left_out"]


def test_a_demo_that_learns_too_little(monkeypatch, tmp_path):
    """Both forms are trained; each that fails is a line."""
    said = "label error rate: 7.50 % (3 edits)\n=== done in 1:00, of which training took 0:40"
    code = "print(%r); raise SystemExit(1)" % said
    monkeypatch.setattr(parts, "python_command", lambda *_: [sys.executable, "-c", code])
    rows = parts._digits(CheckOptions("cpu", False, str(tmp_path)))
    assert [(row["forms"], row["error"], row["minutes"]) for row in rows] == [
        ("chosen", "7.50 %", "0:40"), ("TensorFlow", "7.50 %", "0:40"),
    ]  # fmt: skip
    assert len(failures([("x", rows)])) == 2
    rows = parts._transformer(CheckOptions("cpu", False, str(tmp_path)))
    assert [row["failed"][:11] for row in rows] == ["exit code 1"] * 2


@pytest.mark.parametrize("text, error", [("{'dev_error': 0.5}, {'dev_error': 1e-3}", 1e-3), ("", None)])
def test_the_error_rate_of_the_last_epoch(tmp_path, text, error):
    path = tmp_path / "learning_rates"
    path.write_text(text)
    found = parts._last_error(str(path))
    assert found == error if error else found != found
    assert parts._last_error("/no/such/file") != error


def test_trials_on_a_gpu_have_all_widths_and_types(monkeypatch, capsys):
    """What can't be tried out is a failure, and others follow. Former verdicts on an op go once, before the first."""
    tried, forgotten = [], []

    def verdict_on(trial, width, dtype, where, gpus, **_):
        tried.append((trial.name, width, dtype))
        assert trial.op in forgotten
        if dtype == "float16":
            raise NativeOpError("no memory")
        return Verdict("", 1e-6, (1.0, 2.0), (3.0, 1.0), 2e-6) if trial.name == "lstm" else Verdict("wrong")

    monkeypatch.setattr(kernels, "use", lambda device: "GPU:0")
    monkeypatch.setattr(kernels, "load", lambda *_: None)
    monkeypatch.setattr(kernels, "verdict_on", verdict_on)
    monkeypatch.setattr(kernels, "forget", lambda trial, where: forgotten.append(trial.op))
    kernels.try_ops("gpu", quick=False)
    rows = rows_of(capsys.readouterr().out)
    assert len(forgotten) == len(set(forgotten))
    assert ("lstm", 1024, "bfloat16") in tried and len(rows) == len(tried) == len(set(tried))
    first = rows[0]
    assert first["width"] == "64 units" and first["type"] == "tf32" and first["used"] is False and not first["failed"]
    assert {row["failed"] for row in rows if row["type"] == "float16"} == {"no memory"}


def test_an_op_for_newer_gpus_is_left_out(monkeypatch, capsys):
    """That is no failure of the GPU, and costs no compiler."""
    monkeypatch.setattr(kernels, "use", lambda device: "GPU:0")
    monkeypatch.setattr(kernels, "visible_archs", lambda: ("sm_75",))
    monkeypatch.setattr(kernels, "examine", lambda name: "")
    monkeypatch.setattr(kernels, "load", lambda *_: None)
    monkeypatch.setattr(kernels, "verdict_on", lambda *_, **__: Verdict())
    monkeypatch.setattr(kernels, "forget", lambda *_: None)
    kernels.compile_ops("gpu", quick=True)
    rows = {row["op"]: row for row in rows_of(capsys.readouterr().out)}
    assert rows["lstm"] == {"op": "lstm", "left_out": "its kernels need compute capability 8.0, but the GPU has 7.5"}
    assert "left_out" not in rows["norm"] and "left_out" not in rows["update"]  # needs 7.0
    kernels.try_ops("gpu", quick=True)
    tried = {row["op"] for row in rows_of(capsys.readouterr().out)}
    assert tried == {trial.name for trial in TRIALS if OPS[trial.op].capability < (8, 0)}


def test_an_op_that_is_not_compiled_is_one_failure(monkeypatch, capsys):
    def load(name, self_test):
        raise NativeOpError("nvcc was not found")

    monkeypatch.setattr(kernels, "use", lambda device: "GPU:0")
    monkeypatch.setattr(kernels, "load", load)
    kernels.try_ops("gpu", quick=False)
    rows = rows_of(capsys.readouterr().out)
    assert len({row["op"] for row in rows}) == len(rows) == len({trial.op for trial in TRIALS})
    assert {row["failed"] for row in rows} == {"nvcc was not found"}


def test_a_peer_that_is_not_installed(monkeypatch, capsys):
    def lacks(*_):
        raise ModuleNotFoundError("No module named 'torch'")

    def fails(*_):
        raise ValueError("no cuDNN")

    for name, make in (("_our_lstm", lambda *_: lambda: None), ("_keras_lstm", fails), ("_torch_lstm", lacks)):
        monkeypatch.setattr(kernels, name, make)
    kernels.compare_lstms("cpu", quick=True)
    rows = rows_of(capsys.readouterr().out)
    assert "ms" in rows[0] and rows[1]["failed"] == "ValueError: no cuDNN"
    assert rows[2]["left_out"] == "No module named 'torch'" and len(failures([("x", rows)])) == 1


def test_the_report():
    rows = [
        {"op": "lstm", "native": [1.25, 2.0], "used": True, "from_cpu": None, "failed": ""},
        {"op": "gru", "failed": "<crash>\n", "last": "some line\n<another>"},
    ]
    text = page("Title", Machine({"device": "H200"}, ["A remark."]), [("Part", rows), ("Empty", [])], 61.0)
    assert text.startswith("# Title\n") and "| device | H200 |" in text and "A remark." in text
    assert "* Part, gru: &lt;crash> " in text and "| lstm | 1.25, 2 | yes |  |  |" in text
    assert "gru ended with:\n\n    some line\n    <another>\n\n" in text and "last" not in text
    for words in ("`native`, `plain`: milliseconds", "It gave no row.", "Computed in 1:01 minutes."):
        assert words in text
    text = page("Title", Machine({}), [("Part", [])], 61.0, ["Later", "Last"])
    assert "Nothing so far." in text and "Not finished: Later, Last." in text


def test_a_row_has_all_columns_of_its_table():
    rows = [{"a": 1, "failed": ""}, {"b": "x|y", "failed": "z"}]
    text = page("Title", Machine({"device": "H200"}), [("Part", rows)], 1.0)
    widths = [line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")]
    assert widths == [3, 3, 3, 4, 4, 4, 4]


@pytest.mark.long
def test_the_whole_check_with_the_cpu(tmp_path):
    """All parts as on a GPU, with small sizes, and the CPU in its place."""
    path = tmp_path / "report.md"
    code = "from returnn_tf.cli.main import main; import sys; sys.exit(main())"
    options = ["doctor", "--gpu", "--device", "cpu", "--quick", "--output", str(path)]
    done = run_process(
        [sys.executable, "-c", code, *options], 3600,
        folder=str(tmp_path), environment={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert not done.failure, done.output
    text = path.read_text()
    assert "a CPU in place of a GPU" in text and "Nothing." in text
    for part in parts.PARTS:
        assert "## %s\n" % part.title in text
    for name in ("lstm", "transducer", "complex scan", "Keras", "digits: BLSTM, CTC", "Transformer"):
        assert re.search(r"(?m)^\|.*%s" % name, text), name
    assert os.listdir(tmp_path) == ["report.md"]
