"""`choice`: what its options do, found out by other networks or by trying all label sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.tensor import DimKind
from returnn_tf.util.lazy_tf import tf
from tests.layers.nets import LENS, config_of, feed
from tests.layers.rec.searching import frame_loop, free_loop, hypotheses, one_sequence, randomize, search_net

INDEPENDENT = {"independent_of_batch": True}


def run_loop(network: dict[str, Any], arrays: Any = None, **options: Any) -> Any:
    network = {**network, "output": {"class": "copy", "from": "loop"}}
    return search_net(network, **options).run(feed() if arrays is None else arrays).layers["output"]


# --- every sequence by itself ---


def same(found: list[Any], others: list[Any]) -> None:
    for (score, labels), (other_score, other_labels) in zip(found, others):
        assert labels == other_labels
        np.testing.assert_allclose(score, other_score, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"length_normalization_exponent": 0.7},
        {"length_normalization": False},
    ],
    ids=["normalized", "exponent", "plain"],
)
def test_independent_of_the_batch(options: dict[str, Any]) -> None:
    for make, loop_options in ((free_loop, {}), (free_loop, {"include_eos": True}), (frame_loop, {})):
        network = make({**INDEPENDENT, **options}, **loop_options)
        network["output"] = {"class": "copy", "from": "loop"}
        net = search_net(network)
        for seed in range(3):
            randomize(net, seed=seed, scale=1.5)
            together = hypotheses(net.run(feed()).layers["output"])
            for index, found in enumerate(together):
                (alone,) = hypotheses(net.run(one_sequence(index)).layers["output"])
                same(found, alone)


def test_scores_are_means_over_the_own_steps() -> None:
    network = free_loop({**INDEPENDENT, "length_normalization_exponent": 0.5}, include_eos=True)
    network["output"] = {"class": "copy", "from": "loop"}
    net = search_net(network, seed=1, scale=1.5)
    params = net.get_param_values()
    all_found = hypotheses(net.run(feed()).layers["output"])
    assert any(len({len(labels) for _, labels in found}) > 1 for found in all_found)
    for mean, found in zip(feed_means(), all_found):
        for score, labels in found:
            total, before = 0.0, 0
            for label in labels:
                hidden = np.tanh(params["loop/rec/emb/W"][before] + params["loop/rec/emb/b"])
                z = np.concatenate([hidden, mean]) @ params["loop/rec/p/W"] + params["loop/rec/p/b"]
                total += z[label] - np.log(np.exp(z).sum())
                before = label
            np.testing.assert_allclose(score, total / len(labels) ** 0.5, rtol=1e-4)


def feed_means() -> list[np.ndarray]:
    return [feed()["data"][b, :n].mean(axis=0) for b, n in enumerate(LENS)]


def test_an_ended_hypothesis_repeats_its_last_label() -> None:
    layers = {"end": {"class": "compare", "from": "output", "value": 2}}
    network = {
        **free_loop({**INDEPENDENT, "beam_size": 4}, layers, include_eos=True),
        "output": {"class": "copy", "from": "loop"},
    }
    layer = search_net(network, seed=2, scale=1.5).run(feed()).layers["output"]
    lens = next(iter(layer.sizes.values()))
    ended = 0
    for row, n in zip(layer.value, lens):
        if n < len(row):
            assert set(row[n:].tolist()) == {2} and row[n - 1] == 2
            ended += 1
    assert ended


# --- recombination ---


def collapsed_scores(log_probs: np.ndarray, blank: int, kind: str) -> dict[Any, float]:
    """Return all label strings without blanks, with the sum or maximum over their alignments."""
    result: dict[Any, list[float]] = {}
    steps, labels = log_probs.shape
    for path in itertools.product(range(labels), repeat=steps):
        string = tuple(label for label in path if label != blank)
        result.setdefault(string, []).append(float(sum(log_probs[t, label] for t, label in enumerate(path))))
    merge = np.logaddexp.reduce if kind == "sum" else np.max
    return {string: float(merge(scores)) for string, scores in result.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_recombination_is_exact_with_a_large_beam(kind: str) -> None:
    for exact, found in scores_of_strings({"recombine": kind, "recombine_blank": 2}, {}):
        assert set(found) == set(exact)
        for string, scores in found.items():
            np.testing.assert_allclose(scores, [exact[string]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_recombination_by_a_layer_is_exact_with_a_large_beam(kind: str) -> None:
    """What gets the same string in the last step is not merged any more."""
    string = {
        "class": "eval", "from": ["prev:string", "output"], "initial_output": 0,
        "eval": "tf.where(tf.equal(source(1), 2), source(0), source(0) * 7 + source(1) + 1)",
        "out_type": {"dtype": "int32", "sparse": False, "dim": None, "sparse_dim": None},
    }  # fmt: skip
    for exact, found in scores_of_strings({"recombine": kind, "recombine_by": "prev:string"}, {"string": string}):
        assert set(found) <= set(exact) and max(map(len, found.values())) > 1
        best = max(exact, key=exact.__getitem__)
        merged = {"sum": np.logaddexp.reduce, "max": np.max}[kind](found[best])
        np.testing.assert_allclose(merged, exact[best], rtol=1e-4, atol=1e-4)


Scores = dict[tuple[int, ...], float]


def scores_of_strings(
    options: dict[str, Any], layers: dict[str, Any]
) -> Iterator[tuple[Scores, dict[tuple[int, ...], list[float]]]]:
    """Return for each sequence the exact scores of all strings, and those of the hypotheses for each."""
    choice = {"beam_size": 40, "length_normalization": False, "independent_of_batch": True, "target": None, **options}
    layers = {
        "p": {"class": "softmax", "n_out": 3, "from": "data:source"},
        "seen": {"class": "compare", "from": "output", "value": 2, "is_output_layer": True},
        **layers,
    }
    network = {**frame_loop(choice, layers), "output": {"class": "copy", "from": "loop"}}
    net = search_net(network)
    arrays = feed()
    params = net.get_param_values()
    found = hypotheses(net.run(arrays).layers["output"])
    for b, hyps in enumerate(found):
        z = arrays["data"][b, : LENS[b]] @ params["loop/rec/p/W"] + params["loop/rec/p/b"]
        scores: dict[tuple[int, ...], list[float]] = {}
        for score, labels in hyps:
            if np.isfinite(score):
                scores.setdefault(tuple(label for label in labels if label != 2), []).append(float(score))
        yield collapsed_scores(z - np.log(np.exp(z).sum(axis=1, keepdims=True)), 2, options["recombine"]), scores


# --- several sources ---


@pytest.mark.slow
def test_all_combinations_of_two_sources() -> None:
    two = {"p2": {"class": "softmax", "n_out": 3, "from": ["data:source"]}}
    pair = {"from": ["p", "p2"], "target": None, "source_beam_sizes": [5, 3], "length_normalization": False}
    layers = {
        **two,
        "emb": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "prev:output/out_0"},
        "second": {"class": "copy", "from": "output/out_1", "is_output_layer": True},
        "both": {"class": "linear", "activation": None, "n_out": 2, "from": "prev:output/out_1"},
        "p": {"class": "softmax", "n_out": 5, "from": ["emb", "data:source", "both"]},
    }
    network = {
        **frame_loop({**pair, "independent_of_batch": True}, layers),
        "output": {"class": "copy", "from": "loop"},
        "second": {"class": "copy", "from": "loop/second", "is_output_layer": True},
    }
    net = search_net(network)
    out = net.run(feed()).layers
    seconds = hypotheses(out["second"])
    params = net.get_param_values()
    for b, found in enumerate(hypotheses(out["output"])):
        for (score, labels), (_, others) in zip(found, seconds[b]):
            total, before, other_before = 0.0, 0, 0
            for frame, label, other in zip(feed()["data"][b], labels, others):
                hidden = np.tanh(params["loop/rec/emb/W"][before] + params["loop/rec/emb/b"])
                both = params["loop/rec/both/W"][other_before] + params["loop/rec/both/b"]
                z = np.concatenate([hidden, frame, both]) @ params["loop/rec/p/W"] + params["loop/rec/p/b"]
                z2 = frame @ params["loop/rec/p2/W"] + params["loop/rec/p2/b"]
                total += z[label] - np.log(np.exp(z).sum()) + z2[other] - np.log(np.exp(z2).sum())
                before, other_before = label, other
            np.testing.assert_allclose(score, total, rtol=1e-4, atol=1e-4)
        assert len({(tuple(x), tuple(y)) for (_, x), (_, y) in zip(found, seconds[b])}) == len(found)


def test_part_that_is_used_only_behind_the_loop() -> None:
    two = {"p2": {"class": "softmax", "n_out": 3, "from": ["data:source"]}}
    pair = {"from": ["p", "p2"], "target": None, "source_beam_sizes": [5, 3], "length_normalization": False}
    second = {"class": "copy", "from": "output/out_1", "is_output_layer": True}
    network = {
        **frame_loop(pair, {**two, "second": second}),
        "output": {"class": "copy", "from": "loop"},
        "second": {"class": "copy", "from": "loop/second", "is_output_layer": True},
    }
    out = search_net(network).run(feed()).layers
    assert out["second"].value.shape == out["output"].value.shape and out["second"].value.max() <= 2


def test_two_targets_are_followed_in_training() -> None:
    layers = {
        "p2": {"class": "softmax", "n_out": 5, "from": ["data:source"]},
        "second": {"class": "copy", "from": "output/out_1", "is_output_layer": True},
    }
    network = {
        **frame_loop({"from": ["p", "p2"], "target": ["labels", "labels"]}, layers),
        "second": {"class": "copy", "from": "loop/second", "is_output_layer": True},
        "output": {"class": "copy", "from": "loop"},
    }
    out = search_net(network, train=True, search=False).run(feed()).layers
    for name in ("output", "second"):
        np.testing.assert_array_equal(out[name].value, feed()["labels"])


# --- scheduled sampling and random search ---


def sampled(train: bool, **options: Any) -> Any:
    return run_loop(frame_loop(options), train=train, search=False, scale=0.1)


def valid(array: Any) -> Any:
    return np.concatenate([row[:n] for row, n in zip(array, LENS)])


def test_scheduled_sampling() -> None:
    gold = valid(feed()["labels"])
    np.testing.assert_array_equal(valid(sampled(True).value), gold)
    np.testing.assert_array_equal(valid(sampled(False, scheduled_sampling=True).value), gold)
    np.testing.assert_array_equal(valid(sampled(True, scheduled_sampling={"gold_mixin_prob": 1.0}).value), gold)
    assert (valid(sampled(True, scheduled_sampling=True).value) != gold).sum() >= 3


@pytest.mark.parametrize("given, share", [(0.25, 0.8), ({"gold_mixin_prob": 0.5}, 0.6)])
def test_share_of_the_target(given: Any, share: float) -> None:
    many = {"data": np.zeros((400, 4, 3)), "labels": np.full((400, 4), 2)}
    arrays = {key: value.astype("float32" if key == "data" else "int32") for key, value in many.items()}
    arrays.update({key + "/size0": np.full(400, 4, "int32") for key in many})
    layer = run_loop(frame_loop({"scheduled_sampling": given}), arrays, train=True, search=False, scale=0.0)
    # The others are drawn from five labels, of which one is the target.
    assert abs((layer.value == 2).mean() - share) < 0.05


@pytest.mark.slow
def test_random_search_differs_and_keeps_the_target_in_search_without_search() -> None:
    plain, noisy = run_loop(frame_loop()), run_loop(frame_loop({"random_sample_scale": 5.0}))
    assert (plain.value != noisy.value).any()
    kept = run_loop(frame_loop({"search": False}))
    assert kept.beam_scores is None
    np.testing.assert_array_equal(valid(kept.value), valid(feed()["labels"]))


def test_a_choice_without_search_in_a_loop_that_ends_by_itself() -> None:
    """The loop runs until the layer "end" is true for the labels of the target, which nothing else in it decides."""
    unit = {
        "prob": {"class": "softmax", "n_out": 5, "from": "prev:output"},
        "output": {"class": "choice", "target": "labels", "beam_size": 2, "from": "prob", "search": False,
                   "initial_output": "zeros"},
        "end": {"class": "compare", "kind": "equal", "value": 0, "from": "output"},
    }  # fmt: skip
    loop = {"class": "rec", "from": [], "unit": unit, "target": "labels", "max_seq_len": 7}
    config = {"extern_data": {"data": {"dim": 3}, "labels": {"dim": 5, "sparse": True}}, "behavior_version": 21}
    net = Network.from_config(Config({"network": {"output": loop}, **config}), search=True)
    labels = np.array([[3, 2, 0, 4], [1, 0, 2, 2]], "int32")
    layer = net.run({"labels": labels, "labels/size0": np.array([4, 4], "int32")}).layers["output"]
    assert [row[:n].tolist() for row, n in zip(layer.value, layer.sizes[1])] == [[3, 2], [1]]


@pytest.mark.slow
def test_function_of_the_scores_sees_the_choices_before() -> None:
    seen = []

    def combine(layer: Any, scores_in: Any, scores_base: Any, **_: Any) -> Any:
        seen.append([view.output.placeholder.shape.rank for view in layer.explicit_search_sources])
        return scores_in + scores_base

    choice = {"custom_score_combine": combine, "explicit_search_sources": ["prev:output"]}
    np.testing.assert_allclose(run_loop(frame_loop(choice)).beam_scores, run_loop(frame_loop()).beam_scores, rtol=1e-5)
    assert seen and seen[0] == [1]


@pytest.mark.parametrize(
    "combine, found",
    [
        (lambda scores_base, **_: scores_base[:, 0], "but it returned float32 "),
        (lambda **_: None, "but it returned None"),
        (lambda scores_in, **_: scores_in[:, :, 1:], "of the shape and dtype of scores_in"),
    ],
)
def test_function_of_the_scores_has_to_return_scores(combine: Any, found: str) -> None:
    with pytest.raises((ConfigError, tf.errors.InvalidArgumentError), match="custom_score_combine must .*" + found):
        run_loop(frame_loop({"custom_score_combine": combine}))


def test_function_to_run_before_the_output_is_used() -> None:
    seen = []

    def check(layer: Any) -> Any:
        seen.append(layer.output.placeholder.dtype.name)
        return []

    run_loop(frame_loop({"control_dependencies_on_output": check}))
    assert set(seen) == {"int32"}


# --- bad input ---


@pytest.mark.parametrize(
    "choice, match",
    [
        ({"beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"from": []}, "no source with scores to search"),
        ({"target": None, "search": False}, "there is none. Give the option 'target'"),
        ({"initial_output": None}, "needs the option 'initial_output' of this layer"),
        ({"n_out": 7}, "n_out is 7, but the source .* 5 labels"),
        ({"source_beam_sizes": [1, 2]}, "source_beam_sizes must be 1 positive numbers"),
        ({"scheduled_sampling": 1.5}, "scheduled_sampling must be True, a probability"),
        ({"scheduled_sampling": {"gold": 1}}, "scheduled_sampling: unknown option 'gold'.*gold_mixin_prob"),
        ({"recombine": "maximum"}, "'recombine' is 'maximum'.*max"),
        ({"recombine_blank": 1}, "need the option 'recombine'"),
        ({"from": ["p", "p"], "target": "labels"}, "2 sources but 1 targets"),
        ({"from": ["p", "p"], "target": None, "recombine": "max"}, "recombine without recombine_by"),
        ({"input_type": "probs"}, "'input_type' is 'probs'.*'prob'"),
    ],
)
def test_bad_input(choice: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as info:
        run_loop(frame_loop(choice))
    assert "loop/output" in str(info.value)


def test_an_end_which_does_not_depend_on_the_choice() -> None:
    layers = {"end": {"class": "compare", "kind": "greater", "from": "base:size", "value": 2}}
    network = {**free_loop({}, layers), "size": {"class": "length", "from": "data"}}
    network["output"] = {"class": "copy", "from": "loop"}
    with pytest.raises(ConfigError, match="'end' does not depend on the choice 'loop/output'"):
        search_net(network)


def test_target_in_a_loop_that_finds_its_end() -> None:
    arrays = feed(labels=np.array([[3, 1, 0, 2], [2, 0, 4, 4], [1, 2, 3, 4]]))
    layer = run_loop(free_loop(), arrays, train=True, search=False)
    assert [row[:n].tolist() for row, n in zip(layer.value, layer.sizes[1])] == [[3, 1], [2], [1, 2, 3]]


@pytest.mark.parametrize("source, steps", [("data", 4), ("other", 6)])
def test_a_target_with_fewer_labels_than_steps(source: str, steps: int) -> None:
    unit = {
        "output": {"class": "choice", "target": "labels", "from": "prob", "beam_size": 2, "initial_output": 0},
        "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:output"},
        "prob": {"class": "softmax", "from": ["data:source", "emb"], "target": "labels", "is_output_layer": True},
    }
    loop = {"class": "rec", "from": "data:" + source, "unit": unit}
    net = Network.from_config(config_of({"loop": loop, "output": {"class": "copy", "from": "loop/prob"}}))
    arrays = feed()
    if source == "data":  # the target has the time axis of the source: nothing to compare
        choice = next(node for node in net.plan.nodes if node.path == "loop/output")
        assert [dim.as_kind(DimKind.LOOP) for dim in choice.layer.followed_dims] == [choice.output.dims[-1]]
        net.run(arrays)
        return
    arrays.update({"other": np.zeros((3, steps, 3), "float32"), "other/size0": np.array([steps, 2, 3], "int32")})
    with pytest.raises(tf.errors.InvalidArgumentError, match="the target has fewer labels than the loop has steps"):
        net.run(arrays)


# --- hypotheses that are all kept ---


def test_kept_hypotheses_start_with_the_best_labels_and_continue_each_by_its_best() -> None:
    network = frame_loop({"keep_beams": True, "length_normalization": False})
    net = search_net({**network, "output": {"class": "copy", "from": "loop"}}, seed=3, scale=1.5)
    params = net.get_param_values()
    arrays = one_sequence(0)
    (found,) = hypotheses(net.run(arrays).layers["output"])

    def log_probs(before: int, frame: np.ndarray) -> np.ndarray:
        hidden = np.tanh(params["loop/rec/emb/W"][before] + params["loop/rec/emb/b"])
        z = np.concatenate([hidden, frame]) @ params["loop/rec/p/W"] + params["loop/rec/p/b"]
        return z - np.log(np.exp(z).sum())

    frames = arrays["data"][0]
    first = log_probs(0, frames[0])
    expected = []
    for label in np.argsort(-first)[:3]:
        labels, score = [int(label)], first[label]
        for frame in frames[1:]:
            scores = log_probs(labels[-1], frame)
            labels.append(int(scores.argmax()))
            score += scores.max()
        expected.append((score, labels))
    expected.sort(key=lambda entry: -entry[0])
    assert [labels for _, labels in found] == [labels for _, labels in expected]
    np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [((2, 3), "must be a multiple of 2, it is 3"), ((3, 2), "must be a multiple of 3"), ((1, 6), "there are only 5")],
)
def test_hypotheses_that_cannot_all_be_kept(sizes: tuple[int, int], text: str) -> None:
    second = {"class": "choice", "target": "labels", "beam_size": sizes[1], "from": "p2", "initial_output": 0}
    layers = {
        "p2": {"class": "softmax", "n_out": 5, "from": "output"},
        "second": {**second, "keep_beams": True, "is_output_layer": True},
    }
    network = frame_loop({"beam_size": sizes[0]}, layers)
    with pytest.raises(ConfigError, match=text):
        search_net({**network, "output": {"class": "copy", "from": "loop"}})


# --- a loop with a source that finds its end itself ---


def with_end(max_seq_len: Any = 4, **options: Any) -> dict[str, Any]:
    end = {"end": {"class": "compare", "from": "output", "value": 0}}
    if max_seq_len is not None:
        options["max_seq_len"] = max_seq_len
    return {**frame_loop({"beam_size": 4}, end, target="labels", **options)}


def longer(arrays: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the feed with the source prolonged, so that no loop runs past it."""
    data = np.concatenate([arrays["data"], np.ones([len(arrays["data"]), steps, 3], "float32")], axis=1)
    return {**arrays, "data": data, "data/size0": np.full(len(data), data.shape[1], "int32")}


