"""Random step networks: a seed gives a network with a loop, its data keys and a feed.

Each block of a step network makes one vector [batch, dim] from others of the same step, of the step before
(``prev:``), and from outside (``base:``). Names of layers of a block begin with that of its vector.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.tensor import FeatureDim, SpatialDim, single_step_dim

Layers = dict[str, Any]
LABELS = 4
#: Dim of the source of the loop, of the vectors outside, and of what is fed back from step to step.
SIZE = 4
#: Units with one state tensor, and those with h and c.
SINGLE = ("gru", "basicrnn", "rhn")
DOUBLE = ("lstm", "nativelstm2", "standardlstm", "vanillalstm", "basiclstm", "layernormvariantslstm", "zoneoutlstm",
          "LSTMBlock")  # fmt: skip
EXTERN = {
    "data": {"dim": 3},
    "classes": {"dim": LABELS, "sparse": True},
    "classes2": {"dim": LABELS, "sparse": True},
}


@dataclasses.dataclass
class Steps:
    """A step network while it is made.

    :param vectors: name -> dim; whatever a block may take from the same step
    :param fed_back: what it may take from the step before, also if it is made later; all of dim `SIZE`
    :param by_frame: whether the frames outside have lengths, so that attention makes sense
    :param search: whether it must work in a search too, which loops in loops do not
    """

    rng: np.random.Generator
    unit: Layers = dataclasses.field(default_factory=dict)
    vectors: dict[str, int] = dataclasses.field(default_factory=dict)
    fed_back: list[str] = dataclasses.field(default_factory=list)
    search: bool = True
    blocks: list[str] = dataclasses.field(default_factory=list)

    def chance(self, p: float) -> bool:
        """Return True with probability ``p``."""
        return bool(self.rng.random() < p)

    def one_of(self, *values: Any) -> Any:
        """Any of the values."""
        return values[int(self.rng.integers(len(values)))]

    def sources(self, count: Optional[int] = None) -> list[str]:
        """Return names of vectors of this step or of the one before."""
        made = [name for name in self.vectors if ":" not in name]
        pool = list(self.vectors) + ["prev:" + name for name in dict.fromkeys(self.fed_back + made)]
        pool = list(dict.fromkeys(pool))
        count = count or int(self.rng.integers(1, 4))
        return [str(name) for name in self.rng.choice(pool, min(count, len(pool)), replace=False)]

    def vector(self, name: str, dim: int = SIZE) -> str:
        """Return a new linear layer for a block that needs a certain dim."""
        activation = self.one_of("tanh", None, "relu")
        self.unit[name] = {"class": "linear", "activation": activation, "n_out": dim, "from": self.sources()}
        return name

    def mask(self, name: str) -> str:
        """Return a new layer with a bool per sequence."""
        if self.chance(0.5):
            source = self.one_of("prev:output", "output") if "early" in self.blocks else "prev:output"
            self.unit[name] = {"class": "compare", "kind": "not_equal", "value": 1, "from": source}
        else:
            self.unit[name + "_sum"] = {"class": "reduce", "mode": "sum", "axis": "F", "from": self.vector(name + "_v")}
            self.unit[name] = {"class": "compare", "kind": "greater", "value": -0.3, "from": name + "_sum"}
        return name


def _linear(s: Steps, name: str) -> int:
    dim = int(s.rng.integers(2, 6))
    s.vector(name, dim)
    s.unit[name]["initial_output"] = s.one_of("zeros", "ones", "var", "apply(0)", 0.5)
    return dim


def _cell(s: Steps, name: str) -> int:
    state: Any = s.one_of(None, "zeros", "ones", "var", "layer")
    single = s.chance(0.4)
    unit = s.one_of(*(SINGLE if single else DOUBLE))
    options: Layers = {"class": "rnn_cell", "unit": unit, "n_out": SIZE, "from": s.sources()}
    if s.chance(0.2) and unit in ("gru", "lstm", "nativelstm2"):
        options.update({"class": "rec", "axis": single_step_dim})
    if unit == "zoneoutlstm":
        options["unit_opts"] = {"zoneout_factor_cell": 0.2, "zoneout_factor_output": 0.1}
    if state == "layer":
        state = "base:first" if single else {"h": "base:first", "c": s.one_of("base:first", "var", "zeros")}
    if state is not None:
        options["initial_state"] = state
    s.unit[name] = options
    return SIZE


def _state_of_cell(s: Steps, name: str) -> int:
    s.unit[name + "_cell"] = {"class": "rnn_cell", "unit": "standardlstm", "n_out": SIZE, "from": s.sources()}
    key = s.one_of("c", "h", "*")
    dim = 2 * SIZE if key == "*" else SIZE
    s.unit[name] = {"class": "get_last_hidden_state", "key": key, "n_out": dim, "from": name + "_cell"}
    return dim


def _mlp_attention(s: Steps, name: str) -> int:
    heads = s.one_of(1, 1, 2)
    terms = ["base:context", s.vector(name + "_q")]
    if heads == 1 and s.chance(0.6):
        s.unit[name + "_acc"] = {
            "class": "eval", "from": ["prev:%s_acc" % name, name + "_w"], "eval": "source(0) + 0.5 * source(1)",
        }  # fmt: skip
        s.unit[name + "_fb"] = {
            "class": "linear", "activation": None, "with_bias": False, "n_out": SIZE, "from": "prev:%s_acc" % name,
        }  # fmt: skip
        terms.append(name + "_fb")
    s.unit[name + "_in"] = {"class": "combine", "kind": "add", "from": terms}
    s.unit[name + "_tanh"] = {"class": "activation", "activation": "tanh", "from": name + "_in"}
    s.unit[name + "_e"] = {
        "class": "linear", "activation": None, "with_bias": False, "n_out": heads, "from": name + "_tanh"
    }  # fmt: skip
    s.unit[name + "_w"] = {"class": "softmax_over_spatial", "from": name + "_e", "energy_factor": s.one_of(0.5, 2.0)}
    base = "base:frames" if heads == 1 else "base:heads"
    if heads == 1:
        s.unit[name] = {"class": "generic_attention", "weights": name + "_w", "base": base}
    else:
        s.unit[name + "_h"] = {"class": "generic_attention", "weights": name + "_w", "base": base}
        s.unit[name] = {"class": "merge_dims", "axes": ["stag:split_dims0", "F"], "from": name + "_h"}
    return SIZE


def _dot_attention(s: Steps, name: str) -> int:
    query = s.vector(name + "_q")
    s.unit[name] = {
        "class": s.one_of("dot_attention", "concat_attention"), "base": "base:frames", "base_ctx": "base:context",
        "from": query,
    }  # fmt: skip
    return SIZE


def _self_attention(s: Steps, name: str) -> int:
    s.unit[name] = {
        "class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": SIZE, "attention_left_only": True,
        "from": s.vector(name + "_x"),
    }  # fmt: skip
    return SIZE


def _history(s: Steps, name: str) -> int:
    history, key = SpatialDim(name + "_history"), FeatureDim(name + "_key", SIZE)
    s.unit[name + "_k"] = {"class": "linear", "activation": None, "out_dim": key, "from": s.sources()}
    s.unit[name + "_qu"] = {"class": "linear", "activation": None, "out_dim": key, "from": s.sources()}
    s.unit[name + "_all"] = {"class": "cum_concat", "out_spatial_dim": history, "from": name + "_k"}
    s.unit[name + "_e"] = {
        "class": "dot", "red1": key, "red2": key, "var1": None, "var2": history, "from": [name + "_qu", name + "_all"]
    }  # fmt: skip
    s.unit[name + "_w"] = {"class": "softmax_over_spatial", "axis": history, "from": name + "_e"}
    s.unit[name] = {"class": "generic_attention", "weights": name + "_w", "base": name + "_all"}
    return SIZE


def _masked(s: Steps, name: str) -> int:
    unit: Layers = s.one_of(
        {"class": "linear", "activation": "tanh", "n_out": SIZE},
        {"class": "rec", "unit": "lstm", "n_out": SIZE},
        {"class": "rec", "unit": "gru", "n_out": SIZE, "initial_state": "var"},
        {"class": "subnetwork", "from": "data", "subnetwork": {
            "cell": {"class": "rnn_cell", "unit": "lstm", "n_out": SIZE, "from": "data"},
            "output": {"class": "linear", "activation": "tanh", "n_out": SIZE, "from": ["cell", "base:base:first"]}}},
    )  # fmt: skip
    options: Layers = {"class": "masked_computation", "unit": unit, "from": s.vector(name + "_x"), "mask": ""}
    options["mask"] = s.mask(name + "_m")
    if s.chance(0.3):
        options["initial_output"] = s.one_of("ones", 0.5, "var")
    s.unit[name] = options
    return SIZE


def _switch(s: Steps, name: str) -> int:
    s.unit[name] = {
        "class": "switch", "condition": s.mask(name + "_m"), "true_from": s.vector(name + "_a"),
        "false_from": s.vector(name + "_b"),
    }  # fmt: skip
    return SIZE


def _elementwise(s: Steps, name: str) -> int:
    pair = [s.vector(name + "_a"), s.vector(name + "_b")]
    s.unit[name] = s.one_of(
        {"class": "eval", "eval": "tf.tanh(source(0)) * source(1)", "from": pair},
        {"class": "combine", "kind": s.one_of("add", "mul", "maximum"), "from": pair},
        {"class": "eval", "eval": "source(0) / (1.0 + tf.cast(source(1), tf.float32))", "from": [pair[0], ":i"]},
        {"class": "layer_norm", "from": pair[0]},
        {"class": "copy", "from": [pair[0]]},
        {"class": "positional_encoding", "add_to_input": True, "from": pair[0]},
        {"class": "cumsum", "from": pair[0], "initial_output": 0.5},
        {"class": "combine", "kind": "add", "from": ["prev:" + name, pair[0]]},
    )
    return SIZE


def _gating(s: Steps, name: str) -> int:
    s.unit[name] = {"class": "gating", "activation": "tanh", "from": s.vector(name + "_x", 6)}
    return 3


def _window(s: Steps, name: str) -> int:
    s.unit[name + "_win"] = {"class": "window", "window_size": 3, "window_right": 0, "from": s.vector(name + "_x", 2)}
    s.unit[name] = {"class": "merge_dims", "axes": "except_batch", "keep_order": False, "from": name + "_win"}
    return 6


def _subnetwork(s: Steps, name: str) -> int:
    first = "base:" + s.vector(name + "_x") if s.chance(0.5) else "data"
    s.unit[name] = {
        "class": "subnetwork", "from": s.sources(), "subnetwork": {
            "a": {"class": "linear", "activation": "tanh", "n_out": 3, "from": [first, "base:base:first"]},
            "cell": {"class": "rnn_cell", "unit": "gru", "n_out": 3, "from": ["a", "data"]},
            "output": {"class": "linear", "activation": None, "n_out": SIZE, "from": ["cell", "a"]}},
    }  # fmt: skip
    return SIZE


def _nested_loop(s: Steps, name: str) -> int:
    """Return a loop over the frames outside, restarted in each step."""
    now = s.vector(name + "_x")
    inner: Layers = {
        "k": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["data:source"]},
        "h": {"class": "linear", "activation": "tanh", "n_out": 3, "from": ["k", "prev:h", "base:" + now]},
        "output": {"class": "linear", "activation": "tanh", "n_out": SIZE, "from": ["h", "prev:k"]},
    }
    if s.chance(0.5):
        inner["h"] = {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": ["k", "base:" + now]}
    if s.chance(0.3):
        inner["h"]["from"].append("prev:output")
    s.unit[name + "_loop"] = {"class": "rec", "from": "base:frames", "unit": inner}
    s.unit[name] = {"class": "reduce", "mode": "mean", "axis": "T", "from": name + "_loop"}
    return SIZE


BLOCKS: dict[str, Callable[[Steps, str], int]] = {
    "linear": _linear, "cell": _cell, "state": _state_of_cell, "mlp": _mlp_attention, "dot": _dot_attention,
    "self": _self_attention, "history": _history, "masked": _masked, "switch": _switch, "each": _elementwise,
    "gating": _gating, "window": _window, "subnetwork": _subnetwork,
}  # fmt: skip
TRAINING_BLOCKS = {**BLOCKS, "nested": _nested_loop}


def outside_layers(rng: np.random.Generator, by_frame: bool = False) -> Layers:
    """Return what the loop uses of the network around it.

    :param by_frame: no frame may depend on others, so that frames of the padding are the same in any batch
    """
    kinds = [{"class": "linear", "activation": "tanh", "n_out": SIZE, "from": "data"}]
    if not by_frame:
        kinds.append({"class": "rec", "unit": "lstm", "n_out": SIZE, "from": "data"})
        kinds.append({"class": "rec", "unit": "gru", "direction": -1, "n_out": SIZE, "from": "data"})
    frames = kinds[int(rng.integers(len(kinds)))]
    return {
        "frames": frames,
        "context": {"class": "linear", "activation": None, "n_out": SIZE, "from": "frames"},
        "heads": {"class": "split_dims", "axis": "F", "dims": (2, SIZE // 2), "from": "frames"},
        "first": {"class": "reduce", "mode": "mean", "axis": "T", "from": "frames"},
    }


def add_blocks(s: Steps, count: int, kinds: tuple[str, ...]) -> None:
    """Add random blocks one after the other; each may take what the others made."""
    for number in range(count):
        kind = str(s.one_of(*kinds))
        name = "%s%d" % (kind, number)
        s.blocks.append(kind)
        s.vectors[name] = TRAINING_BLOCKS[kind](s, name)
