"""Random loops in training: neither the split of the loop nor what is in the padding matters, and the reasons why
layers are in the loop hold."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from tests.compiler.random_decoders import param_key, random_params
from tests.compiler.random_nets import EXTERN, LABELS, SIZE, TRAINING_BLOCKS, Steps, add_blocks, outside_layers
from tests.tiers import usual

#: How many more networks to test, e.g. RANDOM_NETS=200 pytest -m long tests/compiler/test_random_loops.py
MANY = int(os.environ.get("RANDOM_NETS", 16))
LENS = (5, 2, 4)
GARBAGE = 50.0
Value = np.ndarray
#: Blocks with a mask from the labels of the choice "output".
BY_LABEL = ("masked", "switch")


def random_loop(seed: int, moved: bool = True) -> Config:
    """Return a loop over the frames, or over the labels of the target, with losses in it and after it."""
    s = Steps(np.random.default_rng([5, seed]))
    by_frame = s.chance(0.5)
    s.fed_back = ["emb", "last"]
    s.vectors = {"prev:emb": SIZE, "base:first": SIZE, **({"data:source": SIZE} if by_frame else {})}
    s.unit["label"] = {"class": "choice", "target": "classes", "beam_size": 1, "from": "p", "initial_output": 1}
    s.unit["emb"] = {
        "class": "linear", "activation": None, "n_out": SIZE, "from": "label",
        "initial_output": s.one_of(0, "var", "apply(0)", "base:first"),
    }  # fmt: skip
    # masks of these blocks look at the labels of the choice "output", which is "label" here
    add_blocks(s, int(s.rng.integers(2, 6)), tuple(name for name in TRAINING_BLOCKS if name not in BY_LABEL))
    made = [name for name in s.vectors if ":" not in name]
    s.unit["last"] = {"class": "linear", "activation": "tanh", "n_out": SIZE, "from": [made[-1]]}
    s.unit["last"]["from"] += [name for name in s.sources(2) if name != made[-1]]
    s.unit["p"] = {"class": "softmax", "target": "classes", "loss": "ce", "from": ["last", made[0]]}
    s.unit["output"] = {"class": "copy", "from": [*made, "last"]}
    for options in s.unit.values():
        if options.get("unit") == "zoneoutlstm":  # random in training
            options.update(unit="standardlstm", unit_opts={})
    loop = {"class": "rec", "from": "frames" if by_frame else [], "target": "classes", "unit": s.unit}
    network = {
        **outside_layers(s.rng),
        "output": {**loop, "optimize_move_layers_out": moved},
        "out": {"class": "linear", "activation": None, "n_out": LABELS, "from": "output"},
        "square": {"class": "eval", "eval": "source(0) ** 2", "from": "out", "loss": "as_is"},
    }
    return Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})


def feed_of(seed: int, garbage: float = 0.0) -> dict[str, Value]:
    """Return frames and labels of the same lengths, with ``garbage`` in the padding."""
    rng = np.random.default_rng([11, seed])
    data = rng.normal(size=(len(LENS), max(LENS), 3)).astype("float32")
    labels = rng.integers(0, LABELS, data.shape[:2]).astype("int32")
    padding = np.arange(max(LENS)) >= np.array(LENS)[:, None]
    data[padding] = garbage
    labels[padding] = LABELS - 1 if garbage else 0
    lens = np.array(LENS, "int32")
    return {"data": data, "data/size0": lens, "classes": labels, "classes/size0": lens}


def loop_net(seed: int, moved: bool = True) -> Network:
    """Return the network with random parameters."""
    net = Network.from_config(random_loop(seed, moved), train=True)
    net.set_param_values(random_params(net, seed))
    return net


def check_equal(got: Any, wanted: Any) -> None:
    """Compare losses, gradients and the valid part of the values."""
    assert set(got.losses) == set(wanted.losses) == {"output/p", "square"}
    for name, loss in wanted.losses.items():
        np.testing.assert_allclose(got.losses[name], loss, rtol=1e-5, err_msg=name)
    for b, n in enumerate(LENS):
        values = (out.layers["output"].value[b, :n] for out in (got, wanted))
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-5)
    all_grads = [{param_key(name): grad for name, grad in out.grads.items()} for out in (got, wanted)]
    for name in sorted({name for grads in all_grads for name in grads}):
        grads = [grads.get(name, np.zeros(1)) for grads in all_grads]
        scale = max(1.0, np.abs(grads[1]).max())  # rounding differs by CPU: 5e-5 of the largest was seen
        np.testing.assert_allclose(grads[0] / scale, grads[1] / scale, rtol=1e-4, atol=2e-4, err_msg=name)


def links(unit: dict[str, Any]) -> dict[str, set[str]]:
    """For each layer what it refers to, as "x" or "prev:x", by a walk through all strings of its options."""

    def walk(value: Any, inner: bool) -> list[str]:
        if isinstance(value, str):
            plain = value[len("base:") :] if value.startswith("base:") else None
            return ([plain] if plain else []) if inner else [value]
        if isinstance(value, dict):
            inside = inner or "class" in value
            skip = ("class", "eval", "initial_output", "target", "kind")
            return [ref for key, v in value.items() if key not in skip for ref in walk(v, inside)]
        return [ref for v in value for ref in walk(v, inner)] if isinstance(value, (list, tuple)) else []

    result = {}
    for name, options in unit.items():
        refs: list[str] = []
        if options["class"] != "choice":  # it follows the target
            for key, value in options.items():
                if key not in ("class", "eval", "initial_output", "target", "kind"):
                    refs += walk(value, key in ("subnetwork", "unit"))
        result[name] = {ref for ref in refs if ref.replace("prev:", "") in unit}
    return result


def closure(of: str, refs: dict[str, set[str]]) -> set[str]:
    """Return all layers that a layer depends on, in any step."""
    seen: set[str] = set()
    todo = [of]
    while todo:
        for ref in refs[todo.pop()]:
            name = ref.replace("prev:", "")
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def check_plan(seed: int) -> None:
    config = random_loop(seed)
    plan = plan_from_config(config, train=True)
    text = describe_plan(plan)
    assert text == describe_plan(plan_from_config(random_loop(seed), train=True))
    refs = links(config.typed("network")["output"]["unit"])
    depends = {name: closure(name, refs) for name in refs}
    needed = {"output", "p", *depends["output"], *depends["p"]}
    forced = {name for name in refs if name.startswith("state")}  # get_last_hidden_state keeps its cell in the loop
    forced &= needed
    zones: dict[str, tuple[str, str]] = next(
        (n.layer.loop.zones for n in plan.nodes if n.path == "output/loop"),
        {},  # type: ignore[attr-defined]
    )
    cycle = {name for name in needed if name in depends[name]} | forced
    wanted = {n for n in needed if n in cycle or (depends[n] & cycle and any(n in depends[c] for c in cycle))}
    assert {name for name, (where, _) in zones.items() if where == "in the loop"} == wanted
    for name in wanted:
        chain = zones[name][1].split(" <- ")
        if len(chain) > 1:
            assert chain[0] == name and chain[-1].replace("prev:", "") == name
            assert any(ref.startswith("prev:") for ref in chain[1:])
            for one, other in zip(chain, chain[1:]):
                assert other in refs[one.replace("prev:", "")], chain
        else:
            assert name in forced or name not in depends[name]


def check_all(seed: int) -> None:
    check_plan(seed)
    net = loop_net(seed)
    wanted = net.run(feed_of(seed), with_grad=True, fetch=["output"])
    check_equal(net.run(feed_of(seed, GARBAGE), with_grad=True, fetch=["output"]), wanted)
    check_equal(loop_net(seed, moved=False).run(feed_of(seed), with_grad=True, fetch=["output"]), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", usual(range(4), [0]))
def test_random_loops(seed: int) -> None:
    check_all(seed)


def test_values_of_parameters() -> None:
    """Both plans of a loop get the same values, also as initial states of cells, whose names differ."""
    nets = [loop_net(107, moved) for moved in (True, False)]
    moved, kept = ({param_key(name): value for name, value in net.get_param_values().items()} for net in nets)
    assert set(nets[0].params) != set(nets[1].params) and moved.keys() == kept.keys()
    for name, value in moved.items():
        np.testing.assert_array_equal(kept[name], value, err_msg=name)


@pytest.mark.parametrize("seed", usual(range(4, 40), range(4, 20)))
def test_plans(seed: int) -> None:
    check_plan(seed)


@pytest.mark.slow
def test_plans_in_another_process() -> None:
    """Neither the hash seed nor TensorFlow matters to a plan."""
    code = (
        "import sys; from tests.compiler.test_random_loops import *\n"
        "for seed in range(8): print(describe_plan(plan_from_config(random_loop(seed), train=True)))\n"
        "assert 'tensorflow' not in sys.modules"
    )
    env = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    here = [describe_plan(plan_from_config(random_loop(seed), train=True)) + "\n" for seed in range(8)]
    assert done.stdout == "".join(here)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + MANY))
def test_many_random_loops(seed: int) -> None:
    check_all(seed)