@pytest.mark.slow
@pytest.mark.parametrize("include_eos", [False, True])
def test_end_decides_although_there_is_a_source(include_eos: bool) -> None:
    """The lengths are those of the hypotheses; the frames may be known before, but not their number."""
    network = with_end(include_eos=include_eos)
    network["output"] = {"class": "decide", "from": "loop"}
    arrays = longer(feed(), 4)
    from_inside = search_net(network, seed=5, scale=1.5)
    found = from_inside.run(arrays, fetch=["loop"])
    lens = found.layers["loop"].sizes[1]
    assert len(set(lens.tolist())) > 1 and lens.max() <= 4
    for row, n in zip(found.layers["loop"].value, lens):
        ended = np.flatnonzero(row == 0)
        assert n == (min(ended[0] + include_eos, 4) if len(ended) else 4)
    # The same loop without a source, with the frames gathered by the step.
    unit = dict(network["loop"]["unit"])
    unit["frame"] = {"class": "gather", "from": "base:data", "axis": "T", "position": ":i"}
    unit["p"] = {**unit["p"], "from": ["emb", "frame"]}
    other = {**network, "loop": {**network["loop"], "from": [], "unit": unit}}
    same_net = search_net(other, seed=5, scale=1.5)
    same_net.set_param_values(from_inside.get_param_values())
    expected = same_net.run(arrays, fetch=["loop"])
    for name in ("loop", "output"):
        np.testing.assert_array_equal(found.layers[name].sizes[1], expected.layers[name].sizes[1])
        np.testing.assert_array_equal(found.layers[name].value, expected.layers[name].value)
        np.testing.assert_allclose(found.layers[name].beam_scores, expected.layers[name].beam_scores, rtol=1e-5)


