"""Single steps of loops: a search over the exported graph finds what the search of the network finds."""

from __future__ import annotations

import copy
import json
import os
import platform

import numpy as np
import pytest

import returnn_tf
from returnn_tf import ConfigError, DataError
from returnn_tf.export.side_file import write_side_file
from returnn_tf.export.steps import emission, stepper
from returnn_tf.export.steps.client import StepDecoder
from returnn_tf.export.steps.exporter import StepsExporter
from tests.compiler.random_decoders import frames_feed, random_decoder, random_params
from tests.compiler.random_nets import EXTERN
from tests.compiler.test_random_search import lens_of
from tests.export.step_models import (
    LABELS,
    MODELS,
    attention,
    config_of,
    decoder_of,
    feed_of,
    in_subnetwork,
    language_model,
    searching,
)
from tests.export.step_models import transducer as time_synchronous

#: Scores below belong to no hypothesis, but fill the beam.
NONE = -1e20


def check_search(net, config, folder, feed, **options):
    """Search over single steps: hypotheses and scores are those of the network."""
    expected = net.run(feed, fetch=["output"]).layers["output"]
    with decoder_of(net, config, folder) as (decoder, _):
        found = decoder.search(feed, **options)
        number = decoder.choices.index("output")
    seqs, beam = expected.beam_scores.shape
    lens = expected.sizes.get(1, np.full([seqs], expected.value.shape[1]))
    lens = np.broadcast_to(lens.reshape(seqs, -1), [seqs, beam])
    labels = expected.value.reshape(seqs, beam, -1)
    inside = np.arange(labels.shape[2]) < lens[:, :, None]
    real = expected.beam_scores > NONE
    assert real[:, 0].all() and not real[:, found.scores.shape[1] :].any()
    real = real[:, : found.scores.shape[1]]
    np.testing.assert_allclose(found.scores[real], expected.beam_scores[:, : real.shape[1]][real], rtol=1e-5, atol=1e-5)
    for got, wanted in ((found.lengths, lens), (found.labels[number], np.where(inside, labels, 0))):
        np.testing.assert_array_equal(got[real], wanted[:, : real.shape[1]][real])
    return found


_IN_RULES = ("language_model", "transducer")  # of which RULES has variants


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in _IN_RULES)) for name in MODELS]
)
def test_search_over_steps(name, tmp_path):
    """The beam search over exported steps gives the hypotheses and scores of the search of the network."""
    config = config_of(MODELS[name]())
    found = check_search(searching(config), config, tmp_path, feed_of())
    assert len(np.unique(found.scores[found.scores > NONE])) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("model, label", [(attention, "end_label"), (time_synchronous, "blank")])
def test_hot_words(model, label, tmp_path):
    """The state of the phrases is one of the exported steps, reordered by the search outside of the graph."""
    network = model(source="scores", input_type="log_prob")
    unit = network["output"]["unit"]
    vocab = {"labels": list("012345"), "unknown_label": None}
    phrases = {"1 2 3": 2.0, "2": 1.0, "4 4 1": 3.0}
    special = {label: 0 if label == "end_label" else 5}
    unit["hot"] = {"class": "hot_words", "from": "prev:output", "phrases": phrases, "vocab": vocab, **special}
    unit["scores"] = {"class": "eval", "from": ["prob", "hot"], "eval": "safe_log(source(0)) + source(1)"}
    config = config_of(network)
    found = check_search(searching(config, scale=0.5), config, tmp_path, feed_of())
    unit["hot"]["phrases"] = []
    without = searching(config_of(network), scale=0.5).run(feed_of(), fetch=["output"]).layers["output"]
    assert not np.allclose(without.beam_scores, found.scores)


@pytest.mark.slow
@pytest.mark.parametrize("model, label", [(attention, "end_label"), (time_synchronous, "blank")])
def test_word_scores(model, label, tmp_path):
    """The states of the words are some of the exported steps; the language model is in a file beside the library."""
    (tmp_path / "words.txt").write_text("one 1 2\nthree 3\nfour 4 1\nfor 4 1\n4 4\n")
    grams = "-1 <unk>\n-9 <s> -0.1\n-1 </s>\n-0.9 one -0.2\n-1.1 three\n-0.7 for\n-1.3 four\n-0.8 4\n"
    bigrams = "-0.1 one four\n-0.2 <s> for\n-0.4 three one\n"
    arpa = "\\data\\\nngram 1=8\nngram 2=3\n\\1-grams:\n%s\\2-grams:\n%s\\end\\\n" % (grams, bigrams)
    (tmp_path / "words.arpa").write_text(arpa)
    network = model(source="scores", input_type="log_prob")
    files = {"lexicon": str(tmp_path / "words.txt"), "lm": str(tmp_path / "words.arpa")}
    vocab = {"labels": list("012345"), "unknown_label": None}
    words = {**files, "vocab": vocab, "lm_scale": 1.0, label: 0 if label == "end_label" else 5}
    network["output"]["unit"]["words"] = {"class": "word_scores", "from": "prev:output", **words}
    scores = {"class": "eval", "from": ["prob", "words"], "eval": "safe_log(source(0)) + source(1)"}
    network["output"]["unit"]["scores"] = scores
    config = config_of(network)
    check_search(searching(config), config, tmp_path, feed_of())


