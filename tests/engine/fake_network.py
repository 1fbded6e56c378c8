"""A network of two layers which keeps the contract of Network, so that the engine can be tested on its own."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class ParamSpec:
    """As the compiler's."""

    name: str
    shape: Tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True
    updater_opts: Optional[Dict[str, Any]] = None
    l2: float = 0.0


@dataclasses.dataclass
class Graph:
    """As the compiler's."""

    losses: Dict[str, Any]
    errors: Dict[str, Any]
    inv_norm: Dict[str, Any]
    objective: Any
    constraints: Any
    updates: List[Any] = dataclasses.field(default_factory=list)
    layer_outputs: Dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def total_loss(self) -> Any:
        return self.objective + self.constraints


class FakeNetwork:
    """``hid``: linear with tanh; ``output``: softmax with cross-entropy over valid frames."""

    def __init__(self, network: Dict[str, Any], dim: int = 3, classes: int = 3, seed: int = 1) -> None:
        self.layers = network
        hidden = network["hid"]["n_out"]
        shapes = {"hid/W": (dim, hidden), "hid/b": (hidden,), "output/W": (hidden, classes), "output/b": (classes,)}
        rnd = np.random.RandomState(seed)
        self.params: Dict[str, Any] = {}
        self.param_specs: Dict[str, ParamSpec] = {}
        for name, shape in shapes.items():
            layer = network[name.split("/")[0]]
            trainable = layer.get("trainable", True)
            self.params[name] = tf.Variable(
                rnd.uniform(-0.5, 0.5, shape).astype("float32"), trainable=trainable, name=name
            )
            self.param_specs[name] = ParamSpec(
                name, shape, trainable=trainable, updater_opts=layer.get("updater_opts"), l2=layer.get("L2") or 0.0
            )
        self.used_layers = ["data", "hid", "output"]
        self.dim = dim

    def input_signature(self) -> Dict[str, Any]:
        return {
            "data": tf.TensorSpec([None, None, self.dim], "float32"),
            "data/size0": tf.TensorSpec([None], "int32"),
            "classes": tf.TensorSpec([None, None], "int32"),
            "classes/size0": tf.TensorSpec([None], "int32"),
        }

    def lower(self, feed: Dict[str, Any], train: bool = True, step: Any = None) -> Graph:
        p = {name: var.read_value() for name, var in self.params.items()}
        hid = tf.tanh(tf.einsum("btd,dh->bth", feed["data"], p["hid/W"]) + p["hid/b"])
        logits = tf.einsum("bth,hc->btc", hid, p["output/W"]) + p["output/b"]
        mask = tf.sequence_mask(feed["data/size0"], tf.shape(hid)[1])
        frames = tf.boolean_mask(logits, mask)
        targets = tf.boolean_mask(feed["classes"], mask)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, frames))
        wrong = tf.not_equal(tf.argmax(frames, axis=-1, output_type="int32"), targets)
        constraints: Any = 0.0
        for name, spec in self.param_specs.items():
            if spec.l2:
                constraints += spec.l2 * tf.reduce_sum(tf.square(self.params[name]))
        return Graph(
            losses={"output": loss},
            errors={"output": tf.reduce_sum(tf.cast(wrong, "float32"))},
            inv_norm={"output": tf.reduce_sum(feed["data/size0"])},
            objective=loss * self.layers["output"].get("loss_scale", 1.0),
            constraints=constraints,
            layer_outputs={"data": (feed["data"], None), "hid": (hid, None), "output": (logits, None)},
        )
