"""returnn-tf doctor: never crashes, says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_tf.cli import doctor
from returnn_tf.cli.main import main
from returnn_tf.util import installing

ROOT = str(Path(__file__).parents[2])
PROBED = {"version": "2.16.2", "cuda": True, "gpus": ["H200"]}


@pytest.fixture
def probed(monkeypatch):
    """Return a function that says what TensorFlow would report."""

    def set_probed(value):
        monkeypatch.setattr(doctor, "_probed", [value])

    set_probed(PROBED)
    return set_probed


def test_unknown_option(capsys):
    assert main(["doctor", "x"]) == 2
    assert "unrecognized arguments: x" in capsys.readouterr().err


def test_everything_is_missing(monkeypatch, probed, capsys):
    """No program, no package: a report all the same."""
    monkeypatch.setattr(doctor, "version_of", lambda *names: None)
    monkeypatch.setattr(doctor, "output_of", lambda *args, **kwargs: None)
    probed(None)
    assert main(["doctor", "--quick"]) == 1
    out = capsys.readouterr().out
    assert "Required, but missing: numpy, h5py, TensorFlow" in out
    for advice in ("[cpu]", "[horovod]", "[audio]", "g++", "CUDA"):
        assert advice in out


@pytest.mark.parametrize(
    "output, found, text",
    [
        ("PROBE\n", True, "several processes by TensorFlow: returnn-tf launch, srun"),
        ("", False, "TensorFlow's server does not start"),
        (None, False, "TensorFlow's server does not start"),
    ],
)
def test_collectives(monkeypatch, output, found, text):
    monkeypatch.setattr(doctor, "output_of", lambda *args, **kwargs: output)
    finding = doctor.examine(next(check for check in doctor.CHECKS if check.name == "collectives"))
    assert (finding.found, finding.detail, bool(finding.advice)) == (found, text, not found)


@pytest.mark.slow
def test_report_beside_another_copy(tmp_path):
    """A line for each check of the program that was started, with its libraries, not of what lies in the folder."""
    there = tmp_path / "checkout"
    for name in ("returnn_tf/__init__.py", "returnn_tf/native/__init__.py", "tensorflow.py", "json.py", "horovod.py"):
        file = there / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("open(%r, 'a').write(__name__ + ' ')\n" % str(tmp_path / "imported"))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "returnn-tf"
    program.write_text("import sys\nfrom returnn_tf.cli.main import main\nsys.exit(main())\n")
    done = subprocess.run(
        [sys.executable, str(program), "doctor", "--quick"],
        cwd=there, env={**os.environ, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert not (tmp_path / "imported").exists(), done.stdout
    for check in doctor.CHECKS:
        assert "  " + check.name in done.stdout
    assert done.returncode == 0 and "TensorFlow      found" in done.stdout and "MISSING" not in done.stdout
    assert "native ops      -        not tested, because of --quick" in done.stdout
    assert "collectives     found    several processes by TensorFlow" in done.stdout


@pytest.mark.parametrize(
    "extra, packages", [("audio", "soundfile scipy soxr"), ("cpu", "tensorflow-cpu"), ("", "numpy h5py")]
)
def test_install_command(monkeypatch, tmp_path, extra, packages):
    """A checkout has extras; elsewhere no index need have this program, so that the packages are named themselves."""
    required = ["numpy<3,>=1.23", "h5py<4,>=3", 'tensorflow-cpu<2.22; extra == "cpu"', "soxr<2; extra == 'audio-2'"]
    required += ['%s>=1; extra == "audio"' % name for name in ("soundfile", "scipy", "soxr")]
    monkeypatch.setattr(installing.importlib.metadata, "requires", lambda name: required)
    command = installing.install_command(extra, root=str(tmp_path))
    assert command.startswith("pip install ") and "returnn" not in command
    words = subprocess.run(["sh", "-c", "printf '%%s\\n' %s" % command[len("pip install ") :]], capture_output=True)
    assert [word.partition(b"<")[0].partition(b">")[0].decode() for word in words.stdout.split()] == packages.split()
    assert installing.install_command("audio", options="--no-deps") == "pip install --no-deps -e '%s[audio]'" % ROOT
    monkeypatch.setattr(installing.importlib.metadata, "requires", lambda name: None)
    assert "pyproject.toml" in installing.install_command(extra, root=str(tmp_path))


def test_a_check_that_fails():
    """Its failure is what it finds."""

    def look():
        raise OSError("no such device")

    finding = doctor.examine(doctor.Check("x", look, required=False))
    assert not finding.found and "OSError: no such device" in finding.detail


@pytest.mark.parametrize(
    "result, name, found, words",
    [
        (None, "TensorFlow", False, "can't be imported"),
        (dict(PROBED, version="2.15.1"), "TensorFlow", True, "only tested with 2.16 - 2.21"),
        (dict(PROBED, version="2.22.0"), "TensorFlow", True, "only tested with 2.16 - 2.21"),
        (PROBED, "TensorFlow", True, ""),
        (PROBED, "GPU", True, "H200"),
        (dict(PROBED, gpus=[]), "GPU", False, "CUDA libraries are missing"),
        (dict(PROBED, gpus=[], cuda=False), "GPU", False, "for the CPU only"),
        (None, "GPU", False, "[gpu]"),
    ],
)
def test_tensorflow_and_gpu(monkeypatch, probed, result, name, found, words):
    """A GPU that TensorFlow doesn't see, another version, a broken installation."""
    probed(result)
    monkeypatch.setattr(doctor, "version_of", lambda *names: names[0] + " 2.16.2")
    monkeypatch.setattr(doctor, "output_of", lambda *args, **kwargs: "NVIDIA H200\n")
    check = next(check for check in doctor.CHECKS if check.name == name)
    finding = doctor.examine(check)
    assert finding.found == found and words in finding.detail + finding.advice


