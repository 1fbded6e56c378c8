"""returnn-tf listen: the words of transcribe while the audio comes, and what it says about bad audio and models."""

from __future__ import annotations

import io
import json
import os
import pathlib
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
import soundfile

from returnn_tf.cli.main import main
from tests.cli.tones import RATE, config_of_tones, tones, write, write_model

CONFIG = config_of_tones(
    '"peak_normalization": False',
    """
from returnn_tf.tensor import SpatialDim

network = {
    "past": {"class": "rec", "unit": "nativelstm2", "n_out": 4, "from": "data"},
    "both": {"class": "eval", "eval": "source(0) + 0.01 * source(1)", "from": ["data", "past"]},
    "pooled": {
        "class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "use_time_mask": True, "from": "both"},
    "ctc": {"class": "softmax", "from": "pooled", "loss": "ctc", "target": "classes"},
    "output": {"class": "ctc_greedy", "from": "ctc", "target": "classes"},
    "logits": {"class": "linear", "activation": None, "n_out": 5, "from": "data", "is_output_layer": True},
    "of_logits": {"class": "ctc_greedy", "from": "logits", "target": "classes", "input_type": "logits",
                  "is_output_layer": True},
    "back": {"class": "rec", "unit": "nativelstm2", "n_out": 4, "from": "data", "direction": -1},
    "back_ctc": {"class": "softmax", "from": "back", "n_out": 5, "is_output_layer": True},
    "conv": {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": 4, "from": "data"},
    "conv_ctc": {"class": "softmax", "from": "conv", "n_out": 5, "is_output_layer": True},
    "all": {
        "class": "self_attention", "num_heads": 1, "total_key_dim": 4, "n_out": 4, "attention_left_only": True,
        "from": "data"},
    "all_ctc": {"class": "softmax", "from": "all", "n_out": 5, "is_output_layer": True},
    "search": {"class": "rec", "from": "ctc", "unit": {"output": {
        "class": "choice", "target": None, "beam_size": 3, "from": "data:source", "initial_output": 0}}},
    "frames": {"class": "decide", "from": "search", "is_output_layer": True},
    "attention": {"class": "rec", "from": [], "max_seq_len": 9, "unit": {
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 4, "from": ["prev:emb", "prev:att"]},
        "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "output", "initial_output": 0},
        "energy": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": None, "from": ["base:past", "s"]},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:past"},
        "prob": {"class": "softmax", "n_out": 5, "from": ["s", "att"]},
        "end": {"class": "compare", "from": "output", "value": 4},
        "output": {"class": "choice", "target": None, "beam_size": 3, "from": "prob", "initial_output": 4}}},
    "attention_best": {"class": "decide", "from": "attention", "is_output_layer": True},
}


def in_chunks(name, layers, left, right, own):
    # layers over windows, one for each four frames, and posteriors of these
    window, chunks = SpatialDim(name + "_window", left + right + 1), SpatialDim(name + "_chunks")
    cut = {
        "class": "window", "window_dim": window, "window_left": left, "window_right": right, "stride": 4,
        "out_spatial_dim": chunks}
    return {
        name + "_cut": {**cut, "from": "without_padding"},
        name + "_past": {**cut, "from": "past"},
        name + "_in": {"class": "reinterpret_data", "set_axes": {"T": window}, "from": name + "_cut"},
        **layers,
        name + "_sum": {
            "class": "eval", "eval": "source(0) + 0.1 * source(1) + 0.1 * source(2)",
            "from": [name + "_cut", name + "_past", name + "_seen"]},
        name + "_own": {"class": "slice", "axis": window, **own, "from": name + "_sum"},
        name + "_merged": {
            "class": "merge_dims", "axes": [chunks, "stag:slice"], "keep_order": True, "from": name + "_own"},
        name: {"class": "softmax", "n_out": 5, "from": name + "_merged", "is_output_layer": True},
    }


network["without_padding"] = {"class": "seq_len_mask", "axis": "T", "mask_value": 0.0, "from": "data"}
network.update(in_chunks("latency", {
    "latency_seen": {"class": "rec", "unit": "lstm", "n_out": 4, "direction": -1, "from": "latency_in"},
}, 2, 3, {"slice_end": 4}))
network.update(in_chunks("attended", {
    "attended_seen": {
        "class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": 4, "from": "attended_in"},
}, 6, 3, {"slice_start": 6}))
network.update({
    "chunks": {"class": "time_chunking", "chunk_size": 4, "chunk_step": 4, "from": "data"},
    "chunks_back": {"class": "rec", "unit": "lstm", "n_out": 4, "direction": -1, "from": "chunks"},
    "chunks_sum": {"class": "eval", "eval": "source(0) + 0.1 * source(1)", "from": ["chunks", "chunks_back"]},
    "chunks_all": {"class": "time_unchunking", "chunking_layer": "chunks", "from": "chunks_sum"},
    "chunked": {"class": "softmax", "n_out": 5, "from": "chunks_all", "is_output_layer": True},
})


def transducer(name, **options):
    # says each label in one frame, and knows the labels that it has said
    said = {"class": "compare", "kind": "not_equal", "value": 4}
    return {
        name: {"class": "rec", "from": "both", "include_eos": True, "unit": {
            "said": {**said, "from": "output", "initial_output": True},
            "masked": {"class": "masked_computation", "mask": "prev:said", "from": "prev:output", "unit": {
                "class": "subnetwork", "from": "data", "subnetwork": {
                    "last": {"class": "linear", "activation": None, "n_out": 5, "with_bias": False, "from": "data"},
                    "all": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "last"},
                    "output": {"class": "copy", "from": ["last", "all"]}}}},
            "history": {"class": "unmask", "mask": "prev:said", "from": "masked"},
            "prob": {"class": "softmax", "n_out": 5, "from": ["data:source", "history"], "is_output_layer": True},
            "output": {"class": "choice", "target": None, "from": "prob", "initial_output": 4, **options}}},
        name + "_said": {**said, "from": name},
        name + "_picked": {
            "class": "masked_computation", "mask": name + "_said", "from": name, "unit": {"class": "copy"}},
        name + "_labels": {
            "class": "reinterpret_data", "set_sparse_dim": 4, "from": name + "_picked", "is_output_layer": True},
        name + "_best": {"class": "decide", "from": name + "_labels", "is_output_layer": True},
    }


network.update(transducer("beam_1", beam_size=1))
network.update(transducer("beam_4", beam_size=4, length_normalization=False))
network.update(transducer("merged", beam_size=12, length_normalization=False, recombine="sum", recombine_blank=4))
""",
)

