"""The text demo: its lines, what it is compared with, shallow fusion, and all of it on a few lines."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import returnn_tf
from tests.feeds import random_feed

DEMO = Path(__file__).parents[2] / "demos" / "text"


@pytest.fixture(scope="module")
def corpus():
    return module("corpus")


@pytest.fixture(scope="module")
def baselines():
    return module("baselines")


def module(name: str) -> SimpleNamespace:
    """Return the contents of one of the demo's files; other demos have modules of the same names."""
    sys.path.insert(0, str(DEMO))
    try:
        return SimpleNamespace(**runpy.run_path(str(DEMO / (name + ".py")), run_name="demo"))
    finally:
        sys.path.remove(str(DEMO))
        sys.modules.pop("corpus", None)


def test_lines(corpus):
    text = "Title\n\nA first sentence is here. Then, a long\nsecond one follows which is cut in two pieces.\n\nx=1"
    (paragraph,) = corpus.paragraphs(text)
    found = [(pair.tag, pair.text, pair.skeleton) for pair in corpus.lines("t", [paragraph])]
    assert found == [
        ("t/0", "A first sentence is here.", " frst sntnc s hr."),
        ("t/1", "Then, a long second one follows", "thn,  lng scnd n fllws"),
        ("t/2", "which is cut in two pieces.", "whch s ct n tw pcs."),
    ]


def test_nothing_held_out_is_in_training(corpus):
    sets = corpus.split(
        corpus.read_topics(), {"os": "Here is the one and only docstring.", "re": "Another docstring is here."}
    )
    texts = {name: {pair.text for pair in pairs} for name, pairs in sets.items()}
    assert len(texts["heldout"]) > 500 and len(texts["dev"]) > 200 and len(texts["train"]) > 2000
    assert texts["train"] < texts["text"]
    assert not texts["heldout"] & (texts["dev"] | texts["text"]) and not texts["dev"] & texts["text"]
    assert all(20 <= len(pair.text) <= 60 for pairs in sets.values() for pair in pairs)
    topics = {name: {pair.tag.split("/")[0] for pair in pairs} for name, pairs in sets.items()}
    assert topics["heldout"] <= set(corpus.HELD_OUT["heldout"]) and not topics["heldout"] & topics["text"]


@pytest.mark.slow
def test_docstrings_are_found(corpus):
    found = corpus.read_docstrings()
    assert "textwrap" in found and "paragraph" in found["textwrap"] and len(found) > 200
    assert not any("site-packages" in name or name.startswith("test/") for name in found)


def test_hdf(corpus, tmp_path):
    pairs = [corpus.Pair("a/0", "In Python", "n pythn"), corpus.Pair("b/7", "(one) + 2", "(n) + 2")]
    path = str(tmp_path / "x.hdf")
    corpus.write_hdf(path, pairs[:1])
    corpus.write_hdf(path, pairs)
    assert corpus.read_hdf(path) == pairs
    dataset = returnn_tf.Dataset.from_config({"class": "HDFDataset", "files": [path]})
    first, second = dataset.sequences(epoch=1)
    assert second.tag == "b/7" and first.data["classes"][-1] == corpus.END == first.data["delayed"][0]
    np.testing.assert_array_equal(first.data["classes"][:-1], first.data["delayed"][1:])
    assert "".join(corpus.LABELS[i] for i in first.data["data"]) == "n pythn"


def test_ngrams(corpus, baselines):
    lines = [corpus.Pair("a/0", "ab", "b"), corpus.Pair("a/1", "ab", "b")]
    # unigram: a, b and the end twice each, 3 kinds: (2 + 3/82) / (6 + 3)
    assert baselines.ngram_perplexity(lines, lines, 1) == pytest.approx(9 / (2 + 3 / 82))
    assert 1 < baselines.ngram_perplexity(lines, lines, 3) < baselines.ngram_perplexity(lines, lines, 2) < 2


