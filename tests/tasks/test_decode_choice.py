"""Task ``decode`` for searches by `choice`, with attention and as a transducer, and the layers that it adds to them."""

from __future__ import annotations

import copy
import itertools
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.cli.main import main
from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.search.words_of_choice import searched_choice, with_words
from tests.run_tasks import run_task

NAMES = ["</s>", "o@@", "ne", "tw@@", "o"]
#: The best label of each frame, and the reference. The second one ends within a word.
SEQS = [([1, 2, 3, 4], [1, 2, 3, 4]), ([3, 2], [1, 2])]
LEXICON = "one\to@@ ne\ntwo\ttw@@ o\n"
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1.5\t<unk>\n-0.5\t</s>\n-0.3\tone\n-0.8\ttwo\n\n\\end\\\n"
CHOICE = {"class": "choice", "target": "classes", "beam_size": 4, "from": "prob", "length_normalization": False}
DECIDE = {"class": "decide", "loss": "edit_distance", "target": "classes", "only_on_search": True}


def attention() -> dict[str, Any]:
    """A decoder that sees the frame of its step, and ends by label 0."""
    unit = {
        "frame": {"class": "gather", "from": "base:padded", "position": ":i", "axis": "T"},
        "prob": {"class": "softmax", "n_out": 5, "from": "frame"},
        "output": {**CHOICE, "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
    }
    return {
        "padded": {"class": "pad", "axes": "T", "padding": (0, 6), "from": "data"},
        "loop": {"class": "rec", "from": [], "unit": unit, "max_seq_len": 6, "target": "classes"},
        "output": {**DECIDE, "from": "loop"},
    }


def transducer() -> dict[str, Any]:
    """A label or blank for each frame."""
    unit = {
        "prob": {"class": "softmax", "n_out": 6, "from": "data:source"},
        "output": {**CHOICE, "target": "frames", "initial_output": 5, "recombine": "sum", "recombine_blank": 5},
    }
    return {
        "loop": {"class": "rec", "from": "data", "unit": unit, "target": "frames", "include_eos": True},
        "is_label": {"class": "compare", "kind": "not_equal", "value": 5, "from": "loop"},
        "picked": {"class": "masked_computation", "mask": "is_label", "from": "loop", "unit": {"class": "copy"}},
        "labels": {"class": "reinterpret_data", "set_sparse_dim": 5, "from": "picked"},
        "output": {**DECIDE, "from": "labels"},
    }


ROWS = np.zeros((6, 6), "float32")
ROWS[:, 4] = 1.0  # "o" is second everywhere
ROWS[np.arange(6), np.arange(6)] = 4.0
MODELS = {"attention": (attention, 0), "transducer": (transducer, 5)}


def settings(model: str, **changes: Any) -> dict[str, Any]:
    network, last = MODELS[model]
    frames = [[*labels, last] for labels, _ in SEQS]
    data = [{"data": ROWS[path], "classes": np.array(labels, "int32")} for path, (_, labels) in zip(frames, SEQS)]
    vocab = {"class": "Vocabulary", "labels": NAMES, "unknown_label": None}
    extern = {
        "data": {"dim": 6},
        "classes": {"dim": 5, "sparse": True, "vocab": vocab},
        "frames": {"dim": 6, "sparse": True, "available_for_inference": False},
    }
    return {
        "task": "decode",
        "eval": {"class": "StaticDataset", "data": data, "output_dim": {"data": (6, 2), "classes": (5, 1)}},
        "extern_data": extern,
        "target": "classes",
        "network": network(),
        "model": "net/" + model,
        "behavior_version": 21,
        **changes,
    }


@pytest.fixture(autouse=True)
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models, a lexicon and a language model in the current folder."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net").mkdir()
    for model in MODELS:
        net = Network.from_config(Config(settings(model)), search=True)
        values = {name: np.zeros(value.shape, "float32") for name, value in net.get_param_values().items()}
        values["loop/rec/prob/W"][:] = np.eye(6)[:, : values["loop/rec/prob/W"].shape[1]]
        net.set_param_values(values)
        info = checkpoint.CheckpointInfo(epoch=1, step=1, random_seed=1)
        checkpoint.save("net/%s.001" % model, net.stored_params, {}, info)
    pathlib.Path("lexicon.txt").write_text(LEXICON, "utf8")
    pathlib.Path("words.arpa").write_text(ARPA, "utf8")


def run(model: str, **changes: Any) -> list[str]:
    output = {"search_output_file": "out", "search_output_file_format": "txt"}
    assert run_task(Config(settings(model, **{**output, **changes}))) == 0
    return pathlib.Path("out").read_text("utf8").splitlines()


