"""Generic checks over the example in the docstring of every registered layer class and loss."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.layers import example_of
from returnn_tf.compiler.describe import show_axes
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.result import RunResult
from returnn_tf.compiler.split_batch import obstacle, part_of_feed
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.options import declared_options
from returnn_tf.engine.checkpoints import checkpoint, params
from returnn_tf.graph.registry import LAYERS
from returnn_tf.util.lazy_tf import tf
from tests.feeds import random_feed, repadded
from tests.layers.examples import CLASSES, ONE_LABEL, example_config, example_settings
from tests.parity import assert_close, valid_mask
from tests.results import assert_same_results
from tests.tiers import usual

GOLDENS = Path(__file__).parent.parent / "goldens" / "layers.json"


@pytest.fixture(scope="module", params=sorted(CLASSES))
def name(request: pytest.FixtureRequest) -> str:
    """Return the registered name with "layer:" or "loss:" in front."""
    return str(request.param)


def test_docstring_tells_all(name: str) -> None:
    doc = CLASSES[name].__doc__
    assert example_of(CLASSES[name]), "no Example:: block"
    if name.startswith("layer:"):
        assert "Lengths:" in doc, "the docstring must say what happens to the lengths ('Lengths: ...')"
        used = json.dumps(_plain(example_config(name).typed("network")))
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


# --- running ---


@dataclasses.dataclass(frozen=True)
class Case:
    """An example that was traced and run once; all checks share the graph.

    :param label: name of the class, and whether it is the graph of evaluation, search or training
    :param name: "layer:<name>" or "loss:<name>"
    :param values: the initial parameters
    :param first: results for `feed`, with gradients if there is a loss
    """

    label: str
    name: str
    net: Network
    feed: dict[str, Any]
    values: dict[str, np.ndarray]
    first: RunResult

    def run(self, feed: dict[str, Any]) -> RunResult:
        """Run the same graph again, from the same parameters."""
        self.net.set_param_values(self.values)
        return _run(self.net, feed)


def _run(net: Network, feed: dict[str, Any]) -> RunResult:
    return net.run(feed, with_grad=bool(net.plan.losses) and not net.search)


_KNOWN = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}


def _has_params(name: str) -> bool:
    return bool(_KNOWN.get(name, {"params": True})["params"])


EVAL = ["%s-eval" % name for name in sorted(CLASSES)]
SEARCH = ["%s-search" % name for name in sorted(CLASSES) if '"choice"' in (example_of(CLASSES[name]) or "")]
TRAIN = ["%s-train" % name for name in sorted(CLASSES)]
#: Classes without parameters or losses in their examples that are computed differently in training.
OTHERWISE_IN_TRAINING = {
    "layer:activation", "layer:dropout", "layer:eval", "layer:gating", "layer:image_summary", "layer:resize",
    "layer:train_flag",
}  # fmt: skip
#: The others give the graph of evaluation once more.
LEARNS = [
    "%s-train" % name for name in sorted(CLASSES)
    if _has_params(name) or '"loss"' in (example_of(CLASSES[name]) or "") or name in OTHERWISE_IN_TRAINING
]  # fmt: skip
#: The first ones are those of EVAL: pytest sorts tests by the index of their parameter, so that a case is made once.
ALL = usual(EVAL + SEARCH + TRAIN, EVAL + SEARCH + LEARNS)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    name, _, mode = str(request.param).rpartition("-")
    net = Network.from_config(example_config(name), train=mode == "train", search=mode == "search")
    feed = _feed(name, net)
    values = net.get_param_values()
    return Case(request.param, name, net, feed, values, _run(net, feed))


def _feed(name: str, net: Network, lengths: Sequence[int] = (6, 4, 2)) -> dict[str, Any]:
    feed = random_feed(net.extern_data, lengths=lengths)
    if name in ONE_LABEL:
        feed["classes"], feed["classes/size0"] = feed["classes"][:, :1], np.minimum(feed["classes/size0"], 1)
    return feed


@pytest.mark.parametrize("case", ALL, indirect=True, scope="module")
def test_results_are_as_planned(case: Case) -> None:
    """Kind, size and dtype of every axis; finite gradients, some of them not zero."""
    _assert_planned(case, case.first)
    if case.first.grads:
        assert any(grad.any() for grad in case.first.grads.values())


def _assert_planned(case: Case, out: RunResult) -> None:
    for path, result in out.layers.items():
        data = case.net.plan.by_path()[path].output
        axes = sorted(range(data.rank), key=lambda axis: axis != data.batch_axis)
        assert result.axes == tuple(data.axis_kinds[axis] for axis in axes), path
        assert result.value.dtype == data.dtype, path
        assert {i for i, axis in enumerate(axes) if data.dims[axis].is_dynamic()} == set(result.sizes), path
        for axis, size in zip(axes, result.value.shape):
            assert data.dims[axis].size in (None, size), path
        for axis, lens in result.sizes.items():
            assert np.min(lens, initial=0) >= 0 and np.max(lens, initial=0) <= result.value.shape[axis], path
    for param, grad in out.grads.items():
        assert np.isfinite(grad).all() and grad.shape == case.values[param].shape, param


#: Classes whose valid output depends on what is in the padding, or on how much there is of it.
SEES_PADDING = {
    "layer:boolean_mask": "packs all entries of the array whose flag is set, as documented",
    "layer:conv": "the last windows reach into the padding",
    "layer:first_t_frames_noise_estimator": "the frames of the array count, as documented",
    "layer:norm": "mean and variance are those of the whole array, as documented",
    "layer:resize": "the last new frames lie between the last frame and the first of the padding",
    "layer:scatter_nd": "padded frames of the source are added too, as documented",
    "layer:window": "the last windows reach into the padding",
}
_OF_THE_BATCH = "without independent_of_batch a search divides scores by the size of the array and goes on to its end"
#: Cases whose results depend on the size of the array, but not on what is in the padding.
SEES_SIZE = {
    "layer:shift_axis-eval": "frames moved beyond the end of the array are cut, and the lengths with them",
    "layer:choice-search": _OF_THE_BATCH,
    "layer:choice_get_beam_scores-search": _OF_THE_BATCH,
}


@pytest.mark.parametrize("case", ALL, indirect=True, scope="module")
def test_padding_has_no_influence(case: Case) -> None:
    """Neither on results nor on gradients: other numbers in the padded frames; when it is not training, more frames."""
    mode = case.label.rpartition("-")[2]
    feeds = [repadded(case.feed, case.net.extern_data)]
    if mode != "train":  # dropout draws other numbers for another size
        feeds.append(repadded(case.feed, case.net.extern_data, more=3))
    for number, feed in enumerate(feeds):
        other = case.run(feed)
        if case.name in SEES_PADDING or (number == 1 and case.label in SEES_SIZE):
            with pytest.raises(AssertionError):
                assert_same_results(case.first, other)
        else:
            assert_same_results(case.first, other)


@pytest.mark.parametrize("name", sorted(SEES_PADDING))
def test_what_sees_padding_says_so(name: str) -> None:
    assert not plan_from_config(example_config(name)).by_path()["output"].layer.ignores_padding()


#: Examples with layers or losses that compute over the sequences of a batch, or once per batch.
BATCH_AS_A_WHOLE = {
    "layer:accumulate_mean", "layer:batch_median_pooling", "layer:batch_norm", "layer:boolean_mask", "layer:cond",
    "layer:framewise_statistics", "layer:gradient", "layer:hdf_dump", "layer:image_summary", "layer:random",
    "layer:random_state_init", "layer:synthetic_gradient", "layer:tikhonov_regularization", "layer:variable_assign",
    "loss:expected_loss", "loss:search_score", "loss:triplet_loss",
}  # fmt: skip


@pytest.mark.parametrize("case", EVAL, indirect=True, scope="module")
def test_batch_of_one_and_new_lengths(case: Case) -> None:
    """One traced graph serves all batch sizes and lengths."""
    out = case.run(_feed(case.name, case.net, [6]))
    (function,) = case.net._functions.values()
    assert len(function.graphs) == 1
    for path, result in out.layers.items():
        if case.net.plan.by_path()[path].output.batch_axis is not None and result.value.ndim:
            assert result.axes[0] == "B"


@pytest.mark.parametrize("case", EVAL, indirect=True, scope="module")
def test_a_batch_gives_what_its_parts_give(case: Case) -> None:
    """Each sequence has the values that it has among others, and losses add up; other examples say why not."""
    plan, data = case.net.plan, case.net.extern_data
    why = obstacle(plan)
    assert bool(why) == (case.name in BATCH_AS_A_WHOLE), why
    if why:
        return
    parts = [case.run(part_of_feed(data, case.feed, begin, end)) for begin, end in ((0, 1), (1, 3))]
    _assert_rows(case, case.first, slice(0, 1), parts[0])
    _assert_rows(case, case.first, slice(1, 3), parts[1])
    for kind in ("losses", "errors", "counts"):
        whole, (one, other) = getattr(case.first, kind), (getattr(part, kind) for part in parts)
        for name, value in whole.items():
            np.testing.assert_allclose(one[name] + other[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def _assert_rows(case: Case, whole: RunResult, rows: Any, part: RunResult) -> None:
    """Compare the results of some sequences of a batch with those of these sequences alone."""
    for path, result in whole.layers.items():
        output = case.net.plan.by_path()[path].output
        if output.batch_axis is None or str(output.dims[output.batch_axis]) != "batch":
            continue  # lengths only; or packed frames and the like, in another order
        value, alone = result.value[rows], part.layers[path].value
        cut = tuple(slice(size) for size in np.minimum(value.shape, alone.shape))
        sizes = {axis: lens[rows] if np.ndim(lens) else lens for axis, lens in result.sizes.items()}
        mask = valid_mask(value[cut], list(result.axes), sizes)
        assert_close(path, alone[cut], value[cut], 1e-4, 1e-5, mask)


#: Examples that have no result for a sequence without frames -> the error.
NEEDS_FRAMES = {"layer:gather": "is not in"}


@pytest.mark.parametrize("case", ALL, indirect=True, scope="module")
def test_sequences_without_frames(case: Case) -> None:
    """Results as planned, finite losses and gradients, and no influence on other sequences; nor without sequences."""
    for lengths in ([], [0, 0], [3, 0, 5]):
        feed = _feed(case.name, case.net, lengths)
        if case.name in NEEDS_FRAMES and lengths:
            with pytest.raises(tf.errors.InvalidArgumentError, match=NEEDS_FRAMES[case.name]):
                case.run(feed)
            continue
        out = case.run(feed)
        _assert_planned(case, out)
        assert all(np.isfinite(value).all() for value in (*out.losses.values(), *out.errors.values())), lengths
    if case.label.endswith("-eval") and case.name not in {*BATCH_AS_A_WHOLE, *NEEDS_FRAMES}:
        rows = [0, 2]
        batched = {name for name in feed if case.net.extern_data[name.split("/size")[0]].batch_axis is not None}
        others = {name: value[rows] if name in batched else value for name, value in feed.items()}
        _assert_rows(case, out, rows, case.run(others))


#: What has no parameters takes nothing from a checkpoint; those of the examples of losses are of a linear layer.
WITH_PARAMS = [case for case in EVAL if _has_params(case.rpartition("-")[0])]


@pytest.mark.parametrize(
    "case", usual(EVAL, [case for case in WITH_PARAMS if case.startswith("layer:")]), indirect=True, scope="module"
)
def test_checkpoint_and_second_lowering(case: Case, tmp_path: Path) -> None:
    """Another network of the same plan, with other initial values, computes the same once it has read a checkpoint."""
    case.net.set_param_values(case.values)
    checkpoint.save(str(tmp_path / "net.001"), case.net.params, {}, checkpoint.CheckpointInfo(1, 0, 42))
    other = Network(case.net.plan, case.net.config, seed=7)
    params.assign(other.params, checkpoint.read(str(tmp_path / "net.001")), source="net.001")
    assert_same_results(case.first, _run(other, case.feed), rtol=1e-6, atol=1e-7)


# --- double precision ---


#: Classes whose examples cannot be computed in float64, although they have no parameters (which are float32).
ONLY_FLOAT32 = {
    "layer:constant": "its constant is float32 as nothing else is asked for",
    "layer:resize": "TensorFlow interpolates in float32 only",
}
#: Classes whose examples have parameters and are computed in float64 nevertheless.
PARAMS_BESIDE_FLOAT64 = {
    "layer:batch_norm": "it computes in float32, and casts what it is given",
    "layer:choice": "its output are labels",
    "layer:tikhonov_regularization": "the parameters are not computed with the data",
    "layer:variable_assign": "its variable is a counter",
    "layer:variable_read": "its variable is a counter",
}
#: Classes whose output is float32 whatever the data is.
FLOAT32_OUTPUT = {"layer:choice_get_beam_scores": "the scores of a beam are float32"}


def _in_float64(name: str) -> Config:
    settings = example_settings(name)
    extern_data = {key: dict(options) for key, options in settings["extern_data"].items()}
    for options in extern_data.values():
        if options.get("dtype", "float32") == "float32" and not options.get("sparse") and "sparse_dim" not in options:
            options["dtype"] = "float64"
    return Config({**settings, "extern_data": extern_data})


@pytest.mark.parametrize("case", EVAL, indirect=True, scope="module")
def test_float64(case: Case) -> None:
    """Computed in the precision of the data, or refused, if parameters are in the way; nothing is cast silently."""
    name, has_params = case.name, bool(case.net.plan.params)
    if name in ONLY_FLOAT32 or (has_params and name not in PARAMS_BESIDE_FLOAT64):
        with pytest.raises(ConfigError, match="float32"):
            Network.from_config(_in_float64(name)).run(case.feed)
        return
    net = Network.from_config(_in_float64(name))
    net.set_param_values(case.values)
    out = net.run(case.feed)
    assert_same_results(dataclasses.replace(case.first, grads={}), out)
    for path, result in case.first.layers.items():
        dtype = out.layers[path].value.dtype
        assert dtype == net.plan.by_path()[path].output.dtype
        if not has_params and name not in FLOAT32_OUTPUT and result.value.dtype == "float32":
            assert dtype == ("float64" if "float32" in _dtypes(case.feed) else "float32"), path


#: Classes that no float64 network can have -> the error.
NOT_IN_FLOAT64 = {"layer:resize": "needs a source of float32"}
#: Classes whose example declares that the data is float32.
DECLARED_FLOAT32 = {"layer:boolean_mask"}


#: The others are computed in float64 by `test_float64`, too.
SETTING_DECIDES = [
    case for case in EVAL
    if case in WITH_PARAMS or case[: -len("-eval")] in {**ONLY_FLOAT32, **FLOAT32_OUTPUT, **NOT_IN_FLOAT64}
    or case[: -len("-eval")] in DECLARED_FLOAT32
]  # fmt: skip


@pytest.mark.parametrize("case", usual(EVAL, SETTING_DECIDES), indirect=True, scope="module")
def test_network_in_float64(case: Case) -> None:
    """The setting float_dtype holds for everything: the same values, but parameters, outputs, losses in float64."""
    config = Config({**example_settings(case.name), "float_dtype": "float64"})
    if case.name in NOT_IN_FLOAT64:
        with pytest.raises(ConfigError, match=NOT_IN_FLOAT64[case.name]):
            Network.from_config(config)
        return
    net = Network.from_config(config)
    assert {v.dtype.name for v in net.params.values() if v.dtype.is_floating} <= {"float64"}
    net.set_param_values(case.values)
    out = _run(net, case.feed)
    assert_same_results(dataclasses.replace(case.first, grads={}), dataclasses.replace(out, grads={}))
    floats = [r.value.dtype for r in out.layers.values()] + [
        v.dtype for v in (*out.losses.values(), *out.grads.values())
    ]
    assert ("float32" in map(str, floats)) == (case.name in DECLARED_FLOAT32)


def _dtypes(feed: dict[str, Any]) -> set[str]:
    return {str(value.dtype) for value in feed.values()}


def test_golden_variables_and_axes(name: str, update_goldens: bool) -> None:
    plan = plan_from_config(example_config(name), train=True)
    got = {
        "params": {spec.name: list(spec.shape) for spec in plan.params.values()},
        "outputs": {path: show_axes(node.output) for path, node in plan.outputs.items()},
    }
    goldens = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}
    if update_goldens:
        goldens = {**{key: value for key, value in goldens.items() if key in CLASSES}, name: got}
        GOLDENS.parent.mkdir(exist_ok=True)
        GOLDENS.write_text(json.dumps(goldens, indent=1, sort_keys=True) + "\n")
    assert got == goldens.get(name), "run pytest with --update-goldens and read the diff"


def test_goldens_are_of_existing_classes() -> None:
    assert json.loads(GOLDENS.read_text()).keys() == CLASSES.keys()


@pytest.mark.slow
def test_all_examples_are_planned_without_tensorflow() -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import tests.layers.test_conformance as t\n"
        "from returnn_tf.compiler.describe import describe_plan\n"
        "for name in sorted(t.CLASSES):\n"
        "    describe_plan(t.plan_from_config(t.example_config(name), train=True))\n"
        "assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, re.sub(r"(?s).*(?=\nTraceback)", "", result.stderr)