IN_CHUNKS = ("latency", "attended", "chunked")
TRANSDUCERS = ("beam_1", "beam_4", "merged")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with a config and a checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    rng, further = np.random.default_rng(1), {}
    for name in TRANSDUCERS:
        # of the band, and against the label that was said last
        prob = np.concatenate([4 * np.eye(4, 5), -60 * np.diag([1, 1, 1, 1, 0]), rng.normal(0, 1, (3, 5))])
        further.update({name + "/rec/prob/W": prob, name + "/rec/prob/b": np.array([0, 0, 0, 0, -4])})
        further[name + "/rec/masked/last/W"] = np.eye(5)
    write_model(folder, CONFIG, ["ctc", "logits", *IN_CHUNKS], [-12.0], further)
    return folder


@pytest.fixture
def run(
    trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Return a function that runs the command on the model, here, and returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str, command: str = "listen", stdin: Optional[bytes] = None) -> tuple[int, str, str]:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        code = main([command, str(trained / "out"), *args])
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


@pytest.mark.sampled
@pytest.mark.parametrize(
    "options",
    [[], ["--layer", "ctc"], ["--layer", "of_logits"], ["++decode_nbest", "3", "++decode_layer", "ctc"]],
    ids=["default", "posteriors", "logits", "beam"],
)
@pytest.mark.parametrize("text", ["abcd", "dada"])
def test_same_as_transcribe(run: Any, text: str, options: Sequence[str]) -> None:
    """Text, times, confidence and scores."""
    name = write("x.wav", text)
    options = [*(["--layer", "ctc"] if "++decode_nbest" in options else []), *options]
    _, expected, _ = run(name, "--json", *options, command="transcribe")
    code, out, err = run("--wav", name, "--json", *options)
    assert code == 0 and "real-time factor" in err and "net.001" in err
    found, whole = json.loads(out), json.loads(expected)
    assert (found["text"], found["duration"]) == (whole["text"], whole["duration"]) == (text, pytest.approx(1.3))
    assert found["score"] == pytest.approx(whole["score"], rel=1e-4)
    for one, other in zip(found["labels"], whole["labels"]):
        assert one == {**other, "confidence": pytest.approx(other["confidence"], abs=2e-3)}


@pytest.mark.parametrize("block", ["2", "4", "10", "34"])
def test_blocks(run: Any, block: str) -> None:
    assert run("--wav", write("x.wav", "cab"), "--block", block)[:2] == (0, "cab\n")


