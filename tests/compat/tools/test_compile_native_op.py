"""returnn-tf native and tools/compile_native_op.py: a library that TensorFlow loads, or a one-line error."""

import os
import subprocess
import sys

import pytest

from returnn_tf.cli.main import main
from returnn_tf.native.sources import OPS
from tests import compiling, processes

TOOL = str(processes.ROOT / "tools" / "compile_native_op.py")


def run(*args, **environment):
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, TOOL, *args], capture_output=True, text=True, env=env, check=False)


def test_every_op_has_a_self_test():
    assert all(op.self_test is not None for _, op in OPS.items())


_QUICK = ("chunk",)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.long) for name in OPS])
def test_compiles_for_the_oldest_cpus(name, tmp_path):
    """Without the wide instructions of this machine: the other code paths of the kernels compute the same."""
    path = str(tmp_path / "op.so")
    cached = "%s -S %s %s" % (sys.executable, compiling.__file__, os.environ.get("CXX", "g++"))
    done = processes.run([TOOL, name, "--output", path, "--target=-O1"], env={**os.environ, "CXX": cached})
    assert done.returncode == 0, done.stderr
    assert "with -O1" in done.stdout and os.listdir(tmp_path) == ["op.so"]
    code = (
        "import sys; from returnn_tf.native.library import load_library; from returnn_tf.native.sources import OPS\n"
        "OPS[sys.argv[1]].self_test(load_library(sys.argv[2])); print('good')"
    )
    done = processes.run(["-c", code, name, path], cwd=processes.ROOT)
    assert done.stdout.strip() == "good", done.stderr


def test_lists_the_ops():
    assert run("--list").stdout.split() == sorted(OPS)


@pytest.mark.slow
def test_says_what_is_wrong(tmp_path):
    done = run("lstm", "--output", str(tmp_path / "op.so"), CXX="no-such-c++")
    assert done.returncode == 1 and "error: $CXX = 'no-such-c++' was not found" in done.stderr
    assert not os.listdir(tmp_path)
    assert run("lstm").returncode == 2


def test_help():
    assert "for decoders in C++" in run("--help").stdout


def test_command_lists_the_ops(capsys):
    assert main(["native", "list"]) == 0
    assert capsys.readouterr().out.split() == sorted(OPS)


@pytest.mark.parametrize(
    "args, code, message",
    [
        ([], 2, "build, list or clean?"),
        (["biuld"], 2, "Did you mean 'build'?"),
        (["list", "lstm"], 2, "takes no arguments"),
        (["build", "lstm"], 2, "the following arguments are required: --output"),
        (["build", "lsmt", "--output", "x.so"], 2, "there is no op 'lsmt'. Did you mean 'lstm'?"),
        (["build", "product", "--output", "x.so", "--cuda-arch", "sm_90"], 1, "product has no kernels for GPUs"),
        (["build", "lstm", "--output", "/dev/null/x.so"], 2, "/dev/null"),
    ],
)
def test_wrong_arguments(args, code, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["native", *args]) == code
    assert message in capsys.readouterr().err
    assert not os.listdir(tmp_path)