WORDS = {"decode_lexicon": "lexicon.txt", "decode_word_score": 1.5}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "changes, texts",
    [
        ({}, ["o@@ ne tw@@ o", "tw@@ ne"]),
        (WORDS, ["one two", "two"]),
        ({**WORDS, "decode_lm": "words.arpa", "decode_lm_scale": 1.5}, ["one two", "one"]),
        ({**WORDS, "decode_hot_words": {"o@@ ne": 2.0}}, ["one two", "one"]),
        ({"decode_hot_words": {"tw@@ o": 4.0}}, ["o@@ ne tw@@ o", "tw@@ o"]),
        ({"decode_word_score": -9.0}, ["", ""]),
    ],
)
def test_words(model: str, changes: dict[str, Any], texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, **changes, log_verbosity=3) == texts
    printed = capsys.readouterr().out
    assert "output: label errors" in printed
    assert "decode: search of 'loop/output' with %s" % ("decode_" if changes else "nothing but the network") in printed


@pytest.mark.parametrize("beam", [5, 1])
def test_sequences_that_are_too_short_for_the_words(beam: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What ends within a word is no hypothesis; where all do, a warning says so."""
    pathlib.Path("lexicon.txt").write_text("two\ttw@@ o o ne o o ne\n", "utf8")
    frames = [{"data": ROWS[[3, 4, 5]], "classes": np.array([3, 4], "int32")} for _ in range(2)]
    data = {"class": "StaticDataset", "data": frames, "output_dim": {"data": (6, 2), "classes": (5, 1)}}
    changes = {"decode_beam_size": beam, "search_output_file_format": "jsonl", "search_confidence": "entropy"}
    lines = run("transducer", **WORDS, eval=data, **changes)
    records = [json.loads(line) for line in lines]
    assert [record["text"] for record in records] == ["", ""]
    assert all("alternatives" not in record for record in records)
    warning = "All hypotheses of 2 sequences, e.g. 'seq-0', have a score of -inf"
    assert (warning in capsys.readouterr().out) == (beam == 1)
    assert all(0 <= label["confidence"] <= 1 for record in records for label in record["labels"])


def test_of_a_sequence_that_ends_within_a_word_the_words_before_it_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the search of CTC; the beam has no other hypothesis."""
    pathlib.Path("lexicon.txt").write_text("one\to@@ ne\ntwo\ttw@@ o o ne\n", "utf8")
    frames = [{"data": ROWS[path], "classes": np.array([1, 2], "int32")} for path in ([1, 2, 3, 3], [1, 2, 5, 5])]
    data = {"class": "StaticDataset", "data": frames, "output_dim": {"data": (6, 2), "classes": (5, 1)}}
    assert run("transducer", **WORDS, eval=data, decode_beam_size=1) == ["one", "one"]
    assert "All hypotheses of 1 sequence, e.g. 'seq-0', have a score of -inf" in capsys.readouterr().out


def plan_of(model: str, **changes: Any) -> tuple[Any, Any]:
    """Return the settings of the search with words, and their plan."""
    config = Config(settings(model, **changes))
    plan = plan_from_config(config, search=True)
    found = searched_choice(plan, config.str("decode_layer", ""))
    assert found is not None
    return with_words(config, config.typed("network"), plan, found), plan


@pytest.mark.parametrize("model, special", [("attention", {"end_label": 0}), ("transducer", {"blank": 5})])
@pytest.mark.parametrize("input_type", ["prob", "log_prob", "logits"])
def test_the_layers_beside_the_choice(model: str, special: dict[str, int], input_type: str) -> None:
    network = settings(model)["network"]
    network["loop"]["unit"]["output"]["input_type"] = input_type
    before = copy.deepcopy(network)
    lm = {"decode_lm": "words.arpa", "decode_lm_scale": 0.2, "decode_unknown_score": -1.0}
    words = {"decode_lexicon": "lexicon.txt", "decode_hot_words": ["ne"], "decode_beam_size": 7, **lm}
    config, _ = plan_of(model, network=network, **words)
    unit = config.typed("network")["loop"]["unit"]
    assert network == before
    for name, cls in (("decode_words", "word_scores"), ("decode_hot_words", "hot_words")):
        added = dict(unit[name])
        assert added.pop("vocab").labels == NAMES
        assert added.items() >= {"class": cls, "from": "prev:output", **special}.items()
    scales = {"lexicon": "lexicon.txt", "lm": "words.arpa", "lm_scale": 0.2, "unknown_score": -1.0, "word_score": 0.0}
    assert unit["decode_words"].items() >= scales.items()
    activation = {"prob": "safe_log", "log_prob": None, "logits": "log_softmax"}[input_type]
    assert unit.get("decode_log_probs", {}).get("activation") == activation
    scores = ["decode_log_probs" if activation else "prob", "decode_words", "decode_hot_words"]
    assert unit["decode_scores"] == {"class": "combine", "kind": "add", "from": scores}
    choice = {"from": "decode_scores", "input_type": "log_prob", "beam_size": 7}
    assert unit["output"] == {**network["loop"]["unit"]["output"], **choice}
    plan_from_config(config, search=True)


def test_search_from_python() -> None:
    """Gives words of the lexicon, too; errors are of labels."""
    config, _ = plan_of("transducer", **WORDS)
    net = Network.from_config(config, search=True)
    net.set_param_values({"loop/rec/prob/W": np.eye(6, dtype="float32"), "loop/rec/prob/b": np.zeros(6, "float32")})
    found = returnn_tf.search(net, settings("transducer")["eval"])
    assert [(each.text, each.reference) for each in found] == [("one two", "one two"), ("two", "one")]
    assert [each.errors.total for each in found] == [0, 2]


@pytest.mark.parametrize("name", ["loop", "loop/output", "picked", "output", ""])
def test_which_search_is_meant(name: str) -> None:
    config = Config(settings("transducer"))
    found = searched_choice(plan_from_config(config, search=True), name)
    assert found is not None and found.node.path == "loop/output"


def test_a_network_with_ctc_is_decoded_by_it_unless_the_choice_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    network = settings("transducer")["network"]
    softmax = {"class": "activation", "activation": "softmax", "from": "data"}
    network["ctc"] = {**softmax, "loss": "ctc", "target": "classes"}
    run("transducer", network=network, **WORDS, log_verbosity=3)
    assert "decode: 2 sequences, 8 frames" in capsys.readouterr().out
    pathlib.Path("out").unlink()
    run("transducer", network=network, decode_layer="loop", **WORDS, log_verbosity=3)
    assert "decode: search of 'loop/output' with decode_words" in capsys.readouterr().out


def in_unit(**changes: Any) -> dict[str, Any]:
    network = transducer()
    unit = network["loop"]["unit"]
    for name, options in changes.items():
        unit[name] = {**unit.get(name, {}), **options}
    return network


def without_recombination() -> dict[str, Any]:
    network = transducer()
    for option in ("recombine", "recombine_blank"):
        del network["loop"]["unit"]["output"][option]
    return network


def with_two() -> dict[str, Any]:
    """A search whose label depends on another one that it has chosen."""
    more = {**CHOICE, "target": "frames", "initial_output": 5, "from": "more_prob"}
    prob = {"class": "softmax", "n_out": 6, "from": "data:source"}
    emb = {"class": "linear", "activation": None, "n_out": 2, "from": "more"}
    return in_unit(more=more, more_prob=prob, emb=emb, prob={"from": ["data:source", "emb"]})


PROB = {"class": "softmax", "n_out": 6, "from": "data:source"}
UNNAMED = {"data": {"dim": 6}, "classes": {"dim": 5, "sparse": True}, "frames": {"dim": 6, "sparse": True}}


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"decode_blank_scale": 0.5}, "decode_blank_scale.*is for scores of labels per frame, but 'loop/out"),
        ({"network": in_unit(output={"prob_scale": 0.5})}, "'loop/output' has prob_scale, so scores of words"),
        ({"network": in_unit(decode_words=PROB)}, "has a layer 'decode_words' beside it, so scores of words"),
        (
            {"network": in_unit(output={"custom_score_combine": max})},
            "'loop/output' has custom_score_combine, so scores",
        ),
        ({"network": without_recombination()}, "which label is the blank is not known. Set decode_blank"),
        ({"network": with_two()}, "Several layers choose labels in a search: 'loop/more', 'loop/output'. Name one in"),
        ({"extern_data": UNNAMED}, "The names of the labels of layer 'loop/output' are not known"),
        ({"decode_lexicon": "none.txt"}, "Layer 'loop/decode_words'.*The lexicon: .*none.txt"),
        ({"decode_hot_words": ["x y"]}, "Layer 'loop/decode_hot_words'.*can't spell"),
        ({"decode_separator": "-"}, "Layer 'loop/decode_words'.*separator: '-' is no label"),
    ],
)
def test_mistakes(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run("transducer", **{**WORDS, **changes})


def test_command() -> None:
    lines = ["%s = %r\n" % item for item in settings("transducer").items()]
    pathlib.Path("my.config").write_text("from numpy import array, float32, int32\n" + "".join(lines), "utf8")
    args = ["--lexicon", "lexicon.txt", "--word-score", "1.5", "--lm", "words.arpa", "--lm-scale", "1.5"]
    assert main(["decode", "my.config", *args, "--output", "out"]) == 0
    assert pathlib.Path("out").read_text("utf8").splitlines()[-1] == "one"


#: Labels that do not tell where a word ends, for words that sound alike, and a model that tells these apart.
PHONES = ["</s>", "OW", "N", "T", "UW"]
SOUND_ALIKE = "own\tOW N\none\tOW N\ntwo\tT UW\ntoo\tT UW\n"
BIGRAMS = """\\data\\
ngram 1=5
ngram 2=1
\\1-grams:
-0.5 </s>
-0.4 own
-0.5 one
-0.9 two
-0.4 too
\\2-grams:
-0.01 one two
\\end\\
"""


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("changes, texts", [({}, ["own too", "too"]), ({"decode_lm": "2.arpa"}, ["one two", "too"])])
def test_words_that_sound_alike(model: str, changes: dict[str, Any], texts: list[str]) -> None:
    """The words of the hypotheses are those of the lexicon, not the labels; the language model chooses among them."""
    pathlib.Path("lexicon.txt").write_text(SOUND_ALIKE, "utf8")
    pathlib.Path("2.arpa").write_text(BIGRAMS if changes else "", "utf8")
    extern = settings(model)["extern_data"]
    extern["classes"]["vocab"] = {"class": "Vocabulary", "labels": PHONES, "unknown_label": None}
    options = {**WORDS, **changes, "extern_data": extern, "search_output_file_format": "jsonl"}
    if changes:
        options["decode_lm_scale"] = 1.0
    records = [json.loads(line) for line in run(model, **options, search_frame_seconds=0.1)]
    if changes:
        assert [record["text"] for record in records] == texts
    for record in records:
        spelling = dict(line.split("\t") for line in SOUND_ALIKE.splitlines())
        labels = [label["text"] for label in record["labels"]]
        assert " ".join(spelling[word["text"]] for word in record["words"]) == " ".join(labels)
        assert all(0 < word["confidence"] <= 1 for word in record["words"])
        if model == "transducer":
            assert [word["start"] for word in record["words"]] == [
                pytest.approx(0.2 * i) for i in range(len(record["words"]))
            ]


def errors_of(printed: str) -> list[str]:
    return re.findall(r"output: (\w+ errors [\d.]+%)", printed)


@pytest.mark.parametrize("model", MODELS)
def test_word_errors(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the words of the lexicon, against the words of the references."""
    run(model, **WORDS)
    assert errors_of(capsys.readouterr().out) == ["label errors 33.33%", "word errors 33.33%"]


def of_phones(said: Sequence[str], **changes: Any) -> dict[str, Any]:
    """Return settings with labels of `SOUND_ALIKE`, and texts as further data."""
    pathlib.Path("lexicon.txt").write_text(SOUND_ALIKE, "utf8")
    pathlib.Path("2.arpa").write_text(BIGRAMS, "utf8")
    changed = settings("transducer")
    changed["extern_data"]["classes"]["vocab"] = {"class": "Vocabulary", "labels": PHONES, "unknown_label": None}
    for entry, text in zip(changed["eval"]["data"], said):
        entry["text"] = np.frombuffer(text.encode(), np.uint8)
    changed["eval"]["output_dim"]["text"] = (256, 1)
    changed["extern_data"]["text"] = {"dim": 256, "sparse": True, "available_for_inference": False}
    data = {name: changed[name] for name in ("eval", "extern_data")}
    return {**WORDS, **data, "decode_lm": "2.arpa", **changes}


@pytest.mark.parametrize(
    "said, rate", [(["one two", "too"], "0.00%"), (["own two", "two"], "66.67%"), (["one two xyz", "too"], "25.00%")]
)
def test_word_errors_by_words_of_other_data(said: list[str], rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Words that sound alike are those that the language model has chosen."""
    run("transducer", **of_phones(said, decode_reference="text", decode_lm_scale=1.0))
    assert errors_of(capsys.readouterr().out) == ["label errors 33.33%", "word errors " + rate]


def test_references_that_make_up_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    run("transducer", **of_phones(["", ""]))
    printed = capsys.readouterr().out
    assert errors_of(printed) == ["label errors 33.33%"]
    assert "the lexicon has no word that the references make up" in printed


@pytest.mark.parametrize("tune", [{"lm_scale": [0.0, 1.0]}, {"beam_size": [4, 2], "lm_scale": [0.0, 1.0]}])
def test_tuning_by_words(tune: dict[str, list[float]], capsys: pytest.CaptureFixture[str]) -> None:
    """Each point as by a search of its own; there is a graph for each beam, not for each point."""
    names, points = list(tune), list(itertools.product(*tune.values()))
    changes = of_phones(["one two", "too"], decode_reference="text")
    single = []
    for values in points:
        run("transducer", **changes, **{"decode_" + name: value for name, value in zip(names, values)})
        single.append(errors_of(capsys.readouterr().out)[-1].split()[-1])
        pathlib.Path("out").unlink()
    before = FeedFunction.graphs_made
    run_task(Config(settings("transducer", **changes, decode_tune=tune)))
    assert FeedFunction.graphs_made - before == len(tune.get("beam_size", [4]))
    table = re.findall(r"^ *(-?\d.*?%)", capsys.readouterr().out, re.MULTILINE)
    assert [line.split() for line in table] == [
        [*("%g" % value for value in values), rate] for values, rate in zip(points, single)
    ]
    assert len(set(single)) > 1


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"decode_reference": "txt"}, "decode_reference: the dataset to decode has no data key 'txt'; it has: "),
        ({"decode_reference": "data"}, "decode_reference: data key 'data' has values, not labels.*: classes.$"),
        ({"decode_reference": "classes", "search_do_eval": False}, "decode_reference: no errors are counted"),
    ],
)
def test_references_without_effect(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run("transducer", **WORDS, **changes)


def test_tuning(capsys: pytest.CaptureFixture[str]) -> None:
    run_task(Config(settings("transducer", **WORDS, decode_tune={"word_score": [-9.0, 1.5], "beam_size": [4]})))
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if re.match(r"\s*-?\d.*%", line)]
    assert [line.split()[:3] for line in table] == [["-9", "4", "100.00%"], ["1.5", "4", "33.33%"]]
    assert [line.endswith("<- best") for line in table] == [False, True]
    assert "word_score  beam_size  word errors  seconds" in printed


