"""A small module library that writes network dicts: each function asks for the template of its layer at once."""

from __future__ import annotations

import contextlib
import itertools

from returnn.config import Config
from returnn.tf.layers.base import InternalLayer
from returnn.tf.layers.basic import get_layer_class
from returnn.tf.network import ExternData, TFNetwork
from returnn.tf.util.data import (
    BatchInfo,
    ControlFlowContext,
    Data,
    Dim,
    FeatureDim,
    SpatialDim,
    batch_dim,
)
from returnn.util.basic import BehaviorVersion, NotSpecified

VERSION = 12


class Net:
    """A network dict that is being written; `path` tells it from those around."""

    def __init__(self, parent=None, ctx=None):
        self.parent, self.ctx = parent, ctx
        self.layers = {}
        self.numbers = itertools.count()

    def depth(self):
        return 0 if self.parent is None else 1 + self.parent.depth()


class Tensor:
    """The result of a layer: the net that has the layer, its name there, and its template."""

    def __init__(self, net, name, data):
        self.net, self.name, self.data = net, name, data

    def ref(self, net):
        """Return the name of the layer as a layer of another net sees it."""
        return "base:" * (net.depth() - self.net.depth()) + self.name

    @property
    def feature_dim(self):
        return self.data.feature_dim_or_sparse_dim

    def __add__(self, other):
        return make({"class": "combine", "kind": "add", "from": [self, other]})

    def __mul__(self, other):
        return make({"class": "combine", "kind": "mul", "from": [self, other]})


_nets = [Net()]


def start():
    """Begin a new main network, and return it."""
    BehaviorVersion.set_min_behavior_version(VERSION)
    _nets[:] = [Net()]
    return _nets[0]


def mapped(value, kind, func):
    if isinstance(value, kind):
        return func(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, kind, func) for item in value)
    return {k: mapped(v, kind, func) for k, v in value.items()} if isinstance(value, dict) else value


def template(options):
    """Return the template of a layer dict that has tensors instead of names."""
    net = _nets[-1]
    network = TFNetwork(
        config=Config({"behavior_version": VERSION}),
        extern_data=ExternData(),
        name="dummy",
        train_flag=True,
        inside_rec_time_dim=net.ctx.loop_spatial_dim if net.ctx is not None and net.ctx.is_loop() else None,
        control_flow_ctx=net.ctx,
    )

    def name_of(tensor):
        name = tensor.ref(net).replace(":", "_")
        network.layers[name] = InternalLayer(name=name, network=network, output=tensor.data.copy_template())
        return name

    options = mapped(dict(options), Tensor, name_of)
    layer_class = get_layer_class(options.pop("class"))
    layer_class.transform_config_dict(options, network=network, get_layer=network.get_layer)
    return layer_class.get_out_data_from_opts(**network._create_layer_layer_desc("layer", options))


def make(options, name=None, data=NotSpecified):
    """Add a layer to the current net, and return its tensor."""
    net = _nets[-1]
    data = template(options) if data is NotSpecified else data
    name = name or "%s_%i" % (options["class"], next(net.numbers))
    layer = mapped(dict(options), Tensor, lambda tensor: tensor.ref(net))
    if options["class"] not in ("rec", "cond"):
        layer["out_shape"] = set(data.dim_tags_set_implicit)
    net.layers[name] = layer
    return Tensor(net, name, data)


def get_extern_data(data):
    if data.batch is None:
        data.batch = BatchInfo.make_global_batch_info(-1)
    for dim in data.dim_tags:
        if not dim.is_batch_dim() and dim.is_dynamic() and dim.dyn_size_ext is None:
            dim.dyn_size_ext = Data("%s_size" % data.name, dim_tags=[batch_dim], dtype="int32")
    return Tensor(_nets[0], "data:%s" % data.name, data)


# --- modules ---


class Linear:
    def __init__(self, in_dim, out_dim):
        self.in_dim, self.out_dim = in_dim, out_dim
        # a square matrix has one of its dims marked, so that the product knows which axis it is
        self.mark = in_dim.copy(match_priority=1) if in_dim == out_dim else in_dim
        self.weight = make({"class": "variable", "shape": [self.mark, out_dim], "init": "glorot_uniform"})
        self.bias = make({"class": "variable", "shape": [out_dim], "init": 0.0})

    def __call__(self, x):
        return make({"class": "dot", "from": [x, self.weight], "reduce": self.mark}) + self.bias


def layer_norm(x, dim):
    mean = make({"class": "reduce", "mode": "mean", "axis": dim, "from": x})
    centered = make({"class": "combine", "kind": "sub", "from": [x, mean]})
    variance = make({"class": "reduce", "mode": "mean", "axis": dim, "from": centered * centered})
    scale = make({"class": "eval", "eval": "tf.math.rsqrt(source(0) + 1e-6)", "from": variance})
    return centered * scale


def activation(x, func):
    return make({"class": "activation", "activation": func, "from": x})


def conv(x, in_dim, out_dim, axis, stride):
    out_axis = SpatialDim("%s/%i" % (axis.description, stride))
    y = make(
        {
            "class": "conv",
            "from": x,
            "in_dim": in_dim,
            "out_dim": out_dim,
            "in_spatial_dims": [axis],
            "out_spatial_dims": [out_axis],
            "filter_size": (3,),
            "strides": (stride,),
            "padding": "same",
            "activation": None,
        }
    )
    assert out_axis in y.data.dim_tags and out_axis.is_equal(axis.ceildiv_right(stride))
    return y, out_axis