@pytest.mark.slow
def test_word_scores_need_their_op(tmp_path):
    network = attention(source="scores", input_type="log_prob")
    words = {"word_score": 1.0, "vocab": {"labels": list("012345"), "unknown_label": None}, "end_label": 0}
    network["output"]["unit"]["words"] = {"class": "word_scores", "from": "prev:output", **words}
    network["output"]["unit"]["scores"] = {"class": "combine", "kind": "add", "from": ["prob", "words"]}
    config = config_of(network)
    with pytest.raises(ConfigError, match="'output/words'.* is computed by a native op.*without native ops can't"):
        returnn_tf.export(searching(config), str(tmp_path / "steps"), to="steps", portable=True)


@pytest.mark.slow
def test_loop_in_a_subnetwork(tmp_path):
    """The loop is named by its path, and a step may run a loop of its own."""
    network = in_subnetwork()
    config = config_of({**network, "output": {"class": "copy", "from": "decoder"}})
    net = searching(config)
    expected = net.run(feed_of(), fetch=["decoder/loop"]).layers["decoder/loop"].beam_scores
    returnn_tf.export(net, str(tmp_path / "steps"), to="steps", layer="decoder/loop", portable=True)
    with StepDecoder.open(str(tmp_path / "steps")) as decoder:
        found = decoder.search(feed_of())
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5, atol=1e-5)


RULES = [
    (language_model, {"length_normalization": False, "prob_scale": 0.7, "base_beam_score_scale": 0.9}),
    (language_model, {"length_normalization_exponent": 0.5, "beam_size": 8}),
    (language_model, {"independent_of_batch": True, "length_normalization_exponent": 0.8}),
    (time_synchronous, {"independent_of_batch": True, "length_normalization": True}),
]


@pytest.mark.slow
@pytest.mark.parametrize("network, options", RULES, ids=[" ".join(options) for _, options in RULES])
def test_rules_of_the_search(network, options, tmp_path):
    """The options of the choice apply as in the network; those of the loop, too."""
    network = network(**options)
    network["output"]["include_eos"] = not network["output"].get("include_eos", False)
    config = config_of(network)
    check_search(searching(config, seed=3, scale=0.6), config, tmp_path, feed_of(lens=(5, 5)))


@pytest.mark.slow
def test_end_by_label(tmp_path):
    """Without a layer "end" the search is told the label; otherwise it refuses to run for ever."""
    network = language_model()
    config = config_of(network)
    net = searching(config, seed=2)
    expected = net.run(feed_of(), fetch=["output"]).layers["output"]
    network = copy.deepcopy(network)
    del network["output"]["unit"]["end"], network["output"]["max_seq_len"]
    with decoder_of(net, config_of(network), tmp_path) as (decoder, _):
        found = decoder.search(feed_of(), end_label=0, max_steps=6)
        np.testing.assert_allclose(found.scores, expected.beam_scores, rtol=1e-5, atol=1e-5)
        with pytest.raises(DataError, match="Nothing ends the search"):
            decoder.search(feed_of())
    returnn_tf.export(searching(config_of(network)), str(tmp_path / "steps"), to="steps", portable=True)


def random_model(seed):
    """Return a random decoder whose scores a search outside can use, and its feed."""
    made = random_decoder(seed)
    network = copy.deepcopy(made.network)
    unit = network["output"]["unit"]
    for options in made.choices:
        if options["input_type"] == "logits":
            unit[options["name"]]["input_type"] = "log_prob"
            unit[options["from"]]["activation"] = "log_softmax"
    config = returnn_tf.Config({"behavior_version": 21, "extern_data": EXTERN, "network": network})
    return config, frames_feed(seed, lens_of(made))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (13, *range(100, 130)))])
def test_random_decoders(seed, tmp_path):
    """Whatever a step consists of, single steps give its search."""
    config, feed = random_model(seed)
    net = returnn_tf.Network.from_config(config, search=True)
    net.set_param_values(random_params(net, seed))
    check_search(net, config, tmp_path, feed)


# --- as a target of exports ---