@pytest.mark.slow
@pytest.mark.parametrize("layer", IN_CHUNKS)
def test_chunks(run: Any, layer: str) -> None:
    """LSTMs from right to left and attention over chunks with frames before them, or with none."""
    options = ["--layer", layer, "++decode_blank", "4"]
    name = write("x.wav", "dabc")
    code, expected, _ = run(name, "--json", *options, command="transcribe")
    whole = json.loads(expected)
    assert code == 0 and "3 0 1 2" in whole["text"]  # frames of zeros are loud
    code, out, _ = run("--wav", name, "--json", "--block", "12", *options)
    found = json.loads(out)
    assert (code, found["text"]) == (0, whole["text"])
    assert found["score"] == pytest.approx(whole["score"], rel=1e-4)
    for one, other in zip(found["labels"], whole["labels"]):
        assert one == {**other, "confidence": pytest.approx(other["confidence"], abs=2e-3)}
    code, _, err = run("--wav", name, "--block", "6", *options)
    assert code == 2 and "Blocks have 6 frames" in err and "multiples" in err


def test_labels_of_frames_by_a_search(run: Any) -> None:
    _, expected, _ = run(write("x.wav", "cab"), "--layer", "frames", command="transcribe")
    code, out, _ = run("--wav", "x.wav", "--layer", "frames")
    assert code == 0 and out == expected and "ccc" in out
    code, _, err = run("--wav", "x.wav", "--layer", "frames", "--pause", "1")
    assert code == 2 and "each frame has a label" in err


def _transcribed(run: Any, name: str, *options: str) -> tuple[Any, Any]:
    """Return what listen and what transcribe tell of a file."""
    code, expected, _ = run(name, "--json", *options, command="transcribe")
    assert code == 0
    code, out, _ = run("--wav", name, "--json", *options)
    assert code == 0
    return json.loads(out), json.loads(expected)


@pytest.mark.slow
@pytest.mark.parametrize("layer, confidence", [("beam_1", "entropy"), ("beam_4", "pooled"), ("merged", "posterior")])
def test_transducer(run: Any, layer: str, confidence: str) -> None:
    """Text, times, confidence, scores and their parts."""
    parts = {"net": layer + "/prob"}
    options = ["--layer", layer + "_best", "++search_confidence", confidence, "++search_score_layers", repr(parts)]
    found, whole = _transcribed(run, write("x.wav", "dabacab"), *options)
    assert (found["text"], found["duration"]) == (whole["text"], whole["duration"])
    assert len(found["labels"]) == len(whole["labels"]) >= 7
    assert found["score"] == pytest.approx(whole["score"], rel=1e-4)
    assert found["parts"] == pytest.approx(whole["parts"], rel=1e-4)
    for one, other in zip(found["labels"], whole["labels"]):
        sure = other.pop("confidence", None)
        assert one.pop("confidence", None) == pytest.approx(sure, abs=2e-3) and one == other


@pytest.mark.slow
def test_transducer_by_blocks(run: Any) -> None:
    """Also of audio whose labels are not clear, so that other hypotheses become the best on the way."""
    rng = np.random.default_rng(2)
    clear = tones("dabcacbd")
    soundfile.write("x.wav", 0.6 * clear + 0.3 * rng.normal(0, 1, len(clear)), RATE)
    _, whole, _ = run("x.wav", "--json", "--layer", "merged_best", command="transcribe")
    expected = json.loads(whole)
    assert len(expected["text"]) > 4
    for block in ("1", "64"):
        _, out, _ = run("--wav", "x.wav", "--json", "--layer", "merged_best", "--block", block)
        assert json.loads(out)["text"] == expected["text"]
        assert json.loads(out)["score"] == pytest.approx(expected["score"], rel=1e-4)


@pytest.mark.slow
def test_partial_results_and_pauses_of_a_transducer(run: Any) -> None:
    """Partial results grow; after a pause, the search goes on from the best hypothesis."""
    quiet = np.zeros(RATE, "float32")
    soundfile.write("x.wav", np.concatenate([tones("ab"), quiet, tones("ca"), quiet]), RATE)
    options = ["--wav", "x.wav", "--json", "--partial", "--pause", "0.5", "--layer", "beam_4_best"]
    code, out, _ = run(*options)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line.get("partial", line.get("text")) for line in lines] == ["a", "ab", "ab", "c", "ca", "ca"]
    first, second = [line for line in lines if "text" in line]
    assert first["labels"][1]["start"] == pytest.approx(0.4, abs=0.05)
    assert second["labels"][0]["start"] == pytest.approx(1.8, abs=0.05)
    assert run("--wav", "x.wav", "--layer", "beam_4_best")[1] == "abca\n"


