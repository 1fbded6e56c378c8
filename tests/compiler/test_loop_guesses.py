"""Loops whose dims are only known from inside of subnetworks and units that see their own past."""

import gc
import weakref

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import feed, net_of, template

LINEAR = {"class": "linear", "activation": "tanh", "n_out": 3}
MASK = {
    "sum": {"class": "reduce", "mode": "sum", "axes": "F", "from": "data:source"},
    "m": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"},
}


def linear(source, **options):
    return {**LINEAR, "from": source, **options}


def subnetwork(source, network, **options):
    return {"class": "subnetwork", "from": source, "subnetwork": network, **options}


def loop(unit):
    return {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop"}}


OWN = ["data:source", "prev:h"]
INNER = subnetwork("data", {"output": linear("data")})
#: A position that a layer finds in the part taken from the last one.
AFTER_BEST = {
    "best": {"class": "reduce", "mode": "argmax", "axis": "F", "from": "h"},
    "pos": {"class": "reinterpret_data", "set_sparse": False, "from": "best", "initial_output": 0},
}
MASKED = subnetwork("data", {"a": linear("data"), "output": {"class": "layer_norm", "from": "a"}})


@pytest.mark.parametrize(
    "unit,size",
    [
        ({"h": subnetwork(OWN, {"a": linear("data"), "output": linear("a", n_out=4)})}, 4),
        ({"h": subnetwork(OWN, {"a": linear("data"), "output": {"class": "copy", "from": "a"}})}, 3),
        ({"h": subnetwork(OWN, {"a": INNER, "output": {"class": "copy", "from": ["a", "a"]}})}, 6),
        ({"h": {"class": "masked_computation", "mask": "m", "from": "own", "unit": MASKED}, **MASK,
          "own": {"class": "copy", "from": OWN}}, 3),
        ({"h": subnetwork(["data:source", "prev:k"], {"output": linear("data")}),
          "k": subnetwork(["h", "prev:h"], {"output": linear("data", n_out=5)})}, 3),
        ({"part": {"class": "slice_nd", "start": "prev:pos", "size": 2, "from": "base:data"},
          "h": {"class": "merge_dims", "axes": ["dim:2", "F"], "from": "part"}, **AFTER_BEST}, 6),
        ({"part": {"class": "gather", "position": "prev:pos", "axis": "T", "from": "base:data"},
          "h": {"class": "copy", "from": "part"}, **AFTER_BEST}, 3),
    ],
)  # fmt: skip
def test_sizes_from_inside(unit, size):
    assert template(loop({**unit, "output": {"class": "copy", "from": "h"}})).dim == size


def test_nothing_says_the_size():
    unit = {"h": subnetwork("prev:h", {"output": {"class": "copy", "from": "data"}}), "output": linear("h")}
    with pytest.raises(ConfigError, match="the source follows from itself in a loop"):
        template(loop(unit))


def test_first_value_of_a_subnetwork_on_zeros():
    unit = {"h": subnetwork(OWN, {"output": linear("data")}, initial_output="apply(0)"), "output": linear("h")}
    net = net_of(loop({**unit, "output": {"class": "copy", "from": "h"}}))
    net.set_param_values({k: np.cos(np.arange(v.size)).reshape(v.shape) for k, v in net.get_param_values().items()})
    got = net.run(feed()).layers["output"].value
    w, b = (net.params["loop/rec/h/output/" + name].numpy() for name in ("W", "b"))
    before = np.tile(np.tanh(b), (3, 1))
    np.testing.assert_allclose(
        got[:, 0], np.tanh(np.concatenate([feed()["data"][:, 0], before], axis=1) @ w + b), rtol=1e-5
    )


def test_no_frames_are_kept():
    """Why a layer was guessed is kept without a traceback, whose frames have the local variables of all callers."""

    class Local:
        pass

    def plan():
        local = Local()
        split = {"class": "split_dims", "axis": "F", "dims": (3, 1), "from": "h"}
        merged = {"class": "merge_dims", "axes": ["dim:3", "dim:1"], "from": "prev:split"}
        template(
            loop({"h": linear("merged"), "split": split, "merged": merged, "output": {"class": "copy", "from": "h"}})
        )
        return weakref.ref(local)

    gc.disable()
    try:
        assert plan()() is None
    finally:
        gc.enable()
