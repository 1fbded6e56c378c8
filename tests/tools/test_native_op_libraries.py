"""``tools/compile_native_op.py`` with the options of RETURNN's script: private libraries that decoders load."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from returnn_tf.cli.main import main
from returnn_tf.native.build import build
from returnn_tf.native.sources import OPS, op_by_any_name
from tests import processes

CONFIG = """
extern_data = {"data": {"dim": 5}, "classes": {"dim": 3, "sparse": True}}
network = {"l": {"class": "rec", "unit": "%s", "n_out": 7, "from": "data"},
           "output": {"class": "softmax", "loss": "ce", "from": "l", "target": "classes"}}
"""
#: As a decoder does: both libraries, then the op.
LOAD = (
    "import sys, tensorflow as tf; from returnn_tf.native.sources import OPS\n"
    "ops = [tf.load_op_library(path) for path in sys.argv[2:]]; OPS[sys.argv[1]].self_test(ops[0]); print('good')"
)


@pytest.fixture(autouse=True)
def needs_a_compiler(tmp_path, monkeypatch):
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("there is no C++ compiler")
    monkeypatch.chdir(tmp_path)


def compiled(*args):
    code = main(["tool", "compile_native_op", *args, "--output_file", "compile.out"])
    return code, Path("compile.out").read_text().splitlines() if os.path.exists("compile.out") else None


@pytest.mark.parametrize("name", ["NativeLstm2", "LstmGenericBase", "NativeLstm", "lstm"])
def test_names_of_lstms(name):
    code, paths = compiled("--native_op", name, "--no_search_for_numpy_blas")
    assert code == 0 and [os.path.basename(path) for path in paths] == [name + ".so", "GradOf%s.so" % name]
    assert all(os.path.isabs(path) and os.path.isfile(path) for path in paths)


@pytest.mark.slow
def test_both_libraries_can_be_loaded():
    """In the order of RASR, after a job has moved them; what is in the cache stays."""
    code, paths = compiled("--native_op", "Chunking", "--blas_lib", "/none.so")
    assert code == 0
    moved = [shutil.move(path, name) for path, name in zip(paths, ("./Chunking.so", "./GradOfChunking.so"))]
    done = processes.run(["-c", LOAD, "chunk", *moved])
    assert done.stdout == "good\n", done.stderr
    library, is_new = build(OPS["chunk"])
    assert os.path.isfile(library) and not is_new
    code, others = compiled("--native_op", "Chunking")
    assert code == 0 and not set(paths) & set(others)


@pytest.mark.parametrize("unit, names", [("nativelstm2", ["lstm.so", "GradOflstm.so"]), ("basicrnn", [])])
def test_what_a_config_needs(unit, names, monkeypatch):
    monkeypatch.setenv("RETURNN_TF_NATIVE", "1")
    Path("a.config").write_text(CONFIG % unit)
    code, paths = compiled("--config", "a.config")
    assert code == 0 and [os.path.basename(path) for path in paths if "product" not in path] == names


@pytest.mark.parametrize(
    "args, code, message",
    [
        ([], 2, "give one of --native_op, --config; got none"),
        (
            ["--native_op", "NativeLstm3"],
            1,
            "there is no native op 'NativeLstm3'. Did you mean 'NativeLstm' or 'NativeLstm2'?",
        ),
        (["--native_op", "lstm", "--verbose", "3"], 2, "Did you mean '--verbosity'?"),
        (["--config", "none.config"], 2, "not found"),
    ],
)
def test_mistakes(args, code, message, capsys):
    assert compiled(*args) == (code, None)
    error = capsys.readouterr().err
    assert message in error and error.partition("\nMore: ")[0].strip().count("\n") == 0 and os.listdir() == []


def test_names_are_unique():
    names = [name for _, op in OPS.items() for name in (op.name, *op.replaces)]
    assert len(set(names)) == len(names) and op_by_any_name("TwoDLSTM") is OPS["mdlstm"]


def test_a_compiler_that_fails_leaves_nothing(monkeypatch, capsys):
    build(OPS["chunk"])
    monkeypatch.setenv("CXX", "false")
    assert compiled("--native_op", "Chunking")[0] == 1 and os.listdir() == []
