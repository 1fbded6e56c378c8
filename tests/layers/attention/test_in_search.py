"""Attention over what a search has put out so far: the same hypotheses by `cum_concat` as by `self_attention`."""

import contextlib
import functools
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.export.graph_ops import op_types
from returnn_tf.native.portable import in_portable_ops, portable_ops
from returnn_tf.tensor import FeatureDim, SpatialDim
from tests.layers.nets import EXTERN_DATA, feed

KEY, VALUE = FeatureDim("key", 4), FeatureDim("value", 3)
HISTORY = SpatialDim("history")
SHIFT = {"class": "relative_positional_encoding", "n_out": 4, "clipping": 2, "from": "emb"}
SELF = {"class": "self_attention", "num_heads": 1, "total_key_dim": 4, "n_out": 3, "from": "emb"}
BY_HISTORY: dict[str, Any] = {
    "qkv": {"class": "linear", "activation": None, "with_bias": False, "n_out": 11, "from": "emb"},
    "parts": {"class": "split", "out_dims": [KEY, KEY, VALUE], "from": "qkv"},
    "keys": {"class": "cum_concat", "out_spatial_dim": HISTORY, "from": "parts/1"},
    "values": {"class": "cum_concat", "out_spatial_dim": HISTORY, "from": "parts/2"},
    "e": {"class": "dot", "red1": KEY, "red2": KEY, "var1": None, "var2": HISTORY, "from": ["parts/0", "keys"]},
    "w": {"class": "softmax_over_spatial", "axis": HISTORY, "energy_factor": 0.5, "from": "e"},
    "sa": {"class": "generic_attention", "weights": "w", "base": "values"},
}


def search_net(layers: dict[str, Any], beam: int = 3) -> Network:
    unit = {
        "emb": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "prev:output"},
        **layers,
        "p": {"class": "softmax", "n_out": 5, "from": ["sa", "base:last"]},
        "end": {"class": "compare", "from": "output", "value": 0},
        "output": {"class": "choice", "target": "labels", "beam_size": beam, "from": "p", "initial_output": 0},
    }
    network = {
        "last": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "keys": {"class": "linear", "activation": None, "n_out": 4, "from": "data"},
        "heads": {"class": "split_dims", "axis": "F", "dims": (2, -1), "from": "keys"},
        "output": {"class": "rec", "from": [], "target": "labels", "max_seq_len": 6, "unit": unit},
        "dec": {"class": "decide", "from": "output", "is_output_layer": True},
    }
    config = Config({"extern_data": EXTERN_DATA, "network": network, "behavior_version": 21})
    return Network.from_config(config, search=True)


@functools.cache
def by_layer_and_history() -> tuple[Any, Any]:
    """Return networks with the same attention, by one layer and by others."""
    return search_net({"sa": SELF}), search_net(BY_HISTORY)


@pytest.mark.slow
@pytest.mark.parametrize("seed, scale", [(0, 1.0), (1, 1.0), (5, 1.0), (4, 0.5)])
def test_same_hypotheses(seed: int, scale: float) -> None:
    """With one label only, and with labels that change, where hypotheses are reordered."""
    one, two = by_layer_and_history()
    rng = np.random.default_rng(seed)
    params = {k: scale * rng.normal(size=v.shape).astype("float32") for k, v in one.get_param_values().items()}
    one.set_param_values(params)
    params["output/rec/qkv/W"] = params.pop("output/rec/sa/QKV")
    two.set_param_values(params)
    first, second = one.run(feed()).layers["dec"], two.run(feed()).layers["dec"]
    assert [list(v) for v in first.sizes.values()] == [list(v) for v in second.sizes.values()]
    np.testing.assert_allclose(first.beam_scores, second.beam_scores, rtol=1e-5)
    for lens in first.sizes.values():
        for b, n in enumerate(lens):
            np.testing.assert_array_equal(first.value[b, :n], second.value[b, :n])


