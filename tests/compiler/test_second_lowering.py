"""A plan is lowered again while a lowering of it is under way: both graphs compute what one alone does."""

from __future__ import annotations

import threading
from typing import Any, Callable

import pytest

from returnn_tf.compiler.network import Network
from tests.layers.nets import config_of, feed
from tests.results import assert_same_results

Networks = dict[str, Any]


#: Functions that the next emission of a hook layer takes out and calls.
Hook = list[Callable[[], None]]


def _hook_layer(hook: Hook, source: str) -> dict[str, Any]:
    def scaled(source: Any, **_: Any) -> Any:
        if hook:
            hook.pop()()
        return source(0) * 1.5

    return {"class": "eval", "eval": scaled, "from": source}


def _linear(source: Any, **options: Any) -> dict[str, Any]:
    return {"class": "linear", "activation": "tanh", "n_out": 3, "from": source, **options}


def _loop(hook: Hook, **layers: Any) -> Networks:
    """The hook is amid the layers of a step, after what is read from outside and from the step before."""
    unit = {
        "a": _linear(["data:source", "prev:output", "base:h"]),
        "hook": _hook_layer(hook, "a"),
        "output": _linear(["hook", "prev:hook", "base:h"]),
        **layers,
    }
    mean = {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}
    return {"mean": mean, "h": _linear("mean"), "output": {"class": "rec", "from": "data", "unit": unit}}


def _inner_loop(hook: Hook) -> Networks:
    inner = {"class": "rec", "from": "base:data:other", "unit": _loop(hook)["output"]["unit"]}
    inner["unit"]["a"] = _linear(["data:source", "prev:output", "base:x"])
    inner["unit"]["output"] = _linear(["hook", "prev:hook"])
    last = {"class": "reduce", "mode": "max", "axis": "T", "from": "inner"}
    return _loop([], x=_linear(["data:source", "prev:output"]), inner=inner, output=last)


def _labels(hook: Hook, **options: Any) -> Networks:
    """Return a decoder: with its own end, or with as many labels as frames."""
    unit = {
        "emb": _linear("prev:output"),
        "hook": _hook_layer(hook, "emb"),
        "cell": {"class": "rnn_cell", "unit": "lstmblock", "n_out": 3, "from": ["hook", "base:mean"]},
        "p": {"class": "softmax", "n_out": 5, "from": "cell", "loss": "ce", "target": "labels"},
        "output": {"class": "choice", "target": "labels", "beam_size": 3, "from": "p", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
    }
    loop = {"class": "rec", "from": [], "max_seq_len": 5, "target": "labels", "unit": unit}
    if options:
        del unit["end"], loop["max_seq_len"]
        unit["output"]["independent_of_batch"] = True
        loop.update(options)
    return {"mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"}, "output": loop}


NETWORKS: dict[str, Callable[[Hook], Networks]] = {
    "loop": _loop,
    "inner_loop": _inner_loop,
    "labels": _labels,
    "frames": lambda hook: _labels(hook, **{"from": "data"}),
    "without_loop": lambda hook: {"h": _linear("data"), "output": _hook_layer(hook, "h")},
}
CASES = [(name, {"train": True}) for name in NETWORKS] + [(name, {"search": True}) for name in ("labels", "frames")]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "in_loop"])
@pytest.mark.parametrize("name,flags", CASES, ids=["-".join([name, *flags]) for name, flags in CASES])
def test_lowered_within_a_lowering(name: str, flags: dict[str, bool], moved: bool) -> None:
    hook: Hook = []
    config = config_of(NETWORKS[name](hook), optimize_move_layers_out=moved)
    outer = Network.from_config(config, **flags)
    inner, alone = (Network(outer.plan, config, seed=outer.seed) for _ in range(2))
    with_grad = bool(outer.plan.losses)
    expected = alone.run(feed(), with_grad=with_grad)
    results: list[Any] = []

    def lower_again() -> None:
        """Lower in a thread that does not know the graph and the gradient tape of this one."""
        thread = threading.Thread(target=lambda: results.append(inner.run(feed(), with_grad=with_grad)))
        thread.start()
        thread.join()

    hook.append(lower_again)
    results.append(outer.run(feed(), with_grad=with_grad))
    assert len(results) == 2
    for result in results:
        assert_same_results(expected, result, rtol=1e-6, atol=1e-7)
