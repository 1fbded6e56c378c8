"""Generic checks over the example in the docstring of every registered layer class and loss."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy
import pytest

from returnn_tf.config import Config
from returnn_tf.config.options import declared_options
from returnn_tf.graph.docs import example_of
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.network.describe import show_axes
from returnn_tf.network.network import Network, plan_from_config
from tests.feeds import random_feed

GOLDENS = Path(__file__).parent.parent / "goldens" / "layers.json"
DEFAULTS: Dict[str, Any] = {
    "behavior_version": 21,
    "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}},
}


def _own(items: List[Tuple[str, Any]]) -> List[Tuple[str, Any]]:
    return [(name, cls) for name, cls in items if cls.__module__.startswith("returnn_tf.")]


LAYER_CLASSES = dict(_own(LAYERS.items()))
CLASSES = {**{"layer:" + k: v for k, v in LAYER_CLASSES.items()}, **{"loss:" + k: v for k, v in _own(LOSSES.items())}}


def _config(name: str) -> Config:
    example = example_of(CLASSES[name])
    assert example, "%s: the docstring has no 'Example::' block with network = {...}" % name
    names: Dict[str, Any] = {}
    exec(compile(example, "<example of %s>" % name, "exec"), names)
    settings = dict(DEFAULTS)
    settings.update({k: v for k, v in names.items() if k in ("network", "extern_data", "behavior_version")})
    return Config(settings)


@pytest.fixture(scope="module", params=sorted(CLASSES))
def name(request: pytest.FixtureRequest) -> str:
    """Registered name with "layer:" or "loss:" in front."""
    return str(request.param)


def test_docstring_tells_all(name: str) -> None:
    doc = CLASSES[name].__doc__
    assert example_of(CLASSES[name]), "no Example:: block"
    if name.startswith("layer:"):
        assert "Lengths:" in doc, "the docstring must say what happens to the lengths ('Lengths: ...')"
        used = json.dumps(_plain(_config(name).typed("network")))
        registered = LAYERS.names_of(CLASSES[name])
        assert any('"class": "%s"' % n in used for n in registered), "the example does not use the class"
    for info in declared_options(CLASSES[name]).values():
        assert info.help and not info.help.endswith("."), info.name


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@pytest.mark.parametrize("train", [False, True])
def test_runs_with_ragged_batch(name: str, train: bool) -> None:
    net = Network.from_config(_config(name), train=train)
    out = net.run(_feed(net), with_grad=bool(net.plan.losses))
    for path, result in out.layers.items():
        data = net.plan.by_path()[path].output
        assert result.value.ndim == data.rank
        assert sorted(data.axis_kinds) == sorted(result.axes)
        for size, array_size in zip(sorted(s or -1 for s in data.static_shape), sorted(result.value.shape)):
            assert size <= array_size
        for axis, lens in result.sizes.items():
            assert numpy.max(lens, initial=0) <= result.value.shape[axis]
    for param, grad in out.grads.items():
        assert numpy.isfinite(grad).all(), param


def _feed(net: Network, batch: int = 3) -> Dict[str, Any]:
    feed = random_feed(net.extern_data, batch=batch)
    # A CTC alignment needs more frames than labels.
    if any(loss.loss.class_name in ("ctc", "fast_bw") for loss in net.plan.losses) or "ctc" in str(net.plan):
        feed["classes"], feed["classes/size0"] = feed["classes"][:, :1], numpy.ones([batch], "int32")
    return feed


def test_batch_of_one_and_new_lengths(name: str) -> None:
    """One traced graph serves all batch sizes and lengths."""
    net = Network.from_config(_config(name))
    net.run(_feed(net))
    out = net.run(_feed(net, batch=1))
    assert len(net._functions) == 1
    for path, result in out.layers.items():
        if net.plan.by_path()[path].output.batch_axis is not None and result.value.ndim:
            assert result.axes[0] == "B"


def test_save_and_restore(name: str) -> None:
    net = Network.from_config(_config(name))
    values = net.get_param_values()
    other = Network(net.plan, seed=7)
    other.set_param_values(values)
    first, second = net.run(_feed(net)), other.run(_feed(other))
    for path, result in first.layers.items():
        numpy.testing.assert_array_equal(result.value, second.layers[path].value)


def test_golden_variables_and_axes(name: str, update_goldens: bool) -> None:
    plan = plan_from_config(_config(name), train=True)
    got = {
        "params": {spec.name: list(spec.shape) for spec in plan.params.values()},
        "outputs": {path: show_axes(node.output) for path, node in plan.outputs.items()},
    }
    goldens = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}
    if update_goldens:
        goldens[name] = got
        GOLDENS.parent.mkdir(exist_ok=True)
        GOLDENS.write_text(json.dumps(goldens, indent=1, sort_keys=True) + "\n")
    assert got == goldens.get(name), "run pytest with --update-goldens and read the diff"


def test_all_examples_are_planned_without_tensorflow() -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import tests.layers.test_conformance as t\n"
        "from returnn_tf.network.describe import describe_plan\n"
        "for name in t.CLASSES: describe_plan(t.plan_from_config(t._config(name), train=True))\n"
        "assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, re.sub(r"(?s).*(?=\nTraceback)", "", result.stderr)