@pytest.mark.slow
def test_relative_positions() -> None:
    """Without the vectors of the distances the hypotheses are those of plain self attention."""
    one, two = search_net({"sa": SELF}), search_net({"shift": SHIFT, "sa": {**SELF, "key_shift": "shift"}})
    rng = np.random.default_rng(5)
    params = {k: rng.normal(size=v.shape).astype("float32") for k, v in two.get_param_values().items()}
    name = "output/rec/shift/encoding_matrix"
    two.set_param_values({**params, name: 0 * params[name]})
    one.set_param_values({k: v for k, v in params.items() if k != name})
    first, second = (net.run(feed()).layers["dec"].value for net in (one, two))
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_relative_positions_in_place() -> None:
    """The native op, where keys and values stay in place, against histories that are copied."""
    net = search_net({"shift": SHIFT, "sa": {**SELF, "key_shift": "shift"}})
    rng = np.random.default_rng(6)
    net.set_param_values({k: rng.normal(size=v.shape).astype("float32") for k, v in net.get_param_values().items()})
    found = net.run(feed()).layers["dec"]
    with portable_ops():
        plain = search_net({"shift": SHIFT, "sa": {**SELF, "key_shift": "shift"}})
        plain.set_param_values(net.get_param_values())
        expected = plain.run(feed()).layers["dec"]
    np.testing.assert_array_equal(found.value, expected.value)
    np.testing.assert_allclose(found.beam_scores, expected.beam_scores, rtol=1e-5)


ENERGIES = {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T?"}
ONE_HEAD: dict[str, Any] = {
    "q": {"class": "linear", "activation": None, "n_out": 4, "from": "emb"},
    "e": {**ENERGIES, "from": ["base:keys", "q"]},
    "w": {"class": "softmax_over_spatial", "energy_factor": 0.7, "from": "e"},
    "sa": {"class": "generic_attention", "weights": "w", "base": "base:keys"},
}
TWO_HEADS: dict[str, Any] = {
    **ONE_HEAD,
    "q_heads": {"class": "split_dims", "axis": "F", "dims": (2, -1), "from": "q"},
    "e": {**ENERGIES, "from": ["base:heads", "q_heads"]},
    "scaled": {"class": "eval", "eval": "source(0) * 0.7", "from": "e"},
    "w": {"class": "softmax_over_spatial", "from": "scaled"},
    "c": {"class": "generic_attention", "weights": "w", "base": "base:heads"},
    "sa": {"class": "merge_dims", "axes": ["stag:heads", "F"], "from": "c"},
}
BY_DOT = {**ONE_HEAD, "sa": {"class": "dot", "reduce": "stag:time", "from": ["base:keys", "w"]}}
#: The weights are summed up over the steps, so they have to exist.
SUMMED = {
    **ONE_HEAD,
    "sum": {"class": "combine", "kind": "add", "from": ["prev:sum", "w"]},
    "e_only": {**ENERGIES, "from": ["base:keys", "q"]},
    "e": {"class": "combine", "kind": "sub", "from": ["e_only", "prev:sum"]},
}


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    "layers, is_one_op",
    [(ONE_HEAD, True), (TWO_HEADS, True), (BY_DOT, True), (SUMMED, False)],
    ids=["one-head", "two-heads", "by-dot", "summed"],
)
def test_frames_of_a_sequence(beam: int, layers: dict[str, Any], is_one_op: bool) -> None:
    """Attention to the encoder is one op, unless something else reads the weights, and gives what TensorFlow's do."""
    found = []
    for context in (contextlib.nullcontext(), portable_ops()):
        with context:
            net = search_net(layers, beam)
            rng = np.random.default_rng(3)
            net.set_param_values({key: rng.normal(size=p.shape) for key, p in sorted(net.params.items())})
            found.append(net.run(feed()).layers["dec"])
            ((graph,),) = (function.graphs for function in net._functions.values())
            types = op_types(graph.graph.as_graph_def())
            native = {"RtfOnceAttention"} if is_one_op else {"RtfOnceSums"}
            assert native.isdisjoint(types) == in_portable_ops()
            assert is_one_op or "RtfOnceAttention" not in types
    np.testing.assert_allclose(found[0].beam_scores, found[1].beam_scores, rtol=1e-5)
    np.testing.assert_array_equal(found[0].value, found[1].value)
