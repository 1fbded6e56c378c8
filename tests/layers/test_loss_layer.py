"""loss, sparse_softmax_cross_entropy_with_logits, fast_bw and forced_align beyond the recorded cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.layers.losses.single import LENS, feed_of, log_softmax, network_of, valid

P = {"class": "softmax", "n_out": 3, "from": "data"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "loss, source, target",
    [
        ("ce", "p", "classes"),
        ("ce", "p", None),
        ("mse", "p", "target"),
        ("mse", "p", "layer:q"),
        ("bin_ce", "p", "target"),
    ],
)
@pytest.mark.parametrize("use_error", [False, True])
def test_values_add_up_to_the_loss(loss: str, source: str, target: Any, use_error: bool) -> None:
    others = {
        "p": P,
        "q": dict(P),
        "same": {"class": "copy", "from": source, "loss": loss, "target": target},
    }
    layer = {"class": "loss", "loss_": loss, "target_": target, "from": source, "use_error": use_error}
    net = network_of(layer, others=others)
    out = net.run(feed_of())
    reduced = out.errors["same"] if use_error else out.losses["same"]
    assert out.layers["output"].axes == ("B", "T")
    np.testing.assert_allclose(valid(out.layers["output"].value).sum(), reduced, rtol=1e-4)


def test_layout_of_the_source_is_kept() -> None:
    extern = {"data": {"dim": 4, "time_dim_axis": 0, "batch_dim_axis": 1}, "classes": {"dim": 3, "sparse": True}}
    net = network_of({"class": "loss", "loss_": "ce", "from": "p"}, others={"p": P}, extern_data=extern)
    assert net.plan.outputs["output"].output.axis_kinds == ("T", "B")
    feed = {k: v for k, v in feed_of().items() if not k.startswith("target")}
    out = net.run(feed, fetch=["p"])
    p, labels = out.layers["p"].value, feed["classes"]
    expected = -np.log(np.take_along_axis(p, labels[..., None], axis=2)[..., 0])
    np.testing.assert_allclose(valid(out.layers["output"].value), valid(expected), rtol=1e-4)


def test_losses_on_sequences_give_one_value_each() -> None:
    layer = {"class": "loss", "loss_": "ctc", "from": "p", "loss_opts_": {"beam_width": 4}}
    net = network_of(layer, others={"p": {"class": "softmax", "n_out": 4, "from": "data"}})
    feed = feed_of()
    feed["classes"], feed["classes/size0"] = feed["classes"][:, :1], np.ones([3], "int32")
    assert net.run(feed).layers["output"].axes == ("B",)


@pytest.mark.parametrize("axis", [None, "dim:3"])
def test_sparse_cross_entropy_repeats_labels_over_axes_that_they_lack(axis: Any) -> None:
    time, extra = SpatialDim("time"), SpatialDim("extra", 2)
    extern: dict[str, Any] = {
        "data": {"dim_tags": [batch_dim, time, FeatureDim("f", 3), extra], "feature_dim_axis": 2},
        "classes": {"dim_tags": [batch_dim, time], "sparse": True, "dim": 3},
    }
    layer = {
        "class": "sparse_softmax_cross_entropy_with_logits",
        "logits": "data:data",
        "targets": "data:classes",
        "axis": axis,
        "from": [],
    }
    net = network_of(layer, extern_data=extern)
    rng = np.random.default_rng(1)
    data = rng.normal(size=(3, 5, 3, 2)).astype("float32")
    labels = rng.integers(0, 3, size=(3, 5)).astype("int32")
    labels[1, 3:] = 99  # padding
    out = net.run({"data": data, "data/size0": LENS, "classes": labels, "classes/size0": LENS}).layers["output"]
    log_p = log_softmax(np.moveaxis(data, 2, 3).astype("float64"))
    for b, n in enumerate(LENS):
        for t in range(n):
            np.testing.assert_allclose(out.value[b, t], -log_p[b, t, :, labels[b, t]], rtol=1e-4)


@pytest.mark.parametrize("source", ["data:classes", None])
def test_staircase(source: Any) -> None:
    """Class t in frame t, in as many frames as there are classes; with the lengths of the source in all frames."""
    extern = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
    layer = {"class": "fast_bw", "align_target": "staircase", "staircase_seq_len_source": source, "from": "data"}
    net = network_of({k: v for k, v in layer.items() if v}, extern_data=extern)
    feed = {
        "data": np.random.default_rng(1).normal(size=(2, 4, 4)).astype("float32"),
        "data/size0": np.array([3, 4], "int32"),
        "classes": np.zeros([2, 3], "int32"),
        "classes/size0": np.array([2, 3], "int32"),
    }
    value = net.run({k: v for k, v in feed.items() if source or "classes" not in k}).layers["output"].value
    for b, n in enumerate([2, 3] if source else [3, 4]):
        np.testing.assert_allclose(value[b], np.eye(4) * (np.arange(4) < n)[:, None], atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("use_error", [False, True])
@pytest.mark.parametrize("part", ["loss", "error"])
def test_parts(part: str, use_error: bool) -> None:
    others = {
        "p": P,
        "l": {"class": "loss", "loss_": "ce", "target_": "classes", "from": "p", "use_error": use_error},
        "same": {"class": "copy", "from": "p", "loss": "ce", "target": "classes"},
    }
    out = network_of({"class": "copy", "from": "l/%s" % part}, others=others).run(feed_of())
    reduced = out.errors["same"] if part == "error" else out.losses["same"]
    np.testing.assert_allclose(valid(out.layers["output"].value).sum(), reduced, rtol=1e-4)


def test_axes_of_the_targets_are_paired_in_order_if_their_sizes_agree() -> None:
    time, classes, f, g = SpatialDim("time"), SpatialDim("c", 5), FeatureDim("f", 3), FeatureDim("g", 3)
    layer = {
        "class": "sparse_softmax_cross_entropy_with_logits",
        "logits": "data",
        "targets": "data:classes",
        "axis": classes,
        "from": [],
    }

    def net(last: Any) -> Any:
        extern = {
            "data": {"dim_tags": [batch_dim, classes, time, f]},
            "classes": {"dim_tags": [batch_dim, last, time], "sparse_dim": classes, "dtype": "int32"},
        }
        return network_of(layer, extern_data=extern)

    rng = np.random.default_rng(1)
    data = rng.normal(size=(3, 5, 6, 3)).astype("float32")
    labels = rng.integers(0, 5, size=(3, 3, 6)).astype("int32")
    lens = np.array([4, 6, 3], "int32")
    value = net(g).run({"data": data, "data/size1": lens, "classes": labels, "classes/size1": lens})
    log_p = log_softmax(np.moveaxis(data, 1, 3).astype("float64"))
    expected = -np.take_along_axis(log_p, np.swapaxes(labels, 1, 2)[..., None], axis=3)[..., 0]
    for b, n in enumerate(lens):
        np.testing.assert_allclose(value.layers["output"].value[b, :n], expected[b, :n], rtol=1e-4)
    with pytest.raises(ConfigError, match="have the axis h=4, which logits .* lack"):
        net(FeatureDim("h", 4))


@pytest.mark.parametrize(
    "opts", [{"am_scale": 0.5}, {"min_prob": 0.2}, {"input_type": "prob", "min_prob": 0.2}], ids=str
)
def test_scores_of_fast_bw(opts: dict[str, Any]) -> None:
    log_p = {"class": "linear", "activation": "log_softmax", "n_out": 4, "from": "data"}
    scores = "tf.math.log(tf.maximum(tf.exp(source(0)), 0.2))" if "min_prob" in opts else "source(0) * 0.5"
    prob = {"class": "eval", "eval": "tf.exp(source(0))", "from": "lp"}
    base = {"class": "fast_bw", "align_target": "ctc", "align_target_key": "classes"}
    others = {
        "lp": log_p,
        "prob": prob,
        "scaled": {"class": "eval", "eval": scores, "from": "lp"},
        "same": {**base, "from": "scaled", "is_output_layer": True},
    }
    layer = {**base, **opts, "from": "prob" if opts.get("input_type") == "prob" else "lp"}
    net = network_of(layer, others=others)
    feed = feed_of()
    feed["classes"], feed["classes/size0"] = feed["classes"][:, :2], np.full([3], 2, "int32")
    feed["classes"][:] = [0, 1]
    out = net.run(feed)
    np.testing.assert_allclose(out.layers["output"].value, out.layers["same"].value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("topology, lasting", [("ctc", True), ("rna", False)])
@pytest.mark.parametrize("included", [False, True])
def test_forced_align(topology: str, lasting: bool, included: bool) -> None:
    """Label 1 is by far the best class of all frames."""
    dim = 3 if included else 2
    extern = {"data": {"dim": 3}, "classes": {"dim": dim, "sparse": True}}
    layer = {
        "class": "forced_align",
        "align_target": "data:classes",
        "topology": topology,
        "input_type": "log_prob",
        "blank_included": included,
    }
    scores = {"class": "copy", "from": "output/scores", "is_output_layer": True}
    net = network_of(layer, extern_data=extern, others={"scores": scores})
    data = np.zeros([2, 4, 3], "float32")
    data[:, :, 1], data[0, 2, 1] = 5.0, 6.0
    feed = {
        "data": data,
        "data/size0": np.array([4, 2], "int32"),
        "classes": np.array([[1, 0], [1, 1]], "int32"),
        "classes/size0": np.array([1, 2], "int32"),
    }
    out = net.run(feed)
    path, score = out.layers["output"].value, out.layers["scores"].value
    assert net.plan.outputs["output"].output.dim == 3
    if lasting:
        assert path.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]  # no path for two equal labels in two frames
        assert score[0] == 21.0 and score[1] == -np.inf
    else:
        assert path.tolist() == [[2, 2, 1, 2], [1, 1, 0, 0]]
        assert score.tolist() == [6.0, 10.0]
