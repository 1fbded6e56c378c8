"""What code in a network sees of templates, layers and networks: attributes, axes, lengths, copies."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.compat.views.data_view import DataView
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import ConfigError
from returnn_tf.tensor import Data, FeatureDim, SpatialDim, batch_dim
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import LENS, config_of, feed, net_of, run, template

TIME, STATIC, FEATURE = SpatialDim("time"), SpatialDim("s", 2), FeatureDim("f", 3)


def view(dims: str = "BTSF", **options: Any) -> DataView:
    known = {"B": batch_dim, "T": TIME, "S": STATIC, "F": FEATURE, "t": SpatialDim("other")}
    return DataView(Data.from_dims([known[c] for c in dims], **options), name="x")


ATTRIBUTES: list[Any] = [
    ("BTSF", "shape", (None, 2, 3)),
    ("TBF", "shape", (None, 3)),
    ("BTSF", "batch_shape", (None, None, 2, 3)),
    ("BTSF", "batch_shape_dense", (None, None, 2, 3)),
    ("BTSF", "ndim", 3),
    ("BTSF", "batch_ndim", 4),
    ("TBF", "batch_dim_axis", 1),
    ("TBF", "time_dim_axis", 0),
    ("TBF", "is_time_major", True),
    ("BTF", "is_batch_major", True),
    ("BFT", "is_batch_feature_major", True),
    ("TBF", "time_dim_axis_excluding_batch", 0),
    ("BTF", "time_dim_axis_excluding_batch", 0),
    ("BSTF", "time_dim_axis_excluding_batch", 1),
    ("SF", "time_dim_axis", None),
    ("BTSF", "dim", 3),
    ("BTF", "dtype", "float32"),
    ("BTF", "beam", None),
    ("BTtF", "get_dynamic_axes()", [1, 2]),
    ("BTSF", "get_static_axes()", [2, 3]),
    ("BTSF", "get_spatial_batch_axes()", [1, 2]),
    ("TBSF", "get_spatial_axes()", [0, 1]),
    ("BTSF", "get_axes(exclude_time=True)", [0, 2, 3]),
    ("TBSF", "get_axes(exclude_batch=True)", [0, 2, 3]),
    ("TBSF", "get_batch_axis_excluding_batch(2)", 1),
    ("TBSF", "get_batch_axis_excluding_batch(1)", None),
    ("TBSF", "get_batch_axis(1)", 2),
    ("BTSF", "get_axis_from_description('F')", 3),
    ("BTSF", "get_axes_from_description('static')", [2, 3]),
    ("BTSF", "get_time_dim_tag() is TIME", True),
    ("BTSF", "get_dim_tag(2) is STATIC", True),
    ("BTSF", "is_axis_dynamic(1)", True),
    ("BTSF", "is_axis_dynamic(-1)", False),
    ("BSF", "have_time_axis()", False),
    ("BTF", "have_feature_axis()", True),
    ("BTF", "copy_as_time_major().batch_dim_axis", 1),
    ("TBF", "copy_as_batch_major().time_dim_axis", 1),
    ("BTF", "copy_as_batch_feature_major().feature_dim_axis", 1),
    ("BFT", "copy_with_feature_last().feature_dim_axis", 2),
    ("BTF", "copy_template(name='y').name", "y"),
    ("BTF", "copy_template('y', dtype='int32').dtype", "int32"),
    ("BTSF", "copy_template_excluding_axis(2).shape", (None, 3)),
    ("BTF", "copy_template_excluding_time_dim().shape", (3,)),
    ("BTF", "copy_template_replace_dim_tag(axis=2, new_dim_tag=STATIC).dim_tags[2] is STATIC", True),
    ("BTF", "copy_template_replace_dim(axis=2, new_dim=7).dim", 7),
    ("BTF", "copy_template_adding_time_dim(time_dim_axis=0).shape", (None, None, 3)),
    ("BTSF", "copy_template_excluding_spatial_dim(1).shape", (None, 3)),
    ("BTF", "copy_template_new_dim_tags([batch_dim, STATIC]).shape", (2,)),
    ("BTF", "copy_add_feature_dim().shape", (None, 3, 1)),
    ("BTF", "copy_add_spatial_dim(1).shape", (1, None, 3)),
    ("BTF", "copy_move_axis(0, 2).batch_dim_axis", 2),
    ("BTF", "copy_transpose(['T', 'B', 'F']).is_time_major", True),
]


@pytest.mark.parametrize("dims, code, expected", ATTRIBUTES)
def test_templates(dims: str, code: str, expected: Any) -> None:
    names = {"view": view(dims), "TIME": TIME, "STATIC": STATIC, "batch_dim": batch_dim}
    assert eval("view." + code, names) == expected


def change(dims: str, **attributes: Any) -> Data:
    changed = view(dims)
    for name, value in attributes.items():
        setattr(changed, name, value)
    return changed.template


def test_attributes_are_set_together() -> None:
    """As old code does: one after the other, although they contradict each other in between."""
    data = change("BTF", time_dim_axis=0, batch_dim_axis=1)
    assert data.dims == (TIME, batch_dim, FEATURE) and data.time_axis == 0 and data.feature_axis == 2
    data = change("BTF", dim=5, shape=(None, 5))
    assert data.dims[1] is TIME and data.dim == 5
    assert change("BTSF", shape=(None, 3)).dims == (batch_dim, TIME, FEATURE)
    assert change("BTF", dim=9).static_shape == (None, None, 9)
    data = change("BTF", shape=(None,), sparse=True, dim=7, dtype="int32")
    assert data.sparse and data.dim == 7 and data.dims == (batch_dim, TIME) and data.feature_axis is None
    assert change("BTF", batch_dim_axis=None, shape=(None, 3)).dims == (TIME, FEATURE)
    data = change("BF", shape=(None, 4, 3))
    assert data.time_axis == 1 and data.dims[3] is FEATURE and data.dims[1].is_dynamic()
    for attributes, message in [
        ({"shape": 3}, "must be a tuple of sizes"),
        ({"dtype": "floot32"}, "dtype 'floot32' is unknown"),
        ({"batch_dim_axis": 7}, "batch_dim_axis is 7, but there are 3 axes"),
        ({"time_dim_axis": 0}, "that is the batch axis. Set batch_dim_axis, too"),
    ]:
        with pytest.raises(ConfigError, match=message):
            change("BTF", **attributes)  # type: ignore[arg-type]


def test_lengths_name_their_dim() -> None:
    source, other = view("BTF"), view("BtF")
    assert other.template.time_dim is not TIME
    other.size_placeholder = source.size_placeholder
    assert other.template.time_dim is TIME
    another = view("BtF")
    another.size_placeholder[0] = source.get_sequence_lengths()
    assert another.template.time_dim is TIME
    with pytest.raises(ConfigError, match="no axis 5"):
        another.set_lengths(5, source.get_sequence_lengths())


def test_there_are_no_tensors_while_planning() -> None:
    for use in (lambda v: v.get_placeholder_as_batch_major(), lambda v: v.get_sequence_mask()):
        with pytest.raises(ConfigError, match="template here|only a template"):
            use(view("BTF"))
    with pytest.raises(ConfigError, match="no time axis"):
        view("BSF").get_sequence_lengths()


def evaluated(code: Callable[..., Any], network: Any = (), **options: Any) -> Any:
    layer = {"class": "eval", "eval": code, "from": "data", **options}
    return run({**dict(network), "output": layer})["output"].value


CODES: list[Any] = [
    ("d.get_placeholder_as_time_major()", lambda x: x.transpose(1, 0, 2), (None, None, 3)),
    ("tf.cast(d.get_sequence_mask(), tf.float32)", lambda x: np.arange(4)[None] < LENS[:, None], (None,)),
    ("tf.cast(d.copy_as_time_major().get_sequence_mask(), tf.float32)",
     lambda x: np.arange(4)[:, None] < LENS[None], None),
    ("tf.cast(d.get_sequence_mask_broadcast(), tf.float32) * x",
     lambda x: x * (np.arange(4)[None] < LENS[:, None])[..., None], (None, 3)),
    ("x * tf.cast(d.time_dimension(), tf.float32)", lambda x: x * 4, (None, 3)),
    ("x * tf.cast(d.get_batch_dim(), tf.float32)", lambda x: x * 3, (None, 3)),
    ("tf.cast(d.size_placeholder[0], tf.float32)", lambda x: LENS, ()),
    ("tf.cast(d.get_dynamic_size(1), tf.float32)", lambda x: LENS, ()),
    ("d.copy_add_spatial_dim(1).placeholder[:, 0]", lambda x: x, (None, 3)),
    ("d.copy_squeeze_axes([]).placeholder", lambda x: x, (None, 3)),
    ("tf.reduce_sum(d.get_placeholder_flattened()) + x * 0",
     lambda x: x * 0 + sum(x[i, :n].sum() for i, n in enumerate(LENS)), (None, 3)),
]  # fmt: skip


@pytest.mark.parametrize("code, expected, shape", [case for case in CODES if case[2] is not None])
def test_values(code: str, expected: Callable[[Any], Any], shape: Any) -> None:
    def function(source: Any, **_: Any) -> Any:
        import tensorflow as tf

        d = source(0, as_data=True)
        return eval(code, {"d": d, "x": d.placeholder, "tf": tf})

    out_type: dict[str, Any] = {"shape": shape, "dim": shape[-1] if shape and shape[-1] else None}
    if len(shape) == 3:
        out_type = {"batch_dim_axis": 1, "time_dim_axis": 0}
    got = evaluated(function, out_type=out_type)
    want = expected(feed()["data"])
    if len(shape) == 3 and got.shape != want.shape:  # results have the batch first
        want = want.transpose(1, 0, 2)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_layers_and_network() -> None:
    seen: dict[str, Any] = {}

    def function(source: Any, self: Any, **_: Any) -> Any:
        network = self.network
        lin = network.get_layer("lin")
        seen.update(
            name=self.name, same=lin.output.dim, params=sorted(lin.params), parent=network.parent_net,
            before=lin.output_before_activation.act_func, train=network.train_flag, search=network.search_flag,
            keys=network.get_used_data_keys(),
            layers="lin" in network.layers, option=lin.n_out, scope=lin.get_absolute_name_scope_prefix(),
            classes=network.extern_data.data["labels"].dim, loop=network.is_inside_rec_layer(),
            random=network.random.randint(1000), source=source(0, as_layer=True).name, cls=lin.layer_class,
        )  # fmt: skip
        return source(0)

    network = {
        "lin": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"},
        "output": {"class": "eval", "eval": function, "from": "data"},
    }
    run(network)
    random = seen.pop("random")
    run(network)
    assert seen.pop("random") == random  # the same in every graph
    assert seen == {
        "name": "output", "same": 5, "params": ["W", "b"], "before": "tanh", "parent": None, "train": False,
        "search": False, "keys": {"data", "labels"}, "layers": True, "option": 5, "scope": "lin/", "classes": 5,
        "loop": False, "source": "data", "cls": "linear",
    }  # fmt: skip


def test_a_layer_that_code_asks_for_is_a_dependency() -> None:
    """Although it is neither in "from" nor needed by anything else; also in loops, as the value of the step."""
    code = "source(0) + self.network.get_layer('twice').output.placeholder"
    twice = {"class": "eval", "eval": "source(0) * 2", "from": "data"}
    x = feed()["data"]
    got = run({"twice": twice, "output": {"class": "eval", "eval": code, "from": "data"}})["output"]
    np.testing.assert_allclose(got.value, 3 * x, rtol=1e-6)
    unit = {
        "twice": {**twice, "from": "data:source"},
        "output": {"class": "eval", "eval": code + " + 0 * source(1)", "from": ["data:source", "prev:output"]},
    }
    loop = run({"output": {"class": "rec", "from": "data", "unit": unit}})["output"]
    value = loop.value if loop.axes[0] == "B" else loop.value.transpose(1, 0, 2)
    for i, n in enumerate(LENS):
        np.testing.assert_allclose(value[i, :n], 3 * x[i, :n], rtol=1e-6)
    outer = {
        "twice": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "output": {"class": "rec", "from": "data", "unit": {"output": {
            "class": "eval", "from": ["data:source", "prev:output"],
            "eval": "source(0) + 0 * source(1) + self.network.parent_net.get_layer('twice').output.placeholder",
        }}},
    }  # fmt: skip
    loop = run(outer)["output"]
    value = loop.value if loop.axes[0] == "B" else loop.value.transpose(1, 0, 2)
    for i, n in enumerate(LENS):
        np.testing.assert_allclose(value[i, :n], x[i, :n] + x[i, :n].mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("sources", [["data:source", "prev:output"], ["data:source"]])
def test_the_step_of_a_loop(sources: list[str]) -> None:
    zero = " + ".join("source(%d) * 0" % i for i in range(len(sources)))
    code = zero + " + tf.cast(self.network.get_rec_step_index(), 'float32')"
    unit = {"output": {"class": "eval", "from": sources, "eval": code}}
    loop = run({"output": {"class": "rec", "from": "data", "unit": unit}})["output"]
    value = loop.value if loop.axes[0] == "B" else loop.value.transpose(1, 0, 2)
    np.testing.assert_array_equal(value[0, :, 0], np.arange(4))
    with pytest.raises(ConfigError, match="asks for the step of the loop, but the layer is computed outside"):
        run({"output": {"class": "eval", "eval": "source(0) * self.network.get_rec_step_index()", "from": "data"}})


MISTAKES: list[Any] = [
    ("source(0)", ["data", "data"], r"does not use source\(1\), i.e. 'data'. Remove what it does not need"),
    (lambda source, **_: None, ["data"], "must give a tensor, but it gave NoneType. .* return statement"),
    (lambda source, **_: [source(0)], ["data"], "must give a tensor, but it gave list"),
    ("source(0) + self.network.get_layer('outptu').output.placeholder", ["data"], "asks for the layer 'outptu'"),
    ("source(0) + self.network.get_seq_tags()", ["data"], "the names of the sequences, which .* not fed with"),
    ("source(0, as_data=True).nothing", ["data"], "no attribute 'nothing'"),
    ("source(0) + self.sources[0].nothing", ["data"], "has no attribute 'nothing' here"),
    ("source(0) + network.nothing", ["data"], "unknown name 'network'. Give names of your own by eval_locals"),
    ("saef_log(source(0))", ["data"], "unknown name 'saef_log'. Did you mean 'safe_log'"),
    ("source(0) + source(1)", ["data"], r"has source\(1\), but there is only source\(0\)"),
    ("source(-1)", ["data", "data"], r"has source\(-1\), but there are 2 sources"),
    ("source(i=2)", ["data", "data"], r"has source\(2\), but there are 2 sources"),
    ("source(i=0)", ["data", "data"], r"does not use source\(1\)"),
    ("source('x')", ["data"], r"has source\('x'\)"),
    ("sum([source(i) for i in range(2)])", ["data"], r"source\(1\): the layer has only 1 sources"),
]


@pytest.mark.parametrize("code, sources, message", MISTAKES)
def test_mistakes(code: Any, sources: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        run({"output": {"class": "eval", "eval": code, "from": sources}})
    assert "Layer 'output' (class 'eval')" in str(error.value)


def test_code_that_needs_a_source_in_training_alone() -> None:
    def function(source: Any, self: Any, **_: Any) -> Any:
        return self.network.cond_on_train(lambda: source(0) + source(1), lambda: source(0))

    net = net_of({"output": {"class": "eval", "eval": function, "from": ["data", "data"]}}, train=True)
    x = feed()["data"]
    np.testing.assert_allclose(net.run(feed(), train=True).layers["output"].value, 2 * x)
    np.testing.assert_allclose(net.run(feed(), train=False).layers["output"].value, x)


@pytest.mark.parametrize("kind", ["eval", "combine"])
def test_out_type_functions(kind: str) -> None:
    seen: dict[str, Any] = {}

    def out_type(sources: Any, name: str, factor: int, **options: Any) -> Any:
        seen.update(options, name=name, factor=factor)
        return sources[0].output.copy_template(name="x").copy_template_replace_dim(axis=2, new_dim=3 * factor)

    layer = {
        "class": kind, "eval": "tf.tile(source(0), [1, 1, factor])", "eval_locals": {"factor": 2}, "from": "data",
        "out_type": out_type, **({"kind": "eval"} if kind == "combine" else {}),
    }  # fmt: skip
    data = template({"output": layer})
    assert data.dim == 6 and data.axis_kinds == ("B", "T", "F")
    assert seen["name"] == "output" and seen["factor"] == 2 and seen["eval_locals"] == {"factor": 2}
    np.testing.assert_array_equal(run({"output": layer})["output"].value, np.tile(feed()["data"], [1, 1, 2]))
    for result, message in [(3, "must return a Data or a dict, got 3"), (None, "must return a Data")]:
        layer["out_type"] = lambda result=result, **_: result
        with pytest.raises(ConfigError, match=message):
            template({"output": layer})
    layer["out_type"] = lambda **_: 1 / 0
    with pytest.raises(ConfigError, match="the function in out_type failed: .*ZeroDivisionError"):
        plan_from_config(config_of({"output": layer}))


def test_activations_combined_by_operators() -> None:
    x = feed()["data"]
    cases = {
        "tanh * 2": 2 * np.tanh(x), "identity + 1": x + 1, "1 - sigmoid": 1 - 1 / (1 + np.exp(-x)),
        "tanh / 2 + identity * 3": np.tanh(x) / 2 + 3 * x, "relu | identity + 1": np.maximum(x, 0) + 1,
        "-tanh": -np.tanh(x), "cosh": np.cosh(x), "2.5 + 0": np.full_like(x, 2.5),
    }  # fmt: skip
    for activation, expected in cases.items():
        got = run({"output": {"class": "activation", "activation": activation, "from": "data"}})["output"].value
        np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=activation)
    for activation, message in [("tnah * 2", "unknown activation 'tnah'. Did you mean 'tanh'"),
                                ("tanh ** 2", "names and numbers combined"), ("tanh *", "does not parse")]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            template({"output": {"class": "activation", "activation": activation, "from": "data"}})


@pytest.mark.parametrize("loop", [False, True])
def test_hidden_states(loop: bool) -> None:
    """The tensors of a state by their keys, and joined; those of a copied layer, too."""
    seen: dict[str, Any] = {}

    def code(self: Any, source: Any, **_: Any) -> Any:
        layer = self.sources[0]
        seen["state"] = state = {key: layer.get_last_hidden_state(key) for key in ("c", "h", "*")}
        with pytest.raises(ConfigError, match="has no tensor 'x'. Known: .*, c, h"):
            layer.get_last_hidden_state("x")
        with pytest.raises(ConfigError, match="is not available to code"):
            self.sources[1].get_last_hidden_state("h")
        source(0)
        source(1)
        return tf.concat([state["*"], state["h"], state["c"]], axis=-1)

    data = "data:source" if loop else "data"
    cell: dict[str, Any] = {"class": "rnn_cell" if loop else "rec", "unit": "lstm", "n_out": 3, "from": data}
    layers: dict[str, Any] = {
        "cell": {**cell, "from": [data, "prev:output"]} if loop else cell,
        "same": {"class": "copy", "from": "cell"},
        "code": {"class": "eval", "eval": code, "from": ["same", data], "out_type": {
            "dim": 12, "shape": (12,), "time_dim_axis": None, "batch_dim_axis": 0}},
        "c": {"class": "get_last_hidden_state", "from": "cell", "key": "c"},
        "h": {"class": "get_last_hidden_state", "from": "cell", "key": "h"},
        "both": {"class": "copy", "from": ["c", "h", "h", "c"], "is_output_layer": True},
    }  # fmt: skip
    if loop:
        layers["output"] = {"class": "copy", "from": "code"}
        layers = {"loop": {"class": "rec", "from": "data", "unit": layers}}
    path = "loop/" if loop else ""
    result = run({**layers, "output": {"class": "copy", "from": "loop" if loop else "code"}}, feed()).items()
    values = {name: value.value for name, value in result}
    np.testing.assert_allclose(values["output"], values[path + "both"], rtol=1e-6)
    assert abs(values["output"]).max() > 0 and seen