def test_tuning_counts_the_errors_of_its_search(capsys: pytest.CaptureFixture[str]) -> None:
    """Not those of another layer before it, as of CTC in a network with both."""
    other = {"class": "copy", "from": "data:classes", "loss": "edit_distance", "target": "classes"}
    changes = {"network": {"another": other, **transducer()}, "decode_tune": {"word_score": [1.5]}}
    run_task(Config(settings("transducer", **WORDS, **changes)))
    printed = capsys.readouterr().out
    assert re.search(r"^ *1.5 +33.33%", printed, re.MULTILINE), printed


@pytest.mark.parametrize(
    "tune, text",
    [
        ({"lm_scale": [1.0]}, "tune: lm_scale has no effect without decode_lm"),
        ({"prior_scale": [1.0]}, "tune: prior_scale has no effect on a search by 'choice'"),
        ({"word_scroe": [1.0]}, "tune: there is no scale 'word_scroe'. Did you mean 'word_score'"),
    ],
)
def test_mistakes_in_a_grid(tune: dict[str, list[float]], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run_task(Config(settings("transducer", **WORDS, decode_tune=tune)))


def test_tuning_without_errors() -> None:
    changes = {**WORDS, "decode_tune": {"word_score": [0.0]}, "search_do_eval": False}
    with pytest.raises(ConfigError, match="has no 'decide' layer.* of 'loop/output', or search_do_eval is False"):
        run_task(Config(settings("transducer", **changes)))


def test_nbest() -> None:
    lines = run("transducer", **WORDS, decode_nbest=2, search_output_file_format="tsv")
    rows = [line.split("\t") for line in lines]
    assert [row[0] for row in rows] == ["seq-0", "seq-0", "seq-1", "seq-1"]
    assert [row[2] for row in rows][::2] == ["one two", "two"]
    assert all(float(better[1]) >= float(worse[1]) for better, worse in zip(rows[::2], rows[1::2]))
    pathlib.Path("out").unlink()
    for nbest, alternatives in ((1, 0), (2, 1)):
        lines = run("transducer", **WORDS, decode_nbest=nbest, search_output_file_format="jsonl")
        assert [len(json.loads(line).get("alternatives", [])) for line in lines] == [alternatives] * 2
        pathlib.Path("out").unlink()