@pytest.mark.parametrize("version, told", [("2.16.2", False), ("2.21.0", True)])
def test_horovod_for_a_later_tensorflow(monkeypatch, version, told):
    versions = {"tensorflow": "tensorflow-cpu " + version, "horovod": None}
    monkeypatch.setattr(doctor, "version_of", lambda *names: versions[names[0]])
    finding = look_for("Horovod")
    assert not finding.found and "pip install" in finding.advice
    assert ("it may not build" in finding.advice) == told


def test_output_of():
    """Missing, failing, hanging programs give None."""
    assert doctor.output_of(["no-such-program-at-all"]) is None
    assert doctor.output_of(["sh", "-c", "exit 3"]) is None
    assert doctor.output_of(["sh", "-c", "sleep 5"], timeout=0.1) is None
    assert doctor.output_of(["sh", "-c", "echo x"]) == "x\n"


def look_for(name):
    return doctor.examine(next(check for check in doctor.CHECKS if check.name == name))


def test_nvcc(monkeypatch):
    monkeypatch.setattr(doctor, "output_of", lambda command: "nvcc V13.0.88 (/opt/cuda/bin/nvcc)\n")
    assert look_for("nvcc").found and look_for("nvcc").detail == "nvcc V13.0.88 (/opt/cuda/bin/nvcc)"
    monkeypatch.setattr(doctor, "output_of", lambda command: None)
    assert not look_for("nvcc").found and "set CUDA_HOME" in look_for("nvcc").advice


@pytest.mark.parametrize(
    "code, lines, detail",
    [
        (0, "lstm: ok\nalign: ok\n", "lstm, align: compiled for this machine and tested"),
        (0, "lstm: ok on CPU, GPU:0\nalign: ok\n", "lstm on CPU, GPU:0, align: compiled for this machine and tested"),
        (
            0,
            "lstm: ok\nproduct: ok (not used for float32: x)\n",
            "lstm, product (not used for float32: x): compiled for this machine and tested",
        ),
        (1, "lstm: ok on CPU, GPU:0\nalign: nvcc failed: no\n", "align: nvcc failed: no"),
    ],
)
def test_native_ops(monkeypatch, capfd, code, lines, detail):
    """The lines with results are the finding; the others are shown while the ops are compiled."""
    program = "import sys\nfor line in %r:\n  print('native op x (1 of 2) ...')\n  print(line)\nsys.exit(%d)"
    command = [sys.executable, "-c", program % (lines.splitlines(), code)]
    monkeypatch.setattr(doctor, "python_command", lambda code: command)
    finding = look_for("native ops")
    assert finding.found == (code == 0) and finding.detail == detail
    out = capfd.readouterr().out
    assert "--quick" in out and "    native op x (1 of 2) ...\n" in out and "ok" not in out


def test_native_ops_that_crash(monkeypatch):
    code = "import os, sys; print('native op lstm (1 of 2) ...', flush=True); sys.stderr.write('a\\nmalloc(): b\\n')"
    monkeypatch.setattr(
        doctor, "python_command", lambda _: [sys.executable, "-c", code + "; sys.stderr.flush(); os.abort()"]
    )
    finding = look_for("native ops")
    assert not finding.found and finding.detail == "malloc(): b"
    monkeypatch.setattr(doctor, "python_command", lambda _: ["/no/such/python"])
    assert not look_for("native ops").found