@pytest.mark.slow
def test_words_of_a_search(run: Any) -> None:
    """Words of a lexicon, with the score of the end of a sentence, by a search with a label or blank in each frame."""
    pathlib.Path("words.txt").write_text("A a\nAB a b\nC c\nD d\nDA d a\n")
    unigrams = "-0.9 </s>\n-0.8 A\n-0.5 AB\n-0.7 C\n-0.6 D\n-0.4 DA\n"
    pathlib.Path("words.arpa").write_text("\\data\\\nngram 1=6\n\\1-grams:\n%s\\end\\\n" % unigrams)
    files = {"lexicon": "words.txt", "lm": "words.arpa"}
    options = ["--layer", "frames"]
    options += [part for name, path in files.items() for part in ("++decode_" + name, os.path.abspath(path))]
    options += ["++decode_beam_size", "8", "++search_confidence", "posterior"]
    _, whole, _ = run(write("x.wav", "cdab"), "--json", *options, command="transcribe")
    expected = json.loads(whole)
    assert {"C", "AB"} <= set(expected["text"].split()) <= {"A", "AB", "C", "D", "DA"}
    for block in ("2", "10"):
        code, out, err = run("--wav", "x.wav", "--json", "--block", block, *options)
        assert code == 0, err
        assert json.loads(out)["text"] == expected["text"]
        assert json.loads(out)["score"] == pytest.approx(expected["score"], rel=1e-4)
        latency = re.search(r"at most (\d+) ms .*: (\d+) ms of a block, 20 ms of the frame after it, ", err)
        assert latency and int(latency[1]) >= int(latency[2]) + 20 == 10 * int(block) + 20


def test_partial_results(run: Any) -> None:
    """Each begins with the one before, and comes soon after what was said."""
    code, out, err = run("--wav", write("x.wav", "cadb"), "--json", "--partial")
    *partial, last = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [each["partial"] for each in partial] == ["c", "ca", "cad", "cadb"]
    for place, each in enumerate(partial):
        assert 0.1 + 0.3 * place < each["seconds"] < 0.1 + 0.3 * place + 0.3
    assert last["text"] == "cadb" and "Partial results: at most" in err


def test_ends_of_utterances(run: Any, trained: pathlib.Path) -> None:
    """Pauses divide the text; times count from the begin of the audio."""
    quiet = np.zeros(RATE, "float32")
    soundfile.write("x.wav", np.concatenate([tones("ab"), quiet, tones("c"), quiet, quiet]), RATE)
    code, out, _ = run("--wav", "x.wav", "--json", "--pause", "0.5")
    first, second = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and (first["text"], second["text"]) == ("ab", "c")
    assert second["labels"][0]["start"] == pytest.approx(1.8, abs=0.05)
    assert run("--wav", "x.wav")[1] == "abc\n"
    assert run("--wav", "x.wav", "--ctm", "--pause", "0.5")[1].count("x.wav 1 ") == 2


def test_no_label_at_all(run: Any) -> None:
    soundfile.write("x.wav", np.zeros(RATE, "float32"), RATE)
    assert run("--wav", "x.wav", "--pause", "0.3")[:2] == (0, "\n")


@pytest.mark.sampled
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("form", ["WAV", "WAVEX"])
def test_standard_input(run: Any, form: str, subtype: str) -> None:
    content = io.BytesIO()
    soundfile.write(content, tones("bad"), RATE, format=form, subtype=subtype)
    assert run("--wav", "-", stdin=content.getvalue())[:2] == (0, "bad\n")


def _wav(text: str = "bad") -> bytes:
    content = io.BytesIO()
    soundfile.write(content, tones(text), RATE, format="WAV", subtype="PCM_16")
    return content.getvalue()


@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0xFFFFFFFF])
def test_size_that_is_not_known(run: Any, size: int) -> None:
    """As programs write it into a pipe; a sample that is cut off is an error, after the text."""
    content = _wav()
    content = content[:40] + size.to_bytes(4, "little") + content[44:]
    assert run("--wav", "-", stdin=content)[:2] == (0, "bad\n")
    code, out, err = run("--wav", "-", stdin=content[:-1])
    assert (code, out) == (1, "bad\n") and "ends within a sample: 1 of its 2 bytes" in err


def test_cut_off(run: Any) -> None:
    code, out, err = run("--wav", "-", stdin=_wav("bad")[:-4000])
    assert (code, out) == (1, "bad\n") and "'-' is incomplete: 4000 bytes" in err


