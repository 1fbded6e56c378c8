"""Searches that go on from block to block of frames: hypotheses, joined over the blocks, are those of all frames."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import ConfigError
from returnn_tf.engine.search.joined_hypotheses import JoinedHypotheses
from returnn_tf.export.export import export
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.streaming_exporter import stream_fault

BLANK = 4
HISTORY = {
    "class": "subnetwork", "from": "data", "subnetwork": {
        "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
        "lstm": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "emb"},
        "output": {"class": "copy", "from": "lstm"},
    },
}  # fmt: skip


VOCAB = {"class": "Vocabulary", "labels": list("abcd"), "unknown_label": None}
HOT_WORDS = {"class": "hot_words", "from": "prev:output", "phrases": {"a b": 3.0, "b c a": 2.0}, "blank": BLANK}


WORDS = {"class": "word_scores", "from": "prev:output", "lexicon": "words.txt", "blank": BLANK}


def transducer(choice: dict[str, Any], scores: Optional[dict[str, Any]] = None, **options: Any) -> dict[str, Any]:
    """Return a network with one label or blank for each frame, whose scores depend on the labels so far.

    :param scores: a layer whose scores of labels are added
    """
    said = {"class": "compare", "kind": "not_equal", "value": BLANK}
    unit = {
        "said": {**said, "from": "output", "initial_output": True},
        "masked": {"class": "masked_computation", "mask": "prev:said", "from": "prev:output", "unit": HISTORY},
        "history": {"class": "unmask", "mask": "prev:said", "from": "masked"},
        "readout": {"class": "linear", "activation": "tanh", "n_out": 5, "from": ["data:source", "history"]},
        "prob": {"class": "softmax", "from": "readout", "n_out": 5, "target": None},
        "output": {"class": "choice", "target": None, "from": "prob", "initial_output": BLANK, **choice},
    }
    if scores is not None:
        unit["scores"] = {"vocab": VOCAB, **scores}
        unit["sum"] = {"class": "eval", "eval": "safe_log(source(0)) + source(1)", "from": ["prob", "scores"]}
        unit["output"].update({"from": "sum", "input_type": "log_prob"})
    return {
        "encoder": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data"},
        "output": {"class": "rec", "from": "encoder", "unit": unit, **options},
        "said": {**said, "from": "output"},
        "picked": {"class": "masked_computation", "mask": "said", "from": "output", "unit": {"class": "copy"}},
        "emb": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "output"},
        "sum": {"class": "cumsum", "from": "emb"},
        "last": {"class": "rec", "unit": "gru", "n_out": 3, "from": "emb"},
        "decision": {"class": "decide", "from": "picked", "is_output_layer": True},
        **{name: {"class": "copy", "from": name[:-4], "is_output_layer": True} for name in ("picked_out", "sum_out")},
        "last_out": {"class": "copy", "from": "last", "is_output_layer": True},
    }


def net_of(layers: dict[str, Any]) -> returnn_tf.Network:
    config = {"network": layers, "extern_data": {"data": {"dim": 4}}, "behavior_version": 21}
    net = returnn_tf.Network.from_config(returnn_tf.Config(config), search=True)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(0, 1.0, var.shape) for name, var in net.stored_params.items()})
    return net


CASES = {
    "greedy": ({"beam_size": 1}, {}),
    "beam": ({"beam_size": 3, "length_normalization": False}, {}),
    "normalized by the length": ({"beam_size": 4}, {"include_eos": True}),
    "independent of the batch": ({"beam_size": 4, "independent_of_batch": True}, {}),
    "more hypotheses than labels, merged": (
        {"beam_size": 12, "length_normalization": False, "recombine": "sum", "recombine_blank": BLANK},
        {"include_eos": True},
    ),
    "best of those with the same labels": (
        {"beam_size": 4, "length_normalization": False, "recombine": "max", "recombine_blank": BLANK},
        {"include_eos": True},
    ),
    "hot words": ({"beam_size": 4, "length_normalization": False}, {"scores": HOT_WORDS}),
    "words": ({"beam_size": 4, "length_normalization": False}, {"scores": WORDS}),
    "words of a small beam, the end counts": ({"beam_size": 1}, {"scores": {**WORDS, "lm": "words.arpa"}}),
    "two labels for each hypothesis": ({"beam_size": 4, "keep_beams": True, "length_normalization": False}, {}),
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A lexicon and a language model in the current folder."""
    unigrams = "-2 <unk>\n-0.5 </s>\n-0.7 ab\n-0.9 abc\n-0.6 d\n-0.4 ca\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("words"))
        pathlib.Path("words.txt").write_text("ab a b\nabc a b c\nd d\nca c a\n")
        pathlib.Path("words.arpa").write_text("\\data\\\nngram 1=6\n\\1-grams:\n%s\\end\\\n" % unigrams)
        yield


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, words: None) -> StreamingModel:
    """Return the model of a case, which is traced once for all sizes of blocks."""
    choice, options = CASES[request.param]
    return StreamingModel(net_of(transducer(choice, **options)), ["output", "picked_out", "sum_out", "last_out"])


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("model", CASES, indirect=True)
def test_blocks(model: StreamingModel, block: int) -> None:
    """Labels of each frame, labels without blanks, and what layers with a state make of them."""
    assert stream_fault(model, block) is None


