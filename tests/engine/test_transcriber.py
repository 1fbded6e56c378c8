"""Transcripts of searches: times from CTC, attention and choices by frame, confidence, and the parts of scores."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.requested import with_outputs
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.engine.search.times import (
    InputFrames,
    Times,
    TimesLayer,
    frames_of_attention,
    frames_of_ctc,
    frames_of_input,
    input_frames,
    times_layer,
)
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.search.transcript_graph import TranscriptGraph, TranscriptOptions, wanted_layers
from returnn_tf.engine.transcripts.confidence import Confidence

NAMES = ["th@@", "e", "cat", "</s>"]
BLANK = END = 3
#: What is said in each frame: "th@@ e cat", and "cat cat".
FRAMES = [[3, 0, 0, 3, 1, 3, 3, 2, 2, 2], [2, 3, 3, 2]]
SECONDS = 0.5

CTC: dict[str, Any] = {
    "ctc": {"class": "activation", "activation": "softmax", "from": "data", "loss": "ctc", "target": "classes"},
}
GREEDY = {**CTC, "output": {"class": "ctc_greedy", "from": "ctc", "target": "classes"}}
#: Each frame chooses a label or the blank.
FRAMEWISE: dict[str, Any] = {
    "output": {
        "class": "rec", "from": "data", "target": "classes", "unit": {
            "output": {"class": "choice", "from": "data:source", "input_type": "logits", "beam_size": 4},
        },
    },
    "is_label": {"class": "compare", "kind": "not_equal", "value": BLANK, "from": "output"},
    "picked": {"class": "masked_computation", "mask": "is_label", "from": "output", "unit": {"class": "copy"}},
    "decision": {"class": "decide", "from": "picked", "is_output_layer": True},
}  # fmt: skip
#: Step i attends to the frames of label i of the first sequence, and finds it; then comes the end.
ATTENTION: dict[str, Any] = {
    "keys": {"class": "activation", "activation": "softmax", "from": "data"},
    "output": {
        "class": "rec", "from": [], "target": "classes", "max_seq_len": 4, "include_eos": True, "unit": {
            "output": {"class": "choice", "from": "prob", "input_type": "prob", "beam_size": 3, "initial_output": 0},
            "end": {"class": "compare", "from": "output", "value": END},
            "energy": {"class": "gather", "from": "base:data", "position": ":i", "axis": "F"},
            "weights": {"class": "softmax_over_spatial", "from": "energy"},
            "context": {"class": "generic_attention", "weights": "weights", "base": "base:keys"},
            "prob": {"class": "activation", "activation": "softmax", "from": "scaled"},
            "scaled": {"class": "eval", "from": "context", "eval": "6.0 * source(0)"},
        },
    },
    "decision": {"class": "decide", "from": "output", "is_output_layer": True},
}  # fmt: skip
ALIGNED: dict[str, Any] = {
    "p": {"class": "activation", "activation": "softmax", "from": "data"},
    "aligned": {
        "class": "forced_align", "align_target": "data:classes", "topology": "ctc", "input_type": "prob", "from": "p",
        "is_output_layer": True,
    },
}  # fmt: skip
JOINT: dict[str, Any] = {
    **CTC,
    **ATTENTION,
    "output": {**ATTENTION["output"], "target": "labels", "unit": {
        **ATTENTION["output"]["unit"], "output": {**ATTENTION["output"]["unit"]["output"], "target": "labels"},
    }},
    "labels_raw": {
        "class": "reinterpret_data", "set_sparse_dim": 4, "from": "data:classes", "register_as_extern_data": "labels",
    },
}  # fmt: skip


def feed(count: int = 2) -> dict[str, Any]:
    """Return scores with which each frame is almost sure of its label."""
    size = max(map(len, FRAMES[:count]))
    data = np.zeros([count, size, len(NAMES)], "float32")
    for row, labels in enumerate(FRAMES[:count]):
        data[row, np.arange(len(labels)), labels] = 5.0
    classes = np.array([[0, 1, 2], [2, 2, 0]][:count], "int32")
    return {
        "classes": classes,
        "classes/size0": np.array([3, 2][:count], "int32"),
        "data": data,
        "data/size0": np.array([len(labels) for labels in FRAMES[:count]], "int32"),
    }


def transcripts(network: dict[str, Any], layer: str, count: int = 2, **options: Any) -> tuple[Any, TranscriptGraph]:
    return transcribed(network, layer, feed(count), **options)[:2]


def transcribed(
    network: dict[str, Any], layer: str, batch: dict[str, Any], **options: Any
) -> tuple[Any, TranscriptGraph, Transcriber]:
    size = 3 if {"ctc", "p"} & set(network) else 4
    extern_data = {"data": {"dim": 4}, "classes": {"dim": size, "sparse": True}}
    config = Config({"network": network, "extern_data": extern_data, "behavior_version": 21})
    given = TranscriptOptions(**options)
    wanted = wanted_layers(plan_from_config(config, search=True), layer, given)
    net = Network.from_config(with_outputs(config, wanted), search=True)
    graph = TranscriptGraph(net.plan, layer, given)
    searcher = Searcher(net, [layer], with_losses=False, needed=graph.needed, further=graph.emit)
    result = searcher.run(searcher.tensors(batch))
    transcriber = Transcriber(graph, Labels(NAMES), SECONDS)
    tags = ["a", "b"][: len(batch["data"])]
    frames = transcriber.frames_of_batch(batch)
    return transcriber.transcripts(tags, result.further, frames), graph, transcriber


def timed(pieces: Any) -> list[tuple[str, Optional[float], Optional[float]]]:
    return [(piece.text, piece.start, piece.end) for piece in pieces]


def test_greedy_ctc():
    (first, second), graph = transcripts(GREEDY, "output")
    assert graph.times.kind is Times.CTC
    assert timed(first.best.labels) == [("th@@", 0.5, 1.6), ("e", 2.0, 2.6), ("cat", 3.5, 5.0)]
    assert timed(first.best.words) == [("the", 0.5, 2.6), ("cat", 3.5, 5.0)]
    assert timed(second.best.words) == [("cat", 0.0, 0.6), ("cat", 1.5, 2.0)]
    assert (first.duration, second.duration) == (5.0, 2.0)
    sure = np.exp(5) / (np.exp(5) + 3)
    np.testing.assert_allclose([word.confidence for word in first.best.words], sure, rtol=1e-5)


#: Frames of "audio", beside those of "data" and the labels, which are others.
INPUTS: dict[str, Any] = {
    "data": {"dim": 3}, "audio": {"dim": 4}, "classes": {"dim": 3, "sparse": True},
}  # fmt: skip


@pytest.mark.parametrize(
    "layers, key",
    [
        ({"x": {"class": "copy", "from": "data:audio"}}, "audio"),
        ({"x": {"class": "pool", "mode": "max", "pool_size": 3, "padding": "same", "from": "data:audio"}}, "audio"),
        ({"x": {"class": "conv", "filter_size": 3, "n_out": 4, "padding": "valid", "from": "data:audio"}}, "audio"),
        (
            {
                "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "first"},
                "first": {"class": "gather", "position": 0, "axis": "F", "from": "data:audio"},
                "x": {"class": "masked_computation", "mask": "mask", "from": "data:audio", "unit": {"class": "copy"}},
            },
            "audio",
        ),
        (
            {
                "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "data"},
                "x": {"class": "combine", "kind": "add", "from": ["data:audio", "scale"]},
                "scale": {"class": "linear", "activation": None, "n_out": 4, "from": "mean"},
            },
            "audio",
        ),
        ({"x": {"class": "copy", "from": "data"}}, "data"),
        (
            {
                "added": {"class": "postfix_in_time", "postfix": 0.0, "from": "data"},
                "more": {"class": "linear", "activation": None, "n_out": 4, "from": "added"},
                "x": {"class": "concat", "from": [("more", "T"), ("data:audio", "T")]},
            },
            None,
        ),
    ],
)
def test_times_are_counted_in_the_frames_that_the_layer_comes_from(layers, key):
    network = {
        **layers,
        "ctc": {"class": "softmax", "from": "x", "loss": "ctc", "target": "classes"},
        "output": {"class": "ctc_greedy", "from": "ctc", "target": "classes"},
    }
    config = Config({"network": network, "extern_data": INPUTS, "behavior_version": 21})
    plan = plan_from_config(config, search=True)
    found = frames_of_input(plan, plan.by_path()["ctc"], plan.by_path()["ctc"].output.time_axis)
    assert found == (None if key is None else InputFrames(key, 0))


@pytest.mark.slow
def test_greedy_ctc_by_entropy():
    (first, _), _ = transcripts(GREEDY, "output", confidence=Confidence("entropy"))
    p, q = np.exp(5) / (np.exp(5) + 3), 1 / (np.exp(5) + 3)
    expected = 1 + (p * np.log(p) + 3 * q * np.log(q)) / np.log(4)
    np.testing.assert_allclose([label.confidence for label in first.best.labels], expected, rtol=1e-5)


@pytest.mark.slow
def test_labels_chosen_frame_by_frame():
    (first, second), graph = transcripts(FRAMEWISE, "decision")
    assert graph.times.kind is Times.PATH
    assert timed(second.best.words) == [("cat", 0.0, 0.6), ("cat", 1.5, 2.0)]
    assert timed(first.best.labels)[:2] == [("th@@", 0.5, 1.0), ("th@@", 1.0, 1.6)]  # a label is one frame
    assert len(second.hypotheses) == 4


@pytest.mark.slow
def test_posterior_of_the_beam():
    """All frames choose independently, so the confidence of a label is the share of its hypotheses in the beam."""
    (_, second), _ = transcripts(FRAMEWISE, "decision", confidence=Confidence("posterior", 1.0))
    scores = np.array([each.score for each in second.hypotheses])
    weights = np.exp(scores) / np.exp(scores).sum()
    texts = [[label.text for label in each.labels] for each in second.hypotheses]
    expected = sum(weight for weight, text in zip(weights, texts) if text[-1:] == ["cat"])
    np.testing.assert_allclose(second.best.labels[-1].confidence, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("network", [FRAMEWISE, ATTENTION], ids=["by frame", "attention"])
def test_posterior_pooled_with_the_probability_of_the_label(network):
    (found, *_), _ = transcripts(network, "decision", count=1)
    (beam, *_), _ = transcripts(network, "decision", count=1, confidence=Confidence("posterior"))
    parts = {"model": ("output/prob", 1.0)} if network is ATTENTION else {}
    best, of_beam = found.best, [label.confidence for label in beam.best.labels]
    if parts:
        (detailed, *_), _ = transcripts(network, "decision", count=1, parts=parts)
        probs = np.exp(detailed.best.label_parts["model"][: len(best.labels)])
    else:
        probs = np.full(len(best.labels), np.exp(5) / (np.exp(5) + 3))  # each frame is as sure
    np.testing.assert_allclose([label.confidence for label in best.labels], np.sqrt(of_beam * probs), rtol=1e-4)
    of_word = beam.best.words[0].confidence * min(probs[:2])
    np.testing.assert_allclose(best.words[0].confidence, np.sqrt(of_word), rtol=1e-4)


@pytest.mark.slow
def test_probabilities_that_enter_the_loop_are_pooled_too():
    """As of a transducer whose output is computed before its loop."""
    unit = {"output": {**FRAMEWISE["output"]["unit"]["output"], "input_type": "prob"}}
    probs = {"class": "activation", "activation": "softmax", "from": "data"}
    network = {**FRAMEWISE, "probs": probs, "output": {**FRAMEWISE["output"], "from": "probs", "unit": unit}}
    (_, found), _ = transcripts(network, "decision")
    (_, expected), _ = transcripts(FRAMEWISE, "decision")
    np.testing.assert_allclose(
        [word.confidence for word in found.best.words], [word.confidence for word in expected.best.words], rtol=1e-4
    )


@pytest.mark.slow
def test_a_beam_of_one_has_the_probability_of_the_labels():
    unit = ATTENTION["output"]["unit"]
    one = {**ATTENTION["output"], "unit": {**unit, "output": {**unit["output"], "beam_size": 1}}}
    (found,), _ = transcripts({**ATTENTION, "output": one}, "decision", 1, parts={"model": ("output/prob", 1.0)})
    probs = np.exp(found.best.label_parts["model"])
    np.testing.assert_allclose([label.confidence for label in found.best.labels], probs[:-1], rtol=1e-4)


@pytest.mark.slow
def test_with_a_language_model_the_posterior_alone_counts():
    """The labels are then not chosen by the probabilities of one distribution."""
    unit = ATTENTION["output"]["unit"]
    both = {"class": "combine", "kind": "add", "from": ["log", "log"]}
    fused = {**unit, "log": {"class": "activation", "activation": "safe_log", "from": "prob"}, "both": both}
    fused["output"] = {**unit["output"], "from": "both", "input_type": "log_prob"}
    network = {**ATTENTION, "output": {**ATTENTION["output"], "unit": fused}}
    (found,), _ = transcripts(network, "decision", 1)
    (beam,), _ = transcripts(network, "decision", 1, confidence=Confidence("posterior"))
    assert [label.confidence for label in found.best.labels] == [label.confidence for label in beam.best.labels]


@pytest.mark.slow
def test_attention():
    (first,), graph = transcripts(ATTENTION, "decision", count=1)
    assert graph.times.kind is Times.ATTENTION and graph.times.path == "output/weights"
    assert timed(first.best.words) == [("the", 0.5, 2.6), ("cat", 3.5, 5.0)]


@pytest.mark.slow
def test_attention_to_the_steps_of_the_decoder_tells_no_times():
    """A decoder with self-attention, which comes first and last in the loop, and one with nothing else."""
    unit = ATTENTION["output"]["unit"]
    history = {
        "before": {"class": "cum_concat", "from": "prev:output_float"},
        "output_float": {"class": "cast", "dtype": "float32", "from": "output", "initial_output": 0},
        "self_weights": {"class": "softmax_over_spatial", "from": "before", "axis": "stag:rec-history"},
    }
    for place in (False, True):
        order = {**history, **unit} if place else {**unit, **history}
        network = {**ATTENTION, "output": {**ATTENTION["output"], "unit": order}}
        config = Config(
            {"network": network, "extern_data": {"data": {"dim": 4}, "classes": {"dim": 4, "sparse": True}}}
        )
        plan = plan_from_config(with_outputs(config, ["output/self_weights"]), search=True)
        assert plan.layers["output/self_weights"].layer.gives_attention_weights
        assert times_layer(plan, plan.by_path()["output"], None) == TimesLayer(Times.ATTENTION, "output/weights")


@pytest.mark.slow
def test_ctc_is_preferred_to_attention():
    """The labels of the decoder are those of CTC, and the end."""
    (first,), graph = transcripts(JOINT, "decision", count=1)
    assert graph.times.kind is Times.CTC and graph.times.path == "ctc"
    assert timed(first.best.words) == [("the", 0.5, 2.6), ("cat", 3.5, 5.0)]


@pytest.mark.slow
def test_entropy_of_a_decoder_and_parts_of_scores():
    options = {"confidence": Confidence("entropy"), "parts": {"decoder": ("output/prob", 0.5)}}
    (first,), _ = transcripts(ATTENTION, "decision", 1, **options)
    best = first.best
    assert len(best.label_parts["decoder"]) == len(best.labels) + 1  # and the end
    np.testing.assert_allclose(best.parts["decoder"], sum(best.label_parts["decoder"]), rtol=1e-5)
    assert all(0 < label.confidence < 1 for label in best.labels)
    assert best.words[0].confidence == min(label.confidence for label in best.labels[:2])
    # Without length normalisation, the parts would be the score: it is divided by the number of steps.
    np.testing.assert_allclose(best.parts["decoder"] / 0.5 / 4, best.score, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("topology, first_label", [("ctc", ("th@@", 0.5, 1.6)), ("rna", ("th@@", 0.5, 1.1))])
def test_alignment_of_the_target(topology, first_label):
    network = {**ALIGNED, "aligned": {**ALIGNED["aligned"], "topology": topology}}
    (first, second), graph = transcripts(network, "aligned")
    assert graph.times.kind is Times.PATH
    assert timed(first.best.labels)[0] == first_label
    assert [word.text for word in second.best.words] == ["cat", "cat"]
    assert timed(second.best.words)[1] == ("cat", 1.5, 2.0)
    np.testing.assert_allclose(second.best.labels[0].confidence, np.exp(5) / (np.exp(5) + 3), rtol=1e-5)


@pytest.mark.slow
def test_confidence_of_an_alignment_by_entropy():
    (first, _), _ = transcripts(ALIGNED, "aligned", confidence=Confidence("entropy"))
    (greedy, _), _ = transcripts(GREEDY, "output", confidence=Confidence("entropy"))
    expected = [label.confidence for label in greedy.best.labels]
    np.testing.assert_allclose([label.confidence for label in first.best.labels], expected, rtol=1e-5)


@pytest.mark.slow
def test_labels_that_do_not_fit_are_spread_evenly():
    """Three labels in two frames."""
    batch = {**feed(1), "data/size0": np.array([2], "int32")}
    network = {**CTC, "output": {"class": "copy", "from": "data:classes"}}
    (found,), graph, transcriber = transcribed(network, "output", batch, times="ctc")
    np.testing.assert_allclose([label.start for label in found.best.labels], [0, 1 / 3, 2 / 3])
    assert transcriber.spread == ["a"]


@pytest.mark.parametrize(
    "network, layer, options, message",
    [
        (ATTENTION, "decision", {"times": "output/weight"}, "Did you mean 'output/weights'"),
        (ATTENTION, "decision", {"times": "decision"}, "tells no times"),
        (ATTENTION, "decision", {"times": "output/context"}, "no attention weights for each label and frame"),
        (
            ATTENTION,
            "decision",
            {"parts": {"lm": ("output/lm", 1.0)}},
            "'lm'.*no layer 'output/lm'",
        ),
        (
            ATTENTION,
            "decision",
            {"parts": {"lm": ("keys", 1.0)}},
            "not inside of the loop that searches",
        ),
        (ATTENTION, "decision", {"parts": {"lm": ("output/end", 1.0)}}, "does not have scores of labels for each step"),
        (ATTENTION, "keys", {}, "has no labels, so there is no transcript"),
    ],
)
def test_options_that_do_not_fit(network, layer, options, message):
    with pytest.raises(ConfigError, match=message):
        transcripts(network, layer, 1, **options)


def test_frames_of_ctc_with_the_blank_in_front():
    """Labels have the numbers of their classes, as the loss has it."""
    scores = np.log(np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]))
    assert frames_of_ctc(scores, [[1, 2], [3], [0]], 0) == [((1, 2), (2, 3)), None, None]  # 3 is no label, 0 the blank
    assert frames_of_ctc(scores, [[2]], -3) == [((1, 3),)]  # a blank in frame 1 would be as good


def test_frames_of_attention_leave_out_frames_without_much_weight():
    weights = np.array([[0.02, 0.9, 0.02, 0.02, 0.02, 0.02], [0.1, 0.1, 0.05, 0.05, 0.4, 0.3]])
    assert frames_of_attention(weights) == ((1, 2), (4, 6))
    assert frames_of_attention(np.zeros([0, 4])) == ()
    assert frames_of_attention(np.ones([3, 2])) is None


@pytest.mark.parametrize(
    "given, found, ratio",
    [(100, 100, 1), (101, 51, 2), (97, 24, 4), (98, 24, 4), (7, 3, 2), (10, 20, 0.5), (16000, 98, 163)],
)
def test_frames_of_the_input(given, found, ratio):
    assert input_frames(given, found) == pytest.approx(ratio, rel=0.01)