def test_interrupted(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text so far is written."""

    class Endless(io.BytesIO):
        def read1(self, size: Optional[int] = -1) -> bytes:
            found = super().read1(size)
            if not found:
                raise KeyboardInterrupt
            return found

    content = _wav()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=Endless(content[:40] + bytes(4) + content[44:])))
    code, out, err = run("--wav", "-")
    assert (code, out) == (130, "bad\n") and "Heard 1.0 s" in err


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "ends within its first"),
        (b"fLaC" + bytes(100), "'-' is no wav file"),
        (_wav()[:30], "ends within its first"),
        (_wav()[:44], "wav file '-' has no samples|incomplete"),
        (_wav()[:20] + b"\x07\x00" + _wav()[22:], "kind 7 with 16 bits"),
        (_wav()[:22] + b"\x00\x00" + _wav()[24:], "0 channels"),
        (_wav()[:12] + _wav()[36:], "the samples come before their format"),
        (_wav()[:16] + b"\xff\xff\xff\x7f" + _wav()[20:], "a chunk b'fmt '"),
    ],
    ids=["empty", "flac", "header", "no samples", "mulaw", "channels", "no format", "huge chunk"],
)
def test_bad_wav(run: Any, content: bytes, message: str) -> None:
    code, out, err = run("--wav", "-", stdin=content)
    assert (code, out) == (1, "") and re.search(message, err) and "Traceback" not in err


def test_other_audio(run: Any) -> None:
    """A rate or channels that the model does not take: what to do."""
    code, _, err = run("--wav", write("x.wav", "a", rate=2 * RATE))
    assert code == 1 and "16000 samples per second, but the model takes 8000" in err
    soundfile.write("y.wav", np.stack([tones("a"), tones("b")], axis=1), RATE)
    code, _, err = run("--wav", "y.wav")
    assert code == 1 and "2 channels" in err and "--channel" in err
    assert run("--wav", "y.wav", "--channel", "1")[:2] == (0, "b\n")
    code, _, err = run("--wav", "gone.wav")
    assert code == 1 and "'gone.wav' does not exist" in err


@pytest.mark.parametrize(
    "layer, message",
    [
        ("back_ctc", "'back' .* runs backwards"),
        ("conv_ctc", "'conv' .* depend on more than the frames before"),
        ("attention_best", "'attention': a search that ends by its layer 'end' needs all frames"),
        ("gone", "there is no layer 'gone'"),
    ],
)
def test_layers_that_look_ahead(run: Any, layer: str, message: str) -> None:
    code, out, err = run("--wav", write("x.wav", "a"), "--layer", layer, "++decode_blank", "4")
    assert (code, out) == (2, "") and re.search("listen: .*" + message, err) and "Traceback" not in err


def test_block_that_does_not_fit(run: Any) -> None:
    code, _, err = run("--wav", write("x.wav", "a"), "--block", "3")
    assert code == 2 and "'pooled'" in err and "Blocks have 3 frames" in err


def test_attention_to_all_frames(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it keeps has a limit; the text of what was heard before is written."""
    options = ["--layer", "all_ctc", "++decode_blank", "4"]
    code, out, _ = run("--wav", write("x.wav", "abcd" * 3), *options)
    assert code == 0 and out.strip()
    monkeypatch.setattr("returnn_tf.cli.listen.network._MOST_KEPT", 11_000)  # 4 keys, 4 values and a mask: 33 bytes
    code, out, err = run("--wav", "x.wav", *options)
    assert code == 1 and out.strip() and re.search("layer 'all' keeps all frames so far.* After 3[3-9]. frames", err)


def test_features_of_all_of_the_audio(run: Any, trained: pathlib.Path) -> None:
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    text = (trained / "my.config").read_text().replace('"peak_normalization": False', '"norm_mean": "per_seq"')
    pathlib.Path("other.config").write_text(text)
    code, _, err = run("--wav", write("x.wav", "a"), "--config", "other.config")
    assert code == 2 and "peak_normalization" in err and "norm_mean" in err


@pytest.mark.parametrize(
    "args, message",
    [
        (["--partial"], "--partial: only --json"),
        (["--format", "srt", "--pause", "1"], "--pause makes several"),
        (["--pause", "0"], "must be above 0"),
        (["--block", "0"], "must be at least 1"),
        (["--sample-rate", "16000"], "the config says 8000"),
    ],
)
def test_wrong_options(run: Any, args: Sequence[str], message: str) -> None:
    code, out, err = run("--wav", write("x.wav", "a"), *args)
    assert (code, out) == (2, "") and message in err
