"""Losses and ops that configs import: transducers, code in C++, sampled classes."""

from __future__ import annotations

import itertools
import pathlib
import shutil

import numpy as np
import pytest

from returnn_tf.compat.helpers.names import HELPERS
from returnn_tf.compat.modules.op_code import OpCodeCompiler
from returnn_tf.compat.modules.transducer import rna_loss, rnnt_loss
from returnn_tf.config import Config, ConfigError
from returnn_tf.util.lazy_tf import tf

BLANK = 1


def by_enumeration(log_probs, labels, frames, count, takes_frame):
    """Return the log of the sum over all alignments."""
    total = -np.inf
    steps = frames if takes_frame else frames + count
    for places in itertools.combinations(range(steps), count):
        t, u, score = 0, 0, 0.0
        for step in range(steps):
            if t >= frames:
                break
            label = step in places
            score += log_probs[t, u, labels[u] if label else BLANK]
            u, t = u + label, t + (takes_frame or not label)
        if u == count and t == frames and (takes_frame or steps - 1 not in places):
            total = np.logaddexp(total, score)
    return total


@pytest.mark.parametrize("takes_frame", [False, True])
def test_transducers(takes_frame):
    rng = np.random.RandomState(2)
    logits = rng.normal(size=(2, 4, 3, 5)).astype("float32")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    labels, frames, counts = np.array([[0, 3], [2, 0]], "int32"), [4, 3], [2, 1]
    expected = [-by_enumeration(log_probs[i], labels[i], frames[i], counts[i], takes_frame) for i in range(2)]
    if takes_frame:
        got = rna_loss(log_probs, labels, frames, counts, blank_label=BLANK)
    else:
        got = rnnt_loss(logits, labels, frames, counts, BLANK)
        again = rnnt_loss(log_probs=tf.constant(log_probs), labels=labels, input_lengths=frames, label_lengths=counts,
                          blank_index=BLANK)  # fmt: skip
        np.testing.assert_allclose(again.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4)


def test_modules_of_other_projects(tmp_path: pathlib.Path) -> None:
    text = "from rnnt_tf_impl import rnnt_loss\nfrom returnn.extern.HawkAaronWarpTransducer import rnnt_loss as other\n"
    (tmp_path / "my.config").write_text(text)
    config = Config.from_file(str(tmp_path / "my.config"))
    assert config.typed("rnnt_loss") is rnnt_loss is config.typed("other")
    with pytest.raises(ValueError, match="with_alignment is not supported"):
        rnnt_loss(tf.zeros([1, 1, 1, 2]), with_alignment=True)


@pytest.mark.parametrize("hits", [False, True])
def test_sampled_logits(hits: bool) -> None:
    rng = np.random.RandomState(3)
    weights, biases, inputs = (rng.normal(size=s).astype("float32") for s in ((7, 4), (7,), (2, 4)))
    labels, sampled = np.array([[3], [5]]), np.array([5, 0, 1])
    values = (tf.constant(sampled), tf.constant([[0.5], [0.25]]), tf.constant([0.1, 0.2, 0.3]))
    logits, targets = HELPERS["compute_sampled_logits"](
        weights, biases, labels, inputs, 3, 7, sampled_values=values, remove_accidental_hits=hits
    )
    full = inputs @ weights.T + biases
    expected = np.concatenate(
        [full[[[0], [1]], labels] - np.log([[0.5], [0.25]]), full[:, sampled] - np.log([0.1, 0.2, 0.3])], axis=1
    )
    keep = np.ones((2, 4), bool)
    keep[1, 1] = not hits
    np.testing.assert_allclose(logits.numpy()[keep], expected[keep], rtol=1e-4)
    assert (logits.numpy()[~keep] < -1e30).all()
    np.testing.assert_array_equal(targets.numpy(), [[1, 0, 0, 0]] * 2)


CODE = """
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
using namespace tensorflow;
REGISTER_OP("CompatTestPlus").Input("x: float").Output("y: float")
  .SetShapeFn([](shape_inference::InferenceContext* c) { c->set_output(0, c->input(0)); return Status::OK(); });
class PlusOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    for (int i = 0; i < x.NumElements(); ++i) y->flat<float>()(i) = x.flat<float>()(i) + 4;
  }
};
REGISTER_KERNEL_BUILDER(Name("CompatTestPlus").Device(DEVICE_CPU), PlusOp);
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_code_in_cpp() -> None:
    """Also code for old releases of TensorFlow; compiled once, as the native ops are."""
    ops = OpCodeCompiler(base_name="CompatTest", code_version=1, code=CODE, is_cpp=True).load_tf_module()
    np.testing.assert_array_equal(ops.compat_test_plus(x=[1.0, 2.0]).numpy(), [5, 6])


def test_what_does_not_compile() -> None:
    with pytest.raises(ConfigError, match="use_cuda_if_available=False"):
        OpCodeCompiler(base_name="x", code_version=1, code="", use_cuda_if_available=True)
    with pytest.raises(ConfigError, match="without the arguments ld_flags"):
        OpCodeCompiler(base_name="x", code_version=1, code="", ld_flags=["-lx"])
    if shutil.which("g++"):
        with pytest.raises(ConfigError, match="the code of 'x' does not compile: .*"):
            OpCodeCompiler(base_name="x", code_version=1, code="this is no code").load_tf_module()