def self_attention(x, dim, axis, heads):
    per_head = dim // heads.dimension
    assert per_head.dimension == dim.dimension // heads.dimension

    def split(y):
        return make({"class": "split_dims", "axis": dim, "dims": (heads, per_head), "from": y})

    query, key, value = (split(Linear(dim, dim)(x)) for _ in range(3))
    key_axis = SpatialDim("keys")
    key, value = (
        make({"class": "reinterpret_data", "set_dim_tags": {axis: key_axis}, "from": y}) for y in (key, value)
    )
    energy = make({"class": "dot", "reduce": per_head, "from": [query, key]})
    weights = make({"class": "softmax_over_spatial", "axis": key_axis, "from": energy})
    context = make({"class": "dot", "reduce": key_axis, "from": [weights, value]})
    return make({"class": "merge_dims", "axes": (heads, per_head), "out_dim": dim, "from": context})


class Loop:
    """``with Loop(axis) as loop``: a loop over an axis, with states."""

    def __init__(self, axis):
        self.axis = axis
        self.states = {}

    def __enter__(self):
        ctx = ControlFlowContext(ControlFlowContext.Types.Loop, _nets[-1].ctx)
        ctx.loop_spatial_dim = self.axis
        self.net = Net(_nets[-1], ctx)
        _nets.append(self.net)
        return self

    def unstack(self, x):
        return make({"class": "rec_unstack", "axis": self.axis, "from": x})

    def state(self, name, initial):
        self.states[name] = initial
        return Tensor(self.net, "prev:" + name, initial.data)

    def set_state(self, name, value):
        initial = self.states[name]
        make({"class": "copy", "from": value, "initial_output": initial, "need_last": True}, name, data=value.data)

    def stack(self, y):
        self.out = make({"class": "copy", "from": y}, "output")

    def __exit__(self, *exc):
        _nets.pop()
        if exc[0] is None:
            data = self.out.data.copy_template_adding_time_dim(time_dim_axis=0)
            data = data.copy_template_replace_dim_tag(0, self.axis)
            self.layer = make({"class": "rec", "from": [], "axis": self.axis, "unit": self.net.layers}, data=data)

    def last(self, name):
        data = self.states[name].data
        return make({"class": "rec_last_output", "rec_layer": self.layer, "sub_layer_name": name}, data=data)


def cond(condition, true, false):
    """Return the result of one of two functions."""
    branches, result = {}, None
    kinds = ControlFlowContext.Types
    for name, func, kind in (("true_layer", true, kinds.CondTrue), ("false_layer", false, kinds.CondFalse)):
        _nets.append(Net(_nets[-1], ControlFlowContext(kind, _nets[-1].ctx)))
        with contextlib.ExitStack() as stack:
            stack.callback(_nets.pop)
            result = make({"class": "copy", "from": func()}, "output")
            branches[name] = {"class": "subnetwork", "from": [], "subnetwork": _nets[-1].layers}
    return make({"class": "cond", "from": [], "condition": condition, **branches}, data=result.data)


# --- a network of them ---


def build():
    """Return extern_data and the network dict."""
    net = start()
    time, feature = SpatialDim("time"), FeatureDim("feature", 5)
    classes = FeatureDim("classes", 3)
    x = get_extern_data(Data("data", dim_tags=[batch_dim, time, feature]))
    hidden, heads = FeatureDim("hidden", 8), SpatialDim("heads", 2)
    y, axis = conv(x, feature, hidden, time, stride=2)
    y = layer_norm(activation(y, "relu"), hidden)
    y = y + self_attention(y, hidden, axis, heads)
    flag = make({"class": "constant", "value": True, "shape": (), "dtype": "bool"})
    y = cond(flag, lambda: activation(y, "tanh"), lambda: y * y)
    zero = make({"class": "constant", "value": 0.0, "shape": [batch_dim, hidden], "shape_deps": [y]})
    recurrent = Linear(hidden, hidden)
    with Loop(axis) as loop:
        new = activation(loop.unstack(y) + recurrent(loop.state("h", zero)), "tanh")
        loop.set_state("h", new)
        loop.stack(new)
    last = loop.last("h")
    logits = Linear(hidden, classes)(loop.layer + last)
    pooled = make({"class": "reduce", "mode": "mean", "axis": axis, "from": logits})
    assert set(pooled.data.dim_tags) == {batch_dim, classes} and isinstance(classes, Dim)
    make(
        {
            "class": "softmax",
            "from": pooled,
            "in_dim": classes,
            "out_dim": FeatureDim("labels", 3),
            "loss": "ce",
            "target": "classes",
        },
        "output",
        data=pooled.data,
    )
    del net.layers["output"]["out_shape"]
    data = x.data
    extern_data = {
        "data": {
            key: value
            for key, value in data.get_kwargs(include_special_axes=False).items()
            if key not in ("name", "batch")
        },
        "classes": {"dim": 3, "sparse": True, "shape": ()},
    }
    return extern_data, net.layers
