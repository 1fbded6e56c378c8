"""Attention over frames against numpy."""

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import SpatialDim
from tests.layers.nets import LENS, STATIC, TIME, fails, feed, gradient, net_of, run

ENERGY = {"class": "linear", "activation": None, "n_out": 1, "from": "data"}


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(value: Any, expected: Any) -> None:
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


# --- generic_attention ---


def weighted(weights: Any, base: str = "data", **options: Any) -> Any:
    network = {**weights, "output": {"class": "generic_attention", "weights": "w", "base": base, **options}}
    network["w"] = {**network["w"], "is_output_layer": True}
    return run(network)


@pytest.mark.parametrize("n,squeeze", [(1, True), (1, False), (2, True), (3, True)])
def test_weights_by_frame(n: int, squeeze: bool) -> None:
    out = weighted({"w": {**ENERGY, "n_out": n}}, auto_squeeze=squeeze)
    expected = np.einsum("bth,btf->bhf", out["w"].value, feed()["data"])
    close(out["output"].value, expected[:, 0] if n == 1 and squeeze else expected)


def test_heads_of_the_base_stay() -> None:
    out = weighted({"w": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data:wide"}}, "data:wide")
    close(out["output"].value, np.einsum("bth,bthf->bhf", out["w"].value, feed()["wide"]))


def test_heads_are_not_mistaken_for_features() -> None:
    """As many heads as features, all made from numbers."""
    heads = {"class": "split_dims", "axis": "F", "dims": (2, 2)}
    network = {
        **{k: {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data"} for k in ("k", "v", "q")},
        **{k + "h": {**heads, "from": k, "is_output_layer": True} for k in ("k", "v")},
        "last": {"class": "reduce", "mode": "mean", "axis": "T", "from": "q"},
        "qh": {**heads, "from": "last"},
        "e": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": None, "from": ["kh", "qh"]},
        "w": {"class": "softmax_over_spatial", "from": "e", "axis": "T", "is_output_layer": True},
        "output": {"class": "generic_attention", "weights": "w", "base": "vh"},
    }
    out = run(network)
    w = out["w"].value  # [batch, heads, time]
    close(out["output"].value, np.einsum("bht,bthd->bhd", w, out["vh"].value))


def test_frames_by_frames() -> None:
    """Weights for every frame of another sequence; without a mask of its own."""
    network = {
        "e": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T", "from": ["data:other", "data"]},
        "w": {"class": "softmax_over_spatial", "axis": TIME, "from": "e"},
    }
    out = weighted(network)
    assert out["w"].value.shape == (3, 4, 4)
    close(out["output"].value, np.einsum("bst,btf->bsf", out["w"].value, feed()["data"]))


def test_gradient_of_valid_frames_only() -> None:
    network = {
        "e": ENERGY,
        "w": {"class": "softmax_over_spatial", "from": "e"},
        "output": {"class": "generic_attention", "weights": "w", "base": "data"},
        "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"},
    }
    first, other = feed(), feed()
    for b, n in enumerate(LENS):
        other["data"][b, n:] = 100.0
    net = net_of(network)
    a, b = (net.run(f, with_grad=True) for f in (first, other))
    close(a.layers["output"].value, b.layers["output"].value)
    close(a.grads["e/W"], b.grads["e/W"])


@pytest.mark.parametrize(
    "weights,base,match",
    [
        ("data:other", "data", "reinterpret_data"),
        ("data", "data:numbers", "has no time axis"),
    ],
)
def test_bad_axes(weights: str, base: str, match: str) -> None:
    fails({"class": "generic_attention", "weights": weights, "base": base}, match)


# --- dot_attention, concat_attention, gauss_window_attention ---


@pytest.mark.parametrize("query", ["first", "data"])
@pytest.mark.parametrize("factor", [None, 0.5])
def test_dot_attention(query: str, factor: Any) -> None:
    network = {
        "first": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data", "is_output_layer": True},
        "output": {
            "class": "dot_attention",
            "base": "data:other",
            "base_ctx": "data:other",
            "energy_factor": factor,
            "from": query,
        },
    }
    out, x = run(network), feed()
    q = x["data"] if query == "data" else out["first"].value[:, None]
    for b, n in enumerate(LENS):
        w = softmax(q[b] @ x["other"][b, :n].T * (factor or 1))
        expected = w @ x["other"][b, :n]
        close(out["output"].value[b], expected if query == "data" else expected[0])


def test_concat_attention() -> None:
    network = {
        "first": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data", "is_output_layer": True},
        "output": {"class": "concat_attention", "base": "data:other", "base_ctx": "data:other", "from": "first"},
    }
    net, x = net_of(network), feed()
    out, v = net.run(x).layers, net.get_param_values()["output/v"]
    assert v.shape == (3,)
    for b, n in enumerate(LENS):
        keys = x["other"][b, :n]
        w = softmax((np.tanh(keys + out["first"].value[b]) @ v)[None])
        close(out["output"].value[b], (w @ keys)[0])


def test_as_many_features_as_the_context() -> None:
    network = {
        "class": "dot_attention",
        "base": "data",
        "base_ctx": "data:other",
        "from": "data:wide",
        "in_dim": STATIC,
    }
    fails(network, "the source has 2 features, base_ctx 3")


@pytest.mark.parametrize(
    "size, std, inner, step",
    [(3, 1.0, None, 0.5), (4, 0.5, None, 0.5), (1, 2.0, None, 0.5), (3, 1.0, 5, 0.5), (3, 1.0, 3, 1.25)],
)
def test_gauss_window(size: int, std: float, inner: Any, step: float) -> None:
    positions = np.array([-0.7, 1.4, 6.2], "float32")
    network = {
        "p": {"class": "eval", "eval": "tf.constant(%r) + 0. * tf.cast(source(0), 'float32')" % positions.tolist(),
              "from": "data:numbers", "out_type": {"dtype": "float32"}},
        "output": {"class": "gauss_window_attention", "base": "data", "window_size": size, "std": std,
                   "inner_size": inner, **({} if step == 0.5 else {"inner_size_step": step}), "from": "p"},
    }  # fmt: skip
    value, frames = run(network)["output"].value, feed()["data"]
    value = value if inner else value[:, None]
    for b, n in enumerate(LENS):
        for k in range(inner or 1):
            t = positions[b] + (0 if inner is None else (k - (inner - 1) / 2) * step)
            expected = np.zeros(3)
            for i in range(int(np.round(t)) - size // 2, int(np.round(t)) - size // 2 + size):
                density = np.exp(-0.5 * ((i - t) / std) ** 2) / (std * np.sqrt(2 * np.pi))
                expected += density * frames[b, min(max(i, 0), n - 1)]
            close(value[b, k], expected)


# --- self_attention ---


def heads_of(x: Any, qkv: Any, n_heads: int, key: int) -> Any:
    y = (x @ qkv).reshape(x.shape[:-1] + (n_heads, -1))
    return y[..., :key] * key**-0.5, y[..., key : 2 * key], y[..., 2 * key :]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("shift", [0, 2, 9])
def test_self_attention(left: bool, shift: int) -> None:
    network = {
        "shift": {"class": "relative_positional_encoding", "n_out": 2, "clipping": shift or 1, "from": "data"},
        "output": {
            "class": "self_attention",
            "num_heads": 3,
            "total_key_dim": 6,
            "n_out": 12,
            "attention_left_only": left,
            "key_shift": "shift" if shift else None,
            "from": "data",
        },
    }
    net, x = net_of(network), feed()
    value, params = net.run(x).layers["output"].value, net.get_param_values()
    q, k, v = heads_of(x["data"], params["output/QKV"], 3, 2)
    for b, n in enumerate(LENS):
        for t in range(n):
            end = t + 1 if left else n
            keys = k[b, :end]
            if shift:
                rows = np.clip(np.arange(end) - t, -shift, shift) + shift
                keys = keys + params["shift/encoding_matrix"][rows][:, None]
            w = softmax(np.einsum("hd,shd->hs", q[b, t], keys))
            close(value[b, t], np.einsum("hs,shd->hd", w, v[b, :end]).reshape(-1))


def test_self_attention_by_other_axes() -> None:
    layer = {"class": "self_attention", "num_heads": 1, "total_key_dim": 2, "n_out": 3, "from": "data:wide"}
    net = net_of({"output": layer})
    value, qkv = net.run(feed()).layers["output"].value, net.get_param_values()["output/QKV"]
    x = feed()["wide"][1, :2, 1]  # second sequence, two frames
    q, k, v = heads_of(x, qkv, 1, 2)
    expected = np.einsum("hts,shd->thd", softmax(np.einsum("thd,shd->hts", q, k)), v)[:, 0]
    close(value[1, 1, :2], expected)  # [batch, other axis, time, feature]


def test_empty_sequence_and_attention_dropout() -> None:
    layer = {
        "class": "self_attention",
        "num_heads": 1,
        "total_key_dim": 2,
        "n_out": 3,
        "attention_dropout": 0.5,
        "from": "data",
    }
    arrays = feed()
    for key in list(arrays):
        if key.endswith("size0"):
            arrays[key] = np.array([4, 0, 3], "int32")
    grad = gradient({**layer, "from": "a"}, arrays, train=True)
    assert np.isfinite(grad).all()
    net = net_of({"output": layer}, train=True)
    one, two = (net.run(feed()).layers["output"].value for _ in range(2))
    assert np.isfinite(one).all() and two.shape == one.shape
    close(net_of({"output": layer}).run(feed()).layers["output"].value.shape, one.shape)


@pytest.mark.parametrize(
    "options,match",
    [
        ({"num_heads": 2, "total_key_dim": 3, "n_out": 4}, "not divisible by num_heads 2"),
        ({"num_heads": 3, "total_key_dim": 3, "n_out": 4}, "not divisible by num_heads 3"),
        ({"num_heads": 1, "total_key_dim": 2, "n_out": 4, "key_shift": "data"}, r"must be \[time, time, key=2\]"),
        ({"num_heads": 1, "total_key_dim": 2, "n_out": 4, "from": "data:numbers"}, "no feature axis"),
        ({"num_heads": 1, "total_key_dim": 2, "n_out": 4, "from": "data:labels"}, "is sparse"),
    ],
)
def test_bad_self_attention(options: Any, match: str) -> None:
    fails({"class": "self_attention", "from": "data", **options}, match)


# --- cum_concat ---


def test_cum_concat_over_time() -> None:
    history = SpatialDim("history")
    network = {
        "all": {"class": "cum_concat", "out_spatial_dim": history, "from": "data"},
        "e": {"class": "dot", "red1": "F", "red2": "F", "var1": TIME, "var2": history, "from": ["data", "all"]},
        "w": {"class": "softmax_over_spatial", "axis": history, "from": "e"},
        "output": {"class": "dot", "red1": history, "red2": history, "var1": TIME, "var2": "F", "from": ["w", "all"]},
    }
    value, x = run(network)["output"].value, feed()["data"]
    for b, n in enumerate(LENS):
        for t in range(n):
            seen = x[b, : t + 1]
            close(value[b, t], softmax((seen @ x[b, t])[None])[0] @ seen)


def test_cum_concat_over_features() -> None:
    fails({"class": "cum_concat", "axis": "F", "from": "data"}, "cannot run along")


RANGE = {
    "r": {"class": "range_in_axis", "axis": "T", "dtype": "float32", "sparse": False, "from": "data"},
    "f": {"class": "expand_dims", "axis": "F", "from": "r"},
    "pooled": {"class": "slice", "axis": "T", "slice_step": 2, "from": "f"},
}


@pytest.mark.parametrize("source", ["f", "pooled"])
def test_a_source_of_no_sequence_is_refused_by_the_plan(source: str) -> None:
    """Each sequence has another number of frames to attend to."""
    attention = {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4, "from": source}
    config = {"extern_data": {"data": {"dim": 4}}, "network": {**RANGE, "output": attention}, "behavior_version": 12}
    with pytest.raises(ConfigError, match="Layer 'output' .* no batch axis, but each sequence .* First combine it"):
        Network.plan(Config(config))
    config["network"]["with_data"] = {"class": "combine", "kind": "add", "from": ["r", "data"]}
    config["network"]["output"] = {**attention, "from": "with_data"}
    assert Network.plan(Config(config)).nodes
