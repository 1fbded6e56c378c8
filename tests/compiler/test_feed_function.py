"""`FeedFunction`: one graph for each set of feed names, whatever the sizes; and the format of feeds."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.feed import FeedFormat
from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.config import ConfigError
from returnn_tf.tensor import Data, FeatureDim, SpatialDim, batch_dim, parse_extern_data
from returnn_tf.util.lazy_tf import tf

EXTERN_DATA = parse_extern_data({"data": {"dim": 2}, "classes": {"dim": 5, "sparse": True}, "unused": {"dim": 7}})
FORMAT_KEYS = ["data", "classes"]


def feed(batch: int, time: int) -> dict[str, Any]:
    lens = np.full([batch], time)
    return {
        "data": np.ones([batch, time, 2], "float64"),
        "data/size0": lens,
        "classes": np.ones([batch, time], "int64"),
        "classes/size0": lens,
    }


def test_one_graph_for_all_sizes() -> None:
    traced: list[str] = []

    def emit(tensors: dict[str, Any], factor: Any) -> Any:
        traced.append(",".join(sorted(tensors)))
        return {"sum": factor * tf.reduce_sum(tensors["data"]), "labels": tensors["classes"]}

    function = FeedFunction(
        FeedFormat(EXTERN_DATA, FORMAT_KEYS),
        emit,
        specs=[tf.TensorSpec([], "float32")],
        before_trace=lambda: traced.append("tracing"),
    )
    assert not function.graphs
    for batch, time in ((2, 3), (1, 5), (4, 1)):
        found = function(feed(batch, time), tf.constant(3.0))
        assert found["sum"] == 6 * batch * time and found["labels"].shape == (batch, time)
    assert traced == ["tracing", "classes,classes/size0,data,data/size0"] and len(function.graphs) == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_tracing_waits_for_no_garbage_collection(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    seen: list[bool] = []
    if not enabled:
        monkeypatch.setattr(gc, "enable", lambda: seen.append(True))
        gc.disable()

    def emit(tensors: dict[str, Any]) -> Any:
        seen.append(gc.isenabled())
        raise ConfigError("not now")

    function = FeedFunction(FeedFormat(EXTERN_DATA, FORMAT_KEYS), emit)
    try:
        with pytest.raises(ConfigError, match="not now"):
            function(feed(1, 1))
        assert seen == [False] and gc.isenabled() == enabled
    finally:
        monkeypatch.undo()
        gc.enable()


def test_ops_of_other_graphs_are_emitted_there_while_tracing() -> None:
    """The graph is made the default one once, but again where another one, or none, has taken its place."""
    graphs: list[Any] = []

    def emit(tensors: dict[str, Any]) -> Any:
        graph, x = tf.compat.v1.get_default_graph(), tensors["data"]
        with tf.Graph().as_default() as other:
            assert tf.constant(1.0).graph is other
            with graph.as_default():
                assert tf.compat.v1.get_default_graph() is graph
        with tf.init_scope():
            assert tf.executing_eagerly()
            with graph.as_default():
                assert not tf.executing_eagerly() and (2.0 * x).graph is graph
        graphs.append(graph)
        return tf.cond(tf.size(x) > 0, lambda: tf.reduce_sum(x), lambda: tf.zeros([]))

    assert FeedFunction(FeedFormat(EXTERN_DATA, ["data"]), emit)(feed(2, 3)) == 12
    assert "as_default" not in dir(graphs[0]) or graphs[0].as_default == type(graphs[0]).as_default.__get__(graphs[0])


def test_tensors_pass_and_arrays_get_the_dtype_of_the_network() -> None:
    tensors = FeedFormat(EXTERN_DATA, FORMAT_KEYS).convert({**feed(2, 3), "further": 1})
    assert sorted(tensors) == ["classes", "classes/size0", "data", "data/size0"]
    assert [tensors[name].dtype for name in sorted(tensors)] == ["int32", "int32", "float32", "int32"]
    again = FeedFormat(EXTERN_DATA, FORMAT_KEYS).convert(tensors)
    assert all(again[name] is tensors[name] for name in tensors)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": None}, r"The feed lacks 'data' \(float32 \(None, None, 2\)\)"),
        ({"data/size0": None}, "The feed lacks 'data/size0'"),
        ({"data": np.ones([2, 3, 4])}, r"The feed has 'data' of shape \(2, 3, 4\), the network expects"),
        ({"data/size0": [3, 4]}, "The feed has 4 in 'data/size0' for sequence 1, but 'data' has 3 entries along that"),
        ({"data/size0": [-1, 3]}, "The feed has -1 in 'data/size0' for sequence 0, but 'data' has 3 entries"),
        (
            {"data/size0": [3]},
            "The feed has 1 lengths in 'data/size0' for the 2 sequences of 'data'. Give one for each",
        ),
        ({"data/size0": ["3", "1"]}, "The feed has 'data/size0' of type <U1, the network expects int32. Give integers"),
        ({"data/size0": [None, 3]}, "The feed has 'data/size0' of type object, the network expects int32"),
    ],
)
def test_feeds_which_do_not_fit(change: dict[str, Any], message: str) -> None:
    wrong = {name: value for name, value in {**feed(2, 3), **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        FeedFormat(EXTERN_DATA, FORMAT_KEYS).convert(wrong)


def test_lengths_that_are_fed_with_another_key() -> None:
    time, features = SpatialDim("time"), FeatureDim("features", 2)
    data = {key: Data.from_dims([batch_dim, time, features]) for key in ("data", "more")}
    arrays = {"data": np.ones([2, 4, 2]), "data/size0": [4, 1], "more": np.ones([2, 4, 2])}
    assert sorted(FeedFormat(data, ["more", "data"]).convert(arrays)) == sorted(arrays)
    with pytest.raises(ConfigError, match="The feed has 4 in 'data/size0' for sequence 0, but 'more' has 3 entries"):
        FeedFormat(data, ["more", "data"]).convert({**arrays, "more": np.ones([2, 3, 2])})


@pytest.mark.parametrize(
    "shape, message",
    [
        ([2, 2, 2], "The feed has 3 in 'data/size0' for sequence 0, but 'data' has 2 entries"),
        ([2], "The feed has 'data' "),
    ],
)
def test_tensors_which_do_not_fit(shape: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeedFormat(EXTERN_DATA, FORMAT_KEYS).convert({**feed(2, 3), "data": tf.zeros(shape)})


def test_symbolic_arrays_with_lengths() -> None:
    """Their sizes are not known while a graph is traced."""

    @tf.function(input_signature=[tf.TensorSpec([2, None, 2])], autograph=False)
    def lengths(data: tf.Tensor) -> tf.Tensor:
        return FeedFormat(EXTERN_DATA, ["data"]).convert({"data": data, "data/size0": [3, 1]})["data/size0"]

    assert lengths(tf.zeros([2, 3, 2])).numpy().tolist() == [3, 1]
