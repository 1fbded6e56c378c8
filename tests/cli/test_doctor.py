"""returnn-tf doctor: never crashes, says what to do."""

import subprocess

import pytest

from returnn_tf.cli import doctor
from returnn_tf.cli.main import main

PROBED = {"version": "2.16.2", "cuda": True, "gpus": ["H200"]}


@pytest.fixture
def probed(monkeypatch):
    """Return a function that says what TensorFlow would report."""

    def set_probed(value):
        monkeypatch.setattr(doctor, "_probed", [value])

    set_probed(PROBED)
    return set_probed


def test_report(probed, capsys):
    """A line for each check, and the exit code of the whole."""
    code = main(["doctor"])
    out = capsys.readouterr().out
    for check in doctor.CHECKS:
        assert "  " + check.name in out
    assert "H200" in out
    assert code == (1 if "MISSING" in out else 0)
    assert main(["doctor", "x"]) == 2


def test_everything_is_missing(monkeypatch, probed, capsys):
    """No program, no package: a report all the same."""
    monkeypatch.setattr(doctor, "version_of", lambda *names: None)
    monkeypatch.setattr(doctor, "output_of", lambda *args, **kwargs: None)
    probed(None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "Required, but missing: numpy, h5py, TensorFlow" in out
    for advice in ("returnn-tf[cpu]", "returnn-tf[horovod]", "returnn-tf[audio]", "g++", "CUDA"):
        assert advice in out


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
        (dict(PROBED, gpus=[]), "GPU", False, "CUDA libraries are missing"),
        (dict(PROBED, gpus=[], cuda=False), "GPU", False, "for the CPU only"),
        (None, "GPU", False, "returnn-tf[gpu]"),
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
            "lstm: ok\nproduct: ok (not used: x)\n",
            "lstm, product (not used: x): compiled for this machine and tested",
        ),
        (1, "lstm: ok on CPU, GPU:0\nalign: nvcc failed: no\n", "align: nvcc failed: no"),
    ],
)
def test_native_ops(monkeypatch, code, lines, detail):
    done = subprocess.CompletedProcess([], code, stdout=lines, stderr="")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *args, **kwargs: done)
    finding = look_for("native ops")
    assert finding.found == (code == 0) and finding.detail == detail
