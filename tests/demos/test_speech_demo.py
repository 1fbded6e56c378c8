"""The speech demo: its sentences, audio and scores, and all of it on few utterances."""

from __future__ import annotations

import os
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.demos.demo_modules import DEMOS, demo_modules

needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")


@pytest.fixture(scope="module")
def demo():
    names = ("sentences", "speak", "espeak", "score")
    return SimpleNamespace(**dict(zip(names, demo_modules("speech", *names))))


def test_sentences(demo):
    """Different ones, of a few hundred words, all of which occur; the same ones each time."""
    texts = demo.sentences.distinct(4000, seed=1)
    assert len(set(texts)) == 4000 and texts == demo.sentences.distinct(4000, seed=1)
    words = {word for text in texts for word in text.split()}
    assert words == demo.sentences.vocabulary() and 250 < len(words) < 400
    assert not any("{" in text or "|" in text for text in texts)
    assert demo.sentences.sentence(random.Random(3), "time").split()


def test_voices_and_sentences_of_the_sets_are_disjoint(demo, tmp_path, monkeypatch):
    spoken = {}
    monkeypatch.setattr(demo.speak, "write_set", lambda folder, name, utterances: spoken.update({name: utterances}))
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("sys.argv", ["speak.py", str(tmp_path), "--train", "300"])
    assert demo.speak.main() == 0
    assert {name: len(of_set) for name, of_set in spoken.items()} == {**demo.speak.SIZES, "train": 300}
    texts = [utterance.text for of_set in spoken.values() for utterance in of_set]
    assert len(set(texts)) == len(texts)
    voices = {name: {utterance.voice for utterance in of_set} for name, of_set in spoken.items()}
    assert not voices["voices"] & voices["train"] and voices["dev"] & voices["train"]
    parts = [{part for voice in voices[name] for part in voice.split("+")} for name in ("train", "voices")]
    assert not parts[0] & parts[1], "neither an accent nor a variant is in both"


def test_noise(demo):
    """Has the power that was asked for, and lies around the speech."""
    samples = (8000 * np.sin(np.arange(40000) / 7)).astype(np.int16)
    utterance = demo.espeak.Utterance("x", "x", "en", 150, 50, 12.0, 3)
    mixed = demo.espeak.with_noise(samples, utterance).astype(float)
    assert len(mixed) > len(samples) + 1000 and np.array_equal(mixed, demo.espeak.with_noise(samples, utterance))
    clean = demo.espeak.with_noise(samples, utterance._replace(snr=200.0)).astype(float)
    measured = 10 * np.log10(np.mean(np.square(samples.astype(float))) / np.mean(np.square(mixed - clean)))
    assert measured == pytest.approx(12.0, abs=0.2)


def test_hypotheses_of_the_layers(demo, tmp_path):
    path = tmp_path / "search.py"
    found = {"a": {"decision": "th@@ e", "ctc_decision": "e"}, "b": {"decision": "", "ctc_decision": "e th@@ e"}}
    path.write_text(repr(found))
    assert demo.score.read_search(str(path)) == {
        "decision": {"a": "the", "b": ""},
        "ctc_decision": {"a": "e", "b": "e the"},
    }


def test_word_error_rate(demo):
    references = {"a": "one two three", "b": "four"}
    assert demo.score.word_error_rate(references, {"a": "one too three three", "b": ""}) == 75
    assert demo.score.word_error_rate(references, references) == 0
    # the answer "the dog" is right in half of the words of dev
    dev = {"a": "the cat", "b": "the dog", "c": "a dog"}
    assert demo.score.typical_sentence({"x": "one two", "y": "the dog"}, dev) == "the dog"


def test_without_espeak(run_demo, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="apt-get install espeak-ng"):
        run_demo(str(DEMOS / "speech" / "run.py"), "--quick", "--work", str(tmp_path))


@pytest.mark.long
@needs_espeak
def test_whole_demo_on_few_utterances(run_demo, tmp_path):
    output = run_demo(str(DEMOS / "speech" / "run.py"), "--quick", "--work", str(tmp_path))
    for line in (
        "blstm, CTC",
        "conformer, attention",
        "streaming, CTC with a lexicon",
        "computing time",
        "the training sentence that sounds most alike",
    ):
        assert line in output
    assert {"learning_curves.png", "attention.png", "results.png"} <= set(os.listdir(tmp_path / "out"))
