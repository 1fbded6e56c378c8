"""A program in C++, without any Python, loads a native op and runs a saved graph with it.

The graph is written by hand: the subject is the op in a saved model, not how a network becomes one.
"""

import os
import subprocess

import numpy as np
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from returnn_tf.native import lstm_ops, native_lstm
from returnn_tf.native.build import build
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS
from returnn_tf.native.toolchain import find_toolchain
from returnn_tf.util.lazy_tf import tf
from tests.compiling import compile_cached
from tests.native import reference

pytestmark = pytest.mark.slow  # compiles a program with TensorFlow

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMES, BATCH, UNITS = 5, 3, 7


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return the decoder, linked against the libraries of the installed TensorFlow."""
    try:
        compiler = find_toolchain().compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    to = str(tmp_path_factory.mktemp("decoder") / "decoder")
    folder = tf.sysconfig.get_lib()
    libraries = ["-L" + folder, "-l:libtensorflow_cc.so.2", *tf.sysconfig.get_link_flags()[1:], "-Wl,-rpath," + folder]
    command = [*compiler, "-std=c++17", "-O1", *tf.sysconfig.get_compile_flags()]
    done = compile_cached([*command, *libraries], [os.path.join(HERE, "decoder.cc")], to)
    assert done.returncode == 0, done.stderr
    return to


@pytest.fixture(scope="module")
def library():
    """Return the library in the cache, which `tests/compat/tools/test_compile_native_op.py` compiles elsewhere."""
    return build(OPS["lstm"])[0]


@pytest.fixture(scope="module")
def weights():
    return np.random.RandomState(1).normal(0, 0.5, (UNITS, 4 * UNITS)).astype("float32")


@pytest.fixture(scope="module")
def saved_graph(tmp_path_factory, weights):
    """Return a saved model whose only function calls the native LSTM, with constant weights."""
    folder = str(tmp_path_factory.mktemp("saved_graph"))
    module = tf.Module()

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, None, 4 * UNITS], tf.float32, "z"),
            tf.TensorSpec([None], tf.int32, "lengths"),
        ],
    )
    def run(z, lengths):
        zeros = tf.zeros([tf.shape(z)[1], UNITS])
        return native_lstm(lstm_ops(tf.float32), z, tf.constant(weights), zeros, zeros, lengths)[0]

    module.run = run
    tf.saved_model.save(module, folder, signatures=run)
    return folder


def run(program, library, saved_graph):
    saved = saved_model_pb2.SavedModel()
    with open(os.path.join(saved_graph, "saved_model.pb"), "rb") as f:
        saved.ParseFromString(f.read())
    (result,) = saved.meta_graphs[0].signature_def["serving_default"].outputs.values()
    output = result.name.partition(":")[0]
    command = [program, library, saved_graph, output, str(FRAMES), str(BATCH), str(4 * UNITS)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_decoder(program, library, saved_graph, weights):
    done = run(program, library, saved_graph)
    assert done.returncode == 0, done.stdout + done.stderr
    got = np.array(done.stdout.split(), "float64").reshape(FRAMES, BATCH, UNITS)
    z = np.sin(0.1 * np.arange(FRAMES * BATCH * 4 * UNITS)).reshape(FRAMES, BATCH, 4 * UNITS)
    zeros = np.zeros((BATCH, UNITS))
    expected = reference.lstm(z, weights, zeros, zeros, FRAMES - np.arange(BATCH) % FRAMES)[0]
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_without_the_op_the_graph_cannot_be_loaded(program, saved_graph, tmp_path):
    (tmp_path / "none.so").write_text("no library")
    done = run(program, str(tmp_path / "none.so"), saved_graph)
    assert done.returncode == 1 and done.stdout.startswith("TF_LoadLibrary: ")