@pytest.mark.slow
def test_sequences_begin_at_different_times() -> None:
    """By hand: a block of the state of zeros begins a sequence, whatever others in the batch do."""
    choice, options = CASES["more hypotheses than labels, merged"]
    net = net_of(transducer(choice, **options))
    model, whole = StreamingModel(net, ["output"]), InferenceModel(net, ["output"])
    rng, beam = np.random.RandomState(2), choice["beam_size"]
    data = rng.normal(0, 1, (2, 9, 4)).astype("float32")
    joined, scores = [JoinedHypotheses(), JoinedHypotheses()], {}
    states = model.zero_states(2)
    # frames of each sequence in each block; the second one begins late, the first one ends early
    for begins, counts in (((0, 0), (4, 0)), ((4, 0), (5, 3)), ((9, 3), (0, 6))):
        rows = [np.pad(each[b : b + n], ((0, max(counts) - n), (0, 0))) for each, b, n in zip(data, begins, counts)]
        found = model.expected({"data": np.stack(rows), "data_size0": np.array(counts, "int32"), **states})
        states = {name: found[after] for name, after in model.states.items()}
        for seq, count in enumerate(counts):
            if count:
                own = found["output"][seq * beam : (seq + 1) * beam, :count]
                joined[seq].add([{"": row} for row in own], found["output_sources"][seq].tolist())
                scores[seq] = found["output_scores"][seq]
    for seq in range(2):
        expected = whole.expected({"data": data[seq : seq + 1], "data_size0": np.array([9], "int32")})
        np.testing.assert_allclose(scores[seq], expected["output_scores"][0], rtol=1e-5)
        for entry in range(beam):
            np.testing.assert_array_equal(joined[seq].values(entry)[""], expected["output"][entry])


@pytest.mark.slow
def test_begun_anew() -> None:
    """After a pause, the search is that of a beam of 1 with the best hypothesis so far."""
    model = StreamingModel(net_of(transducer({"beam_size": 3, "length_normalization": False})), ["output"])
    data = np.random.RandomState(3).normal(0, 1, (2, 8, 4)).astype("float32")
    lens = np.array([4, 4], "int32")
    first = model.expected({"data": data[:, :4], "data_size0": lens, **model.zero_states(2)})
    states = {name: first[after] for name, after in model.states.items()}
    best = np.array([1, 0], "int32")
    anew = {name: np.asarray(value) for name, value in model.begun_anew(states, best).items()}
    for name in ("state_output_masked_output_lstm_c", "state_output_output_prev"):
        rows = states[name].reshape(2, 3, -1)[[0, 1], best]
        np.testing.assert_array_equal(anew[name].reshape(2, 3, -1), np.repeat(rows[:, None], 3, axis=1))
    np.testing.assert_array_equal(anew["state_encoder_c"], states["state_encoder_c"])
    second = model.expected({"data": data[:, 4:], "data_size0": lens, **anew})
    assert (second["output_scores"] < 0).all() and np.isfinite(second["output_scores"]).all()
    assert len({tuple(row) for row in second["output"][:3].tolist()}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice, options, outputs, text",
    [
        ({"beam_size": 3}, {}, ["decision"], "'decision' decides on a hypothesis.* all hypotheses, 'picked'"),
        ({"beam_size": 3, "random_sample_scale": 1.0}, {}, ["output"], "option 'random_sample_scale'"),
    ],
)
def test_refused(choice: dict[str, Any], options: dict[str, Any], outputs: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StreamingModel(net_of(transducer(choice, **options)), outputs)


@pytest.mark.slow
@pytest.mark.usefixtures("words")
def test_words_end_with_the_last_block() -> None:
    """Only there the score of the end counts, and what is within a word is impossible."""
    net = net_of(transducer({"beam_size": 4, "length_normalization": False}, {**WORDS, "lm": "words.arpa"}))
    model, whole = StreamingModel(net, ["output"]), InferenceModel(net, ["output"])
    assert model.waits_for_end
    data, states = np.random.RandomState(1).normal(0, 2, (2, 5, 4)).astype("float32"), model.zero_states(2)
    block = {"data": data, "data_size0": np.array([5, 5], "int32")}
    expected = whole.expected(block)["output_scores"]
    found = [model.expected({**block, **given})["output_scores"] for given in (model.at_end(states), states)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    assert (found[1] > expected).all()


@pytest.mark.slow
@pytest.mark.usefixtures("words")
def test_words_begin_anew() -> None:
    """After a pause, a sentence begins: no word goes on."""
    model = StreamingModel(net_of(transducer({"beam_size": 2}, WORDS)), ["output"])
    data = np.random.RandomState(3).normal(0, 1, (1, 4, 4)).astype("float32")
    found = model.expected({"data": data, "data_size0": np.array([4], "int32"), **model.zero_states(1)})
    states = {name: found[after] for name, after in model.states.items()}
    anew = model.begun_anew(states, np.array([0], "int32"))
    name = "state_output_scores"
    assert states[name].any() and not np.asarray(anew[name]).any()


@pytest.mark.slow
def test_no_export() -> None:
    """Of a search, programs would have to follow the hypotheses."""
    net = net_of(transducer({"beam_size": 3}))
    with pytest.raises(ConfigError, match="'output' has the hypotheses of a search"):
        export(net, "unused", outputs=["output"], state=True)


def test_what_hypotheses_have_in_common() -> None:
    """Values follow the back pointers; what is behind the last common ancestor is kept once."""
    rng, beam, blocks = np.random.RandomState(4), 3, 40
    joined, histories = JoinedHypotheses(), [[] for _ in range(beam)]
    for place in range(blocks):
        sources = [0, 0, 0] if place in (11, 30) else rng.randint(0, beam, beam).tolist()
        values = [{"x": np.array([place * beam + entry] * (entry + 1))} for entry in range(beam)]
        joined.add(values, sources)
        histories = [[*histories[source], *values[entry]["x"]] for entry, source in enumerate(sources)]
        if place % 3 == 0:
            assert [joined.values(entry)["x"].tolist() for entry in range(beam)] == histories
    assert [joined.values(entry)["x"].tolist() for entry in range(beam)] == histories
    assert len(joined._blocks) < 15