@pytest.mark.parametrize("max_seq_len", [None, 20])
def test_a_loop_that_runs_past_its_source(max_seq_len: Any) -> None:
    network = with_end(max_seq_len)
    network["loop"]["unit"]["end"] = {"class": "compare", "from": "output", "value": 7}  # no label
    network["output"] = {"class": "decide", "from": "loop"}
    with pytest.raises(tf.errors.InvalidArgumentError, match="runs past the end of its source"):
        search_net(network).run(feed())


def test_training_keeps_the_length_of_the_source_or_target() -> None:
    network = {**with_end(), "output": {"class": "copy", "from": "loop"}}
    layer = search_net(network, search=False, train=True).run(feed()).layers["output"]
    assert layer.sizes[1].tolist() == list(LENS)


def test_a_loop_with_source_and_end_but_no_target() -> None:
    """Also in training the layer 'end' decides."""
    unit = {
        "sum": {"class": "combine", "kind": "add", "from": ["prev:sum", "one"], "initial_output": 0},
        "one": {"class": "constant", "value": 1.0, "with_batch_dim": True},
        "end": {"class": "compare", "kind": "greater_equal", "from": "sum", "value": 3.0},
        "h": {"class": "linear", "activation": None, "n_out": 2, "from": "data:source"},
        "output": {"class": "combine", "kind": "add", "from": ["h", "prev:output"]},
    }
    network = {"loop": {"class": "rec", "from": "data", "unit": unit}, "output": {"class": "copy", "from": "loop"}}
    net = search_net(network, search=False, train=True)
    arrays = longer(feed(), 2)
    layer = net.run(arrays).layers["output"]
    params = net.get_param_values()
    frames = arrays["data"] @ params["loop/rec/h/W"] + params["loop/rec/h/b"]
    assert layer.sizes[1].tolist() == [2] * len(LENS)
    np.testing.assert_allclose(layer.value, frames.cumsum(axis=1)[:, :2], rtol=1e-5)