@pytest.mark.slow
def test_export(tmp_path):
    """A folder with graph, checkpoint, description and lists; the client needs nothing else."""
    net = searching(config_of(time_synchronous()))
    folder = str(tmp_path / "steps")
    returnn_tf.export(net, folder, to="steps", portable=True)
    expected = net.run(feed_of(), fetch=["output"]).layers["output"]
    with StepDecoder.open(folder) as decoder:
        feed = feed_of()
        found = decoder.search(feed["data"], feed["data/size0"])
    np.testing.assert_allclose(found.scores, expected.beam_scores, rtol=1e-5, atol=1e-5)
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        side = json.load(file)
    assert side["steps"]["counter"] == "decoder" and side["native"]["libraries"] == []
    names = {"graph.meta", "params.index", "params.data-00000-of-00001", "params.manifest.json", "model.json"}
    assert set(os.listdir(folder)) == names | {"steps.json", "state_vars.txt", "params.txt"}
    with open(os.path.join(folder, "state_vars.txt"), encoding="utf8") as file:
        assert file.read().splitlines()[0].startswith("IO/state_delayed/")


def test_keys_with_other_names(tmp_path):
    """A key with a space and "_size" in its name; the exporter itself searches as the network does."""
    network = json.loads(json.dumps(time_synchronous()).replace('"data"', '"data:my_size x"'))
    extern_data = {"my_size x": {"dim": 3}, "classes": {"dim": LABELS, "sparse": True}}
    net, exporter = searching(config_of(network, extern_data=extern_data)), StepsExporter(portable=True)
    model = exporter.model(net)
    exporter.write(model, str(tmp_path))
    write_side_file(str(tmp_path), exporter, model)
    exporter.check(model, str(tmp_path))
    sample = model.sample()
    scores = exporter.run(str(tmp_path), sample)["output_scores"]
    expected = np.sort(model.expected(sample)["output_scores"])[:, ::-1]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_export_of_other_searches(tmp_path):
    """A search with rules of its own is checked and exported, but the client does not claim to follow it."""
    net = searching(config_of(time_synchronous(recombine="sum", recombine_blank=5)))
    folder = str(tmp_path / "steps")
    returnn_tf.export(net, folder, to="steps", portable=True)
    with StepDecoder.open(folder) as decoder:
        with pytest.raises(DataError, match="does not search with recombine"):
            decoder.search(feed_of())


def test_export_of_a_fixed_number_of_steps(tmp_path):
    """Nothing has lengths then, neither in the graph nor in the check."""
    net = searching(config_of(MODELS["fixed_frames"]()))
    returnn_tf.export(net, str(tmp_path / "steps"), to="steps", portable=True)
    with StepDecoder.open(str(tmp_path / "steps")) as decoder:
        assert decoder.search(feed_of()).lengths.tolist() == [[2] * 3] * 2


def test_wrong_scores_are_not_published(tmp_path, monkeypatch):
    """A graph whose scores are not those of the search is an error, and no folder appears."""
    right = emission.scores_for_search
    monkeypatch.setattr(emission, "scores_for_search", lambda ctx: right(ctx) * 1.001)
    with pytest.raises(DataError, match="do not compute what its search does"):
        returnn_tf.export(searching(config_of(language_model())), str(tmp_path / "steps"), to="steps")
    assert os.listdir(tmp_path) == []


def test_errors_of_files(tmp_path):
    """Missing and foreign files are named."""
    with pytest.raises(DataError, match=r"model.json can't be read"):
        StepDecoder.open(str(tmp_path))
    path = str(tmp_path / "graph.meta")
    with pytest.raises(DataError, match=r"graph.meta: No such file"):
        StepDecoder(path)
    with open(path, "wb") as file:
        file.write(b"no graph")
    with pytest.raises(DataError, match=r"graph.meta is not a meta graph"):
        StepDecoder(path)


def test_libraries_of_another_tensorflow(tmp_path, monkeypatch):
    """A library is not loaded into another version of TensorFlow; where the process has the ops, none is."""
    net = searching(config_of(time_synchronous()))
    with decoder_of(net, config_of(time_synchronous()), tmp_path):
        pass
    native = {"tensorflow": "1.15.0", "machine": platform.machine(), "cpu": ""}
    path = str(tmp_path / "graph.meta")
    StepDecoder(path, None, ["missing.so"], native=native).close()

    def lacking(*_, **__):
        raise ValueError("Op type not registered")

    monkeypatch.setattr(stepper.tf, "import_graph_def", lacking)
    with pytest.raises(DataError, match="graph.meta can't be loaded: .*compiled for TensorFlow 1.15.0"):
        StepDecoder(path, None, ["missing.so"], native=native)


def test_errors_of_options(tmp_path):
    """Options that have no meaning here are refused."""
    net = searching(config_of(attention()))
    for options, text in [
        ({"outputs": ["encoder"]}, "outputs can't be named"),
        ({"layer": "decoder"}, "there is no such layer"),
        ({"counter": "nobody"}, "counter"),
    ]:
        with pytest.raises(ConfigError, match=text):
            returnn_tf.export(net, str(tmp_path / "steps"), to="steps", **options)
