"""Programs in C++ and C, without Python, run what was exported and compute what the network does."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

import returnn_tf
from returnn_tf.cli.main import main
from returnn_tf.config import Config
from tests.export.decoders import as_text, build, cut, outputs, run

pytestmark = [
    pytest.mark.slow,  # compiles the programs
    pytest.mark.skipif(
        not (shutil.which("make") and shutil.which("g++") and shutil.which("cc")), reason="needs make and C compilers"
    ),
]

BLSTM = {
    "fw": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"},
    "bw": {"class": "rec", "unit": "lstm", "n_out": 6, "direction": -1, "from": "data"},
    "output": {"class": "softmax", "n_out": 4, "from": ["fw", "bw"]},
}
LENGTHS = [9, 4, 7]


@pytest.fixture(scope="module")
def c_decoder(tmp_path_factory):
    return build("c", str(tmp_path_factory.mktemp("c")))


@pytest.fixture(scope="module")
def cpp_decoder(tmp_path_factory):
    return build("cpp", str(tmp_path_factory.mktemp("cpp")))


LM = {
    "words": {"class": "linear", "activation": None, "with_bias": False, "n_out": 5, "from": "data"},
    "lstm0": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "words"},
    "lstm1": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "lstm0"},
    "output": {"class": "linear", "activation": "log_softmax", "n_out": 11, "from": "lstm1"},
}


BEAM, END = 4, 0
ATTENTION = {
    "enc": {"class": "rec", "unit": "lstm", "n_out": 6, "from": "data"},
    "output": {
        "class": "rec", "from": [], "target": "classes", "max_seq_len": 15, "unit": {
            "output": {
                "class": "choice", "target": "classes", "beam_size": BEAM, "from": "prob", "initial_output": END,
            },
            "end": {"class": "compare", "from": "output", "value": END},
            "emb": {"class": "linear", "activation": None, "n_out": 5, "from": "output", "initial_output": 0},
            "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 6, "from": ["prev:emb", "prev:att"]},
            "att": {"class": "dot_attention", "from": "s", "base": "base:enc", "base_ctx": "base:enc"},
            "prob": {"class": "softmax", "n_out": 7, "from": ["s", "att"], "target": "classes", "loss": "ce"},
        },
    },
}  # fmt: skip


def make_network(layers, extern_data, *, seed=3, scale=0.4, **options):
    config = Config({"extern_data": extern_data, "network": layers, "behavior_version": 21})
    net = returnn_tf.Network.from_config(config, **options)
    random = np.random.RandomState(seed)
    net.set_param_values({name: random.normal(0, scale, var.shape) for name, var in net.stored_params.items()})
    return net


def expected(net, feed, lengths):
    out = net.run({"data": feed, "data/size0": np.array(lengths, "int32")})
    return cut(out.layers["output"].value, lengths)


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for tag, value in wanted.items():
        np.testing.assert_allclose(found[tag], value, rtol=1e-5, atol=1e-6, err_msg=tag)


def side_file(folder):
    with open(os.path.join(folder, "model.json"), encoding="utf8") as file:
        return json.load(file)


def libraries(folder, facts):
    return [word for library in facts["native"]["libraries"] for word in ("--library", os.path.join(folder, library))]


def inputs_of(facts):
    """Return the options with the tensors of the key "data"."""
    inputs = facts["inputs"]
    return ["--input", inputs["data"]["tensor"], "--sizes", inputs["data_size0"]["tensor"]]


def names_for(facts):
    """Return the options with the tensors of the key "data" and the layer "output"."""
    return [*inputs_of(facts), "--output", facts["outputs"]["output"]["tensor"]]


def meta_graph(folder, facts):
    return [
        "--graph",
        os.path.join(folder, facts["meta_graph"]),
        "--checkpoint",
        os.path.join(folder, facts["checkpoint"]),
    ]


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
def test_c_forwards_ragged_batches(c_decoder, tmp_path, portable):
    net = make_network(BLSTM, {"data": {"dim": 5}})
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, portable=portable)
    facts = side_file(folder)
    assert bool(facts["native"]["libraries"]) is not portable
    batch = np.random.RandomState(1).normal(0, 1, (3, max(LENGTHS), 5)).astype("float32")
    program = [c_decoder, "forward", folder, "--batch", "3", *names_for(facts), *libraries(folder, facts)]
    assert_same(outputs(program, cut(batch, LENGTHS)), expected(net, batch, LENGTHS))


def test_c_carries_the_states_of_a_language_model(c_decoder, tmp_path):
    """Blocks of two words, with the states handed in and out, give what whole sentences do."""
    net = make_network(LM, {"data": {"dim": 11, "sparse": True}})
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, state=True, portable=True)
    facts = side_file(folder)
    assert len(facts["states"]) == 4
    batch = np.random.RandomState(1).randint(0, 11, (3, max(LENGTHS)))
    program = [c_decoder, "forward", folder, "--batch", "3", "--block", "2", *names_for(facts)]
    for name, state in facts["states"].items():
        program += ["--state", facts["inputs"][name]["tensor"], facts["outputs"][state["next"]]["tensor"]]
    assert_same(outputs(program, cut(batch, LENGTHS)), expected(net, batch, LENGTHS))


@pytest.mark.parametrize("portable", [False, True], ids=["native", "portable"])
def test_cpp_forwards_ragged_batches(cpp_decoder, tmp_path, portable):
    """In the order in which RASR loads a graph: libraries, graph, all initialisers, checkpoint."""
    net = make_network(BLSTM, {"data": {"dim": 5}})
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, "meta", portable=portable)
    facts = side_file(folder)
    batch = np.random.RandomState(1).normal(0, 1, (3, max(LENGTHS), 5)).astype("float32")
    program = [cpp_decoder, "forward", *meta_graph(folder, facts), "--batch", "3", *names_for(facts)]
    found = outputs([*program, *libraries(folder, facts)], cut(batch, LENGTHS))
    assert_same(found, expected(net, batch, LENGTHS))


def test_cpp_keeps_the_states_of_a_language_model(cpp_decoder, tmp_path):
    """In variables of the graph, which ``update_ops`` set and the program resets for each batch of sentences."""
    layers = {
        name: {**layer, "initial_state": "keep_over_epoch_no_init"} if layer["class"] == "rec" else layer
        for name, layer in LM.items()
    }
    extern_data = {"data": {"dim": 11, "sparse": True}}
    folder = str(tmp_path / "model")
    returnn_tf.export(make_network(layers, extern_data), folder, "meta", portable=True)
    facts = side_file(folder)
    batch = np.random.RandomState(1).randint(0, 11, (3, max(LENGTHS)))
    program = [cpp_decoder, "lm", *meta_graph(folder, facts), "--batch", "2", "--block", "2", *names_for(facts)]
    assert_same(outputs(program, cut(batch, LENGTHS)), expected(make_network(LM, extern_data), batch, LENGTHS))


def hypotheses(lines):
    return {tag: (float(score), [int(label) for label in labels]) for tag, score, *labels in lines}


#: max_seq_len of the network -> numbers of labels that are found
@pytest.mark.parametrize(
    ("limit", "counts"),
    [
        pytest.param(15, [3, 2, 4], marks=pytest.mark.long),
        (3, [3, 2, 3]),
        pytest.param(2, [2, 2, 2], marks=pytest.mark.long),
        ("max_len_from('base:enc')", [5, 2, 4]),
    ],
)
def test_both_search_label_by_label(c_decoder, cpp_decoder, tmp_path, limit, counts):
    """The best hypothesis and its score are those of the search in the network, also where its limit cuts them off.

    The limit may follow from the encoder, not from the number of frames that are fed.
    """
    extern_data = {"data": {"dim": 5}, "classes": {"dim": 7, "sparse": True, "available_for_inference": False}}
    half = {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "use_time_mask": True, "from": "lstm"}
    layers = {**ATTENTION, "output": {**ATTENTION["output"], "max_seq_len": limit}}
    if isinstance(limit, str):
        layers.update(lstm=layers["enc"], enc=half)
    net = make_network(layers, extern_data, seed=7, scale=1.0, search=True)
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, "steps")
    facts = side_file(folder)
    batch = np.random.RandomState(1).normal(0, 1, (3, max(LENGTHS), 5)).astype("float32")
    wanted = best_hypotheses(net, batch)
    assert [len(labels) for _, labels in wanted.values()] == counts
    options = [*inputs_of(facts), "--beam-size", str(BEAM), "--start-label", str(END), "--end-label", str(END)]
    options += libraries(folder, facts)
    programs = {"c": [c_decoder, "search", *meta_graph(folder, facts)[1::2]]}
    programs["cpp"] = [cpp_decoder, "search", *meta_graph(folder, facts)]
    for program in programs.values():
        assert_same_hypotheses(run([*program, *options], cut(batch, LENGTHS)), wanted)


def best_hypotheses(net, batch):
    """Return score and labels of each sequence, one by one, as a limit is that of the longest in a batch."""
    wanted = {}
    for tag, frames in cut(batch, LENGTHS).items():
        out = net.run({"data": frames[None], "data/size0": np.array([len(frames)], "int32")}).layers["output"]
        best = out.beam_scores[0].argmax()
        wanted[tag] = (out.beam_scores[0, best], out.value[best, : out.sizes[1][best]].tolist())
    return wanted


def assert_same_hypotheses(lines, wanted):
    found = hypotheses(lines)
    assert {tag: line[1] for tag, line in found.items()} == {tag: line[1] for tag, line in wanted.items()}
    for tag, (score, _) in wanted.items():
        assert found[tag][0] == pytest.approx(score, abs=2e-5)


ARPA = """\\data\\
ngram 1=7
ngram 2=3
\\1-grams:
-1 <unk>
-9 <s> -0.1
-1 </s>
-0.9 one -0.2
-1.1 three
-0.7 for
-1.3 four
\\2-grams:
-0.1 one four
-0.2 <s> for
-0.4 three one
\\end\\
"""


def test_both_search_with_words(c_decoder, cpp_decoder, tmp_path, capsys):
    """The lexicon is in the graph, the language model beside the library: the files of the network are not needed."""
    files = {"lexicon": tmp_path / "words.txt", "lm": tmp_path / "words.arpa.gz"}
    files["lexicon"].write_text("one 1 2\nthree 3\nfour 4 1\nfor 4 1\nfive 5 6 6\n")
    files["lm"].write_bytes(gzip.compress(ARPA.encode()))
    unit = dict(ATTENTION["output"]["unit"])
    vocab = {"labels": list("0123456"), "unknown_label": None}
    options = {name: str(path) for name, path in files.items()}
    unit["words"] = {
        "class": "word_scores", "from": "prev:output", "end_label": END, "vocab": vocab, "word_score": 2.0, **options
    }  # fmt: skip
    unit["scores"] = {"class": "eval", "from": ["prob", "words"], "eval": "safe_log(source(0)) + source(1)"}
    unit["output"] = {**unit["output"], "from": "scores", "input_type": "log_prob"}
    layers = {**ATTENTION, "output": {**ATTENTION["output"], "unit": unit}}
    extern_data = {"data": {"dim": 5}, "classes": {"dim": 7, "sparse": True, "available_for_inference": False}}
    net = make_network(layers, extern_data, seed=7, scale=1.0, search=True)
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, "steps")
    batch = np.random.RandomState(1).normal(0, 1, (3, max(LENGTHS), 5)).astype("float32")
    wanted = best_hypotheses(net, batch)
    assert any(len(labels) > 3 for _, labels in wanted.values())
    facts = side_file(folder)
    (file,) = facts["native"]["files"]
    options = [*inputs_of(facts), "--beam-size", str(BEAM), "--start-label", str(END), "--end-label", str(END)]
    options += libraries(folder, facts)
    compiled = tmp_path / "compiled"
    compiled.mkdir()
    (tmp_path / "my.config").write_text(
        "extern_data = %r\nnetwork = %r\nbehavior_version = 21\n" % (extern_data, layers)
    )
    arguments = ["--rec_step_by_step", "output", "--output_file", str(compiled / "graph.meta")]
    arguments += ["--rec_step_by_step_output_file", str(compiled / "steps.json")]
    assert main(["tool", "compile-tf-graph", str(tmp_path / "my.config"), *arguments]) == 0
    copies = capsys.readouterr().out.splitlines()[-1].rpartition(" ")[2].split(":")
    assert sorted(os.listdir(compiled / "native")) == sorted(map(os.path.basename, [*copies, file]))
    for path in files.values():
        path.unlink()
    programs = (
        [c_decoder, "search", *meta_graph(folder, facts)[1::2]],
        [cpp_decoder, "search", *meta_graph(folder, facts)],
    )
    for program in programs:
        assert_same_hypotheses(run([*program, *options], cut(batch, LENGTHS)), wanted)
    graph = [*meta_graph(folder, facts)]
    graph[1] = str(compiled / "graph.meta")
    own = [*inputs_of(facts), "--beam-size", str(BEAM), "--start-label", str(END), "--end-label", str(END)]
    program = [cpp_decoder, "search", *graph, *own, *(word for path in copies for word in ("--library", path))]
    assert_same_hypotheses(run(program, cut(batch, LENGTHS)), wanted)
    os.remove(os.path.join(folder, file))
    feed = as_text(cut(batch, LENGTHS))
    done = subprocess.run([*programs[1], *options], input=feed, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the n-gram model %s can't be read" % os.path.join(folder, file) in done.stdout + done.stderr


PHRASES = {
    "frames": {"class": "linear", "activation": None, "n_out": 4, "from": "data"},
    "speaker": {"class": "reduce", "mode": "max", "axis": "T", "from": "data:speaker"},
    "vector": {"class": "linear", "activation": None, "n_out": 4, "from": "speaker"},
    "output": {"class": "activation", "activation": "softmax", "from": "sum"},
    "sum": {"class": "combine", "kind": "add", "from": ["frames", "vector"]},
}
BLANK = 3
LEXICONS = (
    {"aba": [0, 1, 0], "aab": [0, 0, 1], "c": [2], "cccc": [2, 2, 2, 2]},  # the last one needs 7 frames
    {"b-a": [1, 0], "ca": [2, 0], "cc": [2, 2]},
)
RATE = 8000


def write_wav(path, samples, *, rate=RATE, channels=1, width=2, chunk=b""):
    """Write 16-bit samples; ``chunk`` is another one before them."""
    values = np.asarray(samples, "<i2").tobytes()
    form = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * channels * width, channels * width, 8 * width
    )
    content = b"WAVE" + form + chunk + struct.pack("<4sI", b"data", len(values)) + values
    path.write_bytes(struct.pack("<4sI", b"RIFF", len(content)) + content)
    return str(path)


@pytest.fixture(scope="module")
def phrases(c_decoder, tmp_path_factory):
    """The network, and the command that finds phrases of two lexicons, one for each speaker."""
    extern_data = {"data": {"dim": 1}, "speaker": {"dim": 2, "sparse": True}}
    net = make_network(PHRASES, extern_data, scale=2.0)
    path = tmp_path_factory.mktemp("phrases")
    folder = str(path / "model")
    returnn_tf.export(net, folder, portable=True)
    facts = side_file(folder)
    (path / "labels").write_text("A\nB\nC\n")
    command = [
        c_decoder,
        "phrases",
        folder,
        *names_for(facts),
        "--vocabulary",
        str(path / "labels"),
        "--rate",
        str(RATE),
    ]
    command += ["--condition", *(facts["inputs"][name]["tensor"] for name in ("speaker", "speaker_size0"))]
    for number, lexicon in enumerate(LEXICONS):
        lines = ["%s\t%s\n" % (name, " ".join("ABC"[label] for label in labels)) for name, labels in lexicon.items()]
        (path / ("%d.lexicon" % number)).write_text("".join(lines))
        command += ["--lexicon", str(number), "speaker%d" % number, str(path / ("%d.lexicon" % number))]
    return net, command


def sum_of_alignments(posteriors, labels):
    """Return the probability of labels, by enumeration of all sequences that give them."""
    total = 0.0
    for path in itertools.product(range(BLANK + 1), repeat=len(posteriors)):
        found = [label for label, _ in itertools.groupby(path) if label != BLANK]
        if found == labels:
            total += float(np.prod([frame[label] for frame, label in zip(posteriors, path)]))
    return total


@pytest.mark.parametrize("speakers", [(0,), (1,), (0, 1)])
def test_c_finds_phrases(phrases, tmp_path, speakers):
    """The best phrase of all lexicons, each with its own input, by the sum over all alignments.

    Where all phrases have more labels than there are frames, none.
    """
    net, command = phrases
    for speaker in {0, 1} - set(speakers):
        at = command.index("speaker%d" % speaker) - 2
        command = command[:at] + command[at + 4 :]
    random = np.random.RandomState(5)
    files, wanted = [], []
    for number, frames in enumerate((1, 2, 3, 6, 6, 5)):
        samples = random.randint(-32768, 32768, frames)
        files.append(
            write_wav(tmp_path / ("%d.wav" % number), samples, chunk=b"LIST\x03\0\0\0abc\0" if number == 1 else b"")
        )
        scores = {}
        for speaker in speakers:
            feed = {"data": (samples / 32768).astype("float32")[None, :, None], "speaker": np.array([[speaker]])}
            lengths = {"data/size0": np.array([frames], "int32"), "speaker/size0": np.array([1], "int32")}
            posteriors = net.run({**feed, **lengths}).layers["output"].value[0]
            for name, labels in LEXICONS[speaker].items():
                scores["speaker%d" % speaker, name] = sum_of_alignments(posteriors, labels)
        best = max(scores, key=lambda name: scores[name])
        too_short = scores[best] == 0
        wanted.append((files[-1], "", "", -np.inf) if too_short else (files[-1], *best, np.log(scores[best])))
    done = subprocess.run([*command, "--", *files], capture_output=True, text=True, check=True)
    found = [line.split("\t") for line in done.stdout.splitlines()]
    assert [tuple(line[:3]) for line in found] == [line[:3] for line in wanted]
    np.testing.assert_allclose([float(line[3]) for line in found], [line[3] for line in wanted], atol=2e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rate": 16000}, "16000 Hz, but the model takes 8000"),
        ({"channels": 2}, "not 16-bit PCM of one channel"),
        ({"width": 1}, "not 16-bit PCM of one channel"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0\0\0\0\0", "samples before their format"),
        (b"RIFF\0\0\0\0WAVE", "the file ends too early"),
        (b"OggS\0\0\0\0\0\0\0\0\0\0\0\0", "not a WAV file"),
        (None, "cannot be opened"),
    ],
)
def test_c_refuses_audio(phrases, tmp_path, content, message):
    path = tmp_path / "x.wav"
    if isinstance(content, dict):
        write_wav(path, [1, 2, 3, 4], **content)
    elif content is not None:
        path.write_bytes(content)
    done = subprocess.run([*phrases[1], "--", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "decoder_c: %s: %s\n" % (path, message)


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [
        ("x\tA D\n", "line 1: the model has no label D"),
        ("a A\n\nb\n", "line 3: b has no labels"),
        ("\n", "no phrase in it"),
    ],
)
def test_c_refuses_lexicons(phrases, tmp_path, lexicon, message):
    (tmp_path / "lexicon").write_text(lexicon)
    command = [*phrases[1], "--lexicon", "0", "x", str(tmp_path / "lexicon"), "--", "x.wav"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and message in done.stderr


def test_c_finds_phrases_of_a_model_without_a_condition(c_decoder, tmp_path):
    """Of two lexicons, with the ends of lines that Windows writes; the value of a condition is refused."""
    net = make_network({"output": {**PHRASES["frames"], "activation": "softmax"}}, {"data": {"dim": 1}}, scale=2.0)
    folder = str(tmp_path / "model")
    returnn_tf.export(net, folder, portable=True)
    (tmp_path / "labels").write_bytes(b"A\r\nB\r\nC\r\n")
    command = [c_decoder, "phrases", folder, *names_for(side_file(folder)), "--rate", str(RATE)]
    command += ["--vocabulary", str(tmp_path / "labels")]
    for number, words in enumerate((b"aba\tA B A\r\n\r\n", b"c\tC\r\nca\tC A\r\n")):
        (tmp_path / str(number)).write_bytes(words)
        command += ["--lexicon", "-", "list%d" % number, str(tmp_path / str(number))]
    samples = np.random.RandomState(3).randint(-32768, 32768, 5)
    posteriors = net.run({"data": samples[None, :, None] / 32768, "data/size0": np.array([5], "int32")})
    labels = {("list0", "aba"): [0, 1, 0], ("list1", "c"): [2], ("list1", "ca"): [2, 0]}
    scores = {name: sum_of_alignments(posteriors.layers["output"].value[0], own) for name, own in labels.items()}
    wav = write_wav(tmp_path / "x.wav", samples)
    done = subprocess.run([*command, "--", wav], capture_output=True, text=True, check=True)
    _, *found, score = done.stdout.rstrip("\n").split("\t")
    assert tuple(found) == max(scores, key=lambda name: scores[name])
    np.testing.assert_allclose(float(score), np.log(max(scores.values())), atol=2e-4)
    condition = ["--condition", "speaker:0", "speaker_size0:0"]
    for changed, message in (
        (["0" if word == "-" else word for word in command], "without --condition, VALUE has to be -"),
        ([*command, *condition], "VALUE has to be a number, for the input of --condition"),
        (["99999999999" if word == "-" else word for word in [*command, *condition]], "VALUE has to be a number"),
    ):
        done = subprocess.run([*changed, "--", wav], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and message in done.stderr