def test_other_baselines(corpus, baselines):
    pairs = [corpus.Pair("a/%d" % i, text, corpus.skeleton(text)) for i, text in enumerate(["on one", "one The"])]
    assert baselines.lookup_table(pairs) == {"n": "one", "th": "The"}
    assert baselines.error_rate(["abcd", "abcd"], ["abd", "xbcd"]) == 25
    assert "label errors, most frequent word: 7.69%" in baselines.report(pairs, pairs, pairs)


def network(name: str, **options: Any) -> Any:
    """Return the network of one of the configs, with what its loop predicts."""
    config = returnn_tf.Config.from_file(str(DEMO / (name + ".config")))
    config.typed("network")["output"]["unit"].get("output_prob", {})["is_output_layer"] = True
    return returnn_tf.Network.from_config(config, **options)


def random_values(net: Any, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, 0.15, value.shape).astype("f") for name, value in sorted(net.get_param_values().items())
    }


def log_probs(net: Any, layer: str, feed: dict[str, Any], labels: np.ndarray) -> np.ndarray:
    """Return log p(labels) by position [batch, time]."""
    probs = net.run(feed, fetch=[layer]).layers[layer].value
    return np.log(np.take_along_axis(probs, labels[:, :, None], axis=2)[:, :, 0])


@pytest.mark.slow
def test_the_fused_score_is_the_sum_of_both(monkeypatch):
    monkeypatch.setenv("LM_SCALE", "0.3")
    search = network("fusion", search=True)
    transformer, lm = network("transformer", train=False), network("lm", train=False)
    of_transformer, of_lm = random_values(transformer, 1), random_values(lm, 2)
    of_transformer["output/rec/output_prob/b"][0] = 1.5  # the end: hypotheses of varied lengths
    inserted = {name.replace("output/rec/", "output/rec/lm/"): value for name, value in of_lm.items()}
    search.set_param_values({**of_transformer, **inserted})
    transformer.set_param_values(of_transformer)
    lm.set_param_values(of_lm)
    feed = random_feed(transformer.extern_data, batch=1, longest=3)  # max_seq_len 16
    out = search.run(feed)
    found, lengths = out.layers["output"].value, out.layers["output"].sizes[1]
    beam, sizes = len(found), np.minimum(lengths + 1, 16).astype("int32")  # with the end, if there was time for it
    labels = np.append(found, np.zeros([beam, 1], "int32"), axis=1)[:, : sizes.max()]
    labels = np.where(np.arange(sizes.max()) < lengths[:, None], labels, 0).astype("int32")
    feed = {key: np.repeat(value, beam, axis=0) for key, value in feed.items() if key.startswith("data")}
    feed.update({"classes": labels, "classes/size0": sizes, "delayed/size0": sizes})
    feed["delayed"] = np.append(np.zeros([beam, 1], "int32"), labels[:, :-1], axis=1)
    again = log_probs(transformer, "output/output_prob", feed, labels)
    again += 0.3 * log_probs(lm, "output/output", feed, labels)
    total = np.where(np.arange(sizes.max()) < sizes[:, None], again, 0).sum(axis=1)
    assert beam == 12 and len(set(lengths)) > 1
    # per label; if the loop was cut, the last division counts one step more than there were
    mean = total / sizes * (sizes.max() / (lengths.max() + 1))
    np.testing.assert_allclose(out.layers["output"].beam_scores[0], mean, atol=1e-4)


@pytest.mark.long
def test_whole_demo_on_few_lines(run_demo, tmp_path):
    output = run_demo(str(DEMO / "run.py"), "--quick", "--work", str(tmp_path))
    assert float(re.search(r"language model: perplexity ([\d.]+) per character", output).group(1)) < 82
    assert re.search(
        r"errors on held-out lines: Transformer [\d.]+ %, with language model \(scale 0\) [\d.]+ %", output
    )
    found = [
        (tmp_path / "out" / name).read_text().splitlines() for name in ("transformer_search.txt", "fusion_search.txt")
    ]
    assert len(found[0]) == len(found[1]) == 20
    # with the weight 0 the language model changes nothing, but for ties of a model that has learnt next to nothing
    assert sum(first == second for first, second in zip(*found)) >= 17
    assert set(os.listdir(tmp_path / "out")) >= {"vocab.txt", "lm_model", "transformer_model", "fusion_dev_0.txt"}
