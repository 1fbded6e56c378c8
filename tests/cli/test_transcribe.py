"""returnn-tf transcribe: text of audio files by a network that hears tones, and what it says about bad ones."""

from __future__ import annotations

import errno
import io
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import pytest
import soundfile

import returnn_tf
from returnn_tf.cli.main import main
from returnn_tf.cli.transcribe import job
from returnn_tf.cli.transcribe.audio import AudioPart
from returnn_tf.cli.transcribe.job import joined
from returnn_tf.cli.transcribe.recogniser import BatchSize, Recogniser
from returnn_tf.engine.data.batch_table import BatchTable, path_of
from returnn_tf.engine.transcripts.transcript import Hypothesis, Piece
from tests.cli.tones import RATE, config_of_tones, tones, write, write_model

CONFIG = config_of_tones(
    '"random_permute": True',
    """
batch_size = {"data": 300, "classes": 100}
max_seqs = 3
network = {
    "pooled": {
        "class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "use_time_mask": True, "from": "data"},
    "ctc": {"class": "softmax", "from": "pooled", "loss": "ctc", "target": "classes"},
    "output": {"class": "ctc_greedy", "from": "ctc", "target": "classes"},
    "scores": {"class": "linear", "activation": None, "n_out": 3, "from": "data", "is_output_layer": True},
    "beam": {"class": "rec", "from": "ctc", "unit": {"output": {
        "class": "choice", "target": None, "beam_size": 3, "from": "data:source", "initial_output": 0}}},
    "frames": {"class": "decide", "from": "beam", "is_output_layer": True},
}
""",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with a config and two checkpoints; the second one hears nothing."""
    folder = tmp_path_factory.mktemp("trained")
    write_model(folder, CONFIG, ["ctc"], [0.0, 100.0])
    return folder


@pytest.fixture
def run(
    trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Return a function that runs the command on the model, here, and returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str, model: Optional[str] = None, epoch: Optional[str] = "1") -> tuple[int, str, str]:
        options = [] if epoch is None else ["--epoch", epoch]
        code = main(["transcribe", str(trained / "out") if model is None else model, *args, *options])
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


def test_texts_in_the_order_of_the_files(run: Any) -> None:
    """Files of any length and format; more of them than a batch may have."""
    said = ["abcd", "d", "cab", "aa", "bad", "dada", "c"]
    names = [
        write("%d.%s" % (place, suffix), text)
        for place, (text, suffix) in enumerate(zip(said, ["wav", "flac", "ogg", "wav", "flac", "wav", "aiff"]))
    ]
    code, out, err = run(*names)
    assert code == 0 and out == "".join("%s\t%s\n" % each for each in zip(names, said))
    assert "Transcribed 7 files" in err and "real-time factor" in err and "net.001" in err


@pytest.mark.parametrize(
    "settings, frames, by_length",
    [
        ({"batch_size": "auto"}, 300, {10: 30, 50: 4}),
        ({"batch_size": {"data": 90, "classes": "auto"}}, 90, {10: 30, 50: 4}),
        ({"batch_size": {"classes": 90}, "max_seqs_by_length": {20: 2}}, 40, {20: 2}),
        ({"batch_size": 70}, 70, None),
        ({}, 0, None),
    ],
    ids=str,
)
def test_batches_of_the_training(settings: Any, frames: int, by_length: Any, tmp_path: pathlib.Path) -> None:
    """Numbers that a training has found hold here, too."""
    model = str(tmp_path / "net")
    BatchTable({10: 30, 50: 4}, "CPU:0", 1, {}).write(path_of(model))
    size = BatchSize.of(returnn_tf.Config({"model": model, **settings}), "data")
    assert (size.frames, size.seqs, size.seqs_by_length) == (frames, 0, by_length)
    assert size.options().get("max_seqs_by_length") == by_length


def test_of_one_file_only_the_text(run: Any) -> None:
    assert run(write("a b.wav", "ab"))[:2] == (0, "ab\n")


def test_json_has_times_and_confidence(run: Any) -> None:
    _, out, _ = run(write("x.wav", "ca"), "--json")
    found = json.loads(out)
    assert found["text"] == "ca" and found["tag"] == "x.wav" and found["duration"] == pytest.approx(0.7, abs=1e-3)
    for label, start in zip(found["labels"], (0.1, 0.4)):
        assert label["start"] == pytest.approx(start, abs=0.03) and start + 0.17 < label["end"] < start + 0.33
        assert 0 < label["confidence"] <= 1


@pytest.mark.parametrize("flag, beginning", [("--ctm", "x.wav 1 0."), ("--srt", "1\n00:00:00,")])
def test_formats(run: Any, flag: str, beginning: str) -> None:
    code, out, _ = run(write("x.wav", "ab"), flag)
    assert code == 0 and out.startswith(beginning)


def test_names_that_a_format_can_not_express(run: Any) -> None:
    code, out, err = run(write("a b.wav", "a"), write("c.wav", "c"), "--ctm")
    assert code == 1 and out.startswith("c.wav 1 ") and "error: Sequence 'a b.wav': the tag 'a b.wav' can't" in err


def test_only_results_on_the_standard_output(run: Any, trained: pathlib.Path) -> None:
    """Warnings of the config and lines of the log, if they are asked for, are elsewhere."""
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    text = "%s\nlog_verbosity = 4\nlearning_rate_control = 'constant'\nlearning_rate_decay = 0.3\n"
    pathlib.Path("other.config").write_text(text % (trained / "my.config").read_text())
    name = write("x.wav", "a")
    code, out, err = run(name, "--config", "other.config")
    assert (code, out) == (0, "a\n") and "Loaded" not in err
    code, out, err = run(name, "--config", "other.config", "--epoch", "1", "++log_verbosity", "3", epoch=None)
    assert (code, out) == (0, "a\n") and "Loaded" in err


def test_files_in_a_folder(run: Any) -> None:
    code, out, _ = run(write("x.wav", "ab"), write("y.wav", "c"), "--srt", "--output", "texts")
    assert (code, out) == (0, "") and sorted(os.listdir("texts")) == ["x.srt", "y.srt"]
    assert "\nc\n" in pathlib.Path("texts/y.srt").read_text()


def test_what_is_written_before_an_interrupt_stays(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recognise = Recogniser.recognise

    def interrupted(self: Recogniser, features: Any, tags: Sequence[str]) -> Any:
        if "c.wav" in tags:
            raise KeyboardInterrupt
        return recognise(self, features, tags)

    monkeypatch.setattr(job, "_BATCHES_AHEAD", 1)
    monkeypatch.setattr(Recogniser, "recognise", interrupted)
    names = [write(name + ".wav", name) for name in ("a", "b", "c", "d")]
    code, out, err = run(*names, "--epoch", "1", "++max_seqs", "1", epoch=None)
    assert (code, out) == (130, "a.wav\ta\nb.wav\tb\n") and "interrupted" in err


def test_full_disk(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def write_text(path: str, text: str) -> None:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)

    monkeypatch.setattr("returnn_tf.engine.transcripts.formats.base.write_text", write_text)
    code, _, err = run(write("a.wav", "a"), write("b.wav", "b"), "--output", "texts", "--srt")
    assert code == 1 and written == [os.path.abspath("texts/a.srt")]
    assert "texts/b.srt' can't be written: No space left on device" in err


def test_lists_and_standard_input(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir("sub")
    write("sub/x.wav", "ab")
    write("y.wav", "c")
    pathlib.Path("sub/files.txt").write_text("x.wav\n\ny.wav\n")
    assert run("sub/files.txt")[1] == "sub/x.wav\tab\ny.wav\tc\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("sub/x.wav\ny.wav\n"))
    assert run("y.wav", "-")[1] == "y.wav\tc\nsub/x.wav\tab\ny.wav\tc\n"


def test_a_long_file_is_cut_at_pauses(run: Any) -> None:
    """The parts are recognised by themselves; times count from the begin of the file."""
    text = "abcd" * 6
    soundfile.write("long.wav", tones(text), RATE)
    whole, parts = (json.loads(run("long.wav", "--json", *more)[1]) for more in ([], ["--segment", "1.5"]))
    assert whole["text"] == parts["text"].replace(" ", "") == text
    for one, other in zip(whole["labels"], parts["labels"]):
        assert one["start"] == pytest.approx(other["start"], abs=0.05)
    assert parts["duration"] == pytest.approx(7.3) and "score" in parts


@pytest.mark.parametrize("layer", [None, "ctc", "output"])
def test_layer(run: Any, layer: Optional[str]) -> None:
    """The labels of the best path, or the posteriors from which it follows."""
    assert run(write("x.wav", "dab"), *([] if layer is None else ["--layer", layer]))[:2] == (0, "dab\n")


def test_beam(run: Any) -> None:
    """A search with hypotheses: the n best ones, by falling scores."""
    code, out, _ = run(write("x.wav", "a"), "--layer", "frames", "--json", "--nbest", "2")
    found = json.loads(out)
    (other,) = found["alternatives"]
    assert code == 0 and other["score"] <= found["score"] <= 0
    assert set(found["text"]) <= {"a", "4"}  # the label of each frame, with the blank


def test_scores_by_label_of_a_file_that_is_not_cut() -> None:
    """Lattices have the scores of arcs; those of parts of a file have none in common."""
    part = AudioPart(0.0, 1.0, np.zeros((10, 4)))
    own = Hypothesis((Piece("a"), Piece("b")), (Piece("ab"),), -3.0, {"lm": -3.0}, {"lm": [-1.0, -2.0]}, [(0, 2)])
    assert joined([part], [own]) == own
    both = joined([part, part], [own, own])
    assert both.score == -6.0 and both.parts == {"lm": -6.0} and not both.label_parts and not both.word_labels


def test_lexicon_and_hot_words(run: Any) -> None:
    """The beam search of task decode, for posteriors: files are those of the user's folder."""
    pathlib.Path("words.txt").write_text("abd\ncad\n")
    name = write("x.wav", "abc")
    assert run(name)[1] == "abc\n"
    code, out, _ = run(name, "--lexicon", "words.txt", "--layer", "ctc")
    assert (code, out) == (0, "abd\n")
    assert run(name, "--lexicon", "words.txt")[1] == "abd\n"  # not the layer with labels
    code, out, _ = run(name, "--layer", "ctc", "--json", "--nbest", "3")
    found = json.loads(out)
    assert found["text"] == "abc" and len(found["alternatives"]) == 2
    assert found["score"] >= found["alternatives"][0]["score"] >= found["alternatives"][1]["score"]


def test_lexicon_of_a_search_by_choice(run: Any) -> None:
    """The layers of task decode are beside the choice; it has a label or blank, "4", for each frame."""
    pathlib.Path("words.txt").write_text("abd\ncad\n")
    name = write("x.wav", "abc")
    for more in ([], ["--nbest", "2", "--json"]):
        code, out, _ = run(name, "--layer", "frames", "--lexicon", "words.txt", *more)
        text = json.loads(out)["text"] if more else out
        assert code == 0 and re.sub("[ 4\n]", "", text) in ("abd", "cad")


@pytest.mark.parametrize(
    "setting, text",
    [
        (["++decode_blank_scale", "1e-30"], "[abcd]{2,}"),  # also in the pauses
        (["++decode_topology", "hmm"], "4a4"),  # what was the blank is a state
    ],
)
def test_settings_of_the_decoder(run: Any, setting: list[str], text: str) -> None:
    """A beam search is made where the config sets something that the best path does not know."""
    name = write("x.wav", "a")
    code, out, _ = run(name, "--layer", "ctc", "--epoch", "1", *setting, epoch=None)
    assert code == 0 and re.fullmatch(text, out.strip())


@pytest.mark.parametrize(
    "args, message",
    [
        (["--lexicon", "words.txt", "--layer", "output"], "layer 'output' has labels, but a lexicon, a language model"),
        (["--lexicon", "gone.txt"], "gone.txt"),
        (["--lexicon", "words.txt"], "words.txt"),
        (["--hot-words", "words.txt"], "xyz"),
    ],
)
def test_files_of_the_decoder_that_do_not_fit(run: Any, args: list[str], message: str) -> None:
    pathlib.Path("words.txt").write_text("xyz\n")
    code, out, err = run(write("x.wav", "abc"), *args)
    assert code in (1, 2) and out == "" and message in err and "Traceback" not in err


def test_which_checkpoint(run: Any, trained: pathlib.Path) -> None:
    """The newest one, that of an epoch, or one by its name."""
    name = write("x.wav", "ab")
    newest, named = (run(name, epoch=epoch)[1] for epoch in (None, "1"))
    assert (newest, named) == ("\n", "ab\n")
    for model in ("out/net.001", "out/net.001.index", "out/net"):
        epoch = "1" if model == "out/net" else None
        assert run(name, model=str(trained / model), epoch=epoch)[1] == "ab\n"


def test_best_epoch(run: Any, trained: pathlib.Path) -> None:
    """That of the score which the learning rate follows, among those of which there is a checkpoint."""
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    text = (trained / "my.config").read_text().replace("out/net", str(trained / "out/net"))
    pathlib.Path("my.config").write_text(text + "learning_rate_file = 'rates'\n")
    scores = {1: (0.3, 0.5), 2: (0.2, 0.6), 3: (0.1, 0.1)}
    lines = ["%d: EpochData(0.1, {'dev_error': %s, 'dev_score': %s})," % (n, *each) for n, each in scores.items()]
    pathlib.Path("rates").write_text("{\n%s\n}\n" % "\n".join(lines))
    name = write("x.wav", "ab")
    assert run(name, model="my.config", epoch="best")[1] == "ab\n"
    other = ["++learning_rate_control_error_measure", "dev_error"]
    assert run(name, "--epoch", "best", *other, model="my.config", epoch=None)[1] == "\n"


def test_layer_that_nothing_else_needs(run: Any, trained: pathlib.Path) -> None:
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    layer = "{'class': 'activation', 'activation': 'safe_log', 'from': 'ctc'}"
    pathlib.Path("other.config").write_text("%s\nnetwork['logs'] = %s\n" % ((trained / "my.config").read_text(), layer))
    assert run(write("x.wav", "dab"), "--config", "other.config", "--layer", "logs")[:2] == (0, "dab\n")


def test_config_in_place_of_that_of_the_run(run: Any, trained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pathlib.Path("other.config").write_text((trained / "my.config").read_text())
    pathlib.Path("vocab.txt").write_text("{'w': 0, 'x': 1, 'y': 2, 'z': 3}")
    assert run(write("x.wav", "ad"), "--config", "other.config")[1] == "wz\n"


@pytest.mark.parametrize(
    "changes",
    [
        "train = {'class': 'MetaDataset', 'datasets': {'ogg': train}, 'data_map': {'data': ('ogg', 'data')}, "
        "'seq_list_file': 'gone.txt'}",
        "train = {'class': 'ConcatSeqsDataset', 'dataset': {'class': 'MultiProcDataset', 'dataset': train}, "
        "'seq_list_file': 'gone', 'seq_len_file': 'gone'}",
        "def get_train(epoch=None):\n    return ogg\nogg, train = train, get_train",
        "dev, train = train, {'class': 'HDFDataset', 'files': ['gone.hdf']}",
        "search_data, train = train, None",
        "eval_datasets, train = {'other': train}, None",
    ],
    ids=["meta", "nested", "function", "dev", "search_data", "eval_datasets"],
)
def test_features_of_any_dataset(run: Any, trained: pathlib.Path, changes: str) -> None:
    """The first dataset with the option audio, also inside of others; its files need not be there."""
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    pathlib.Path("other.config").write_text("%s\n%s\n" % ((trained / "my.config").read_text(), changes))
    assert run(write("x.wav", "bad"), "--config", "other.config")[:2] == (0, "bad\n")


def test_dataset_by_its_name(run: Any, trained: pathlib.Path) -> None:
    """By default the one to search, whether the setting has its options or its name."""
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    changes = "dev = {**train, 'audio': {**audio, 'norm_mean': 100.0}}\neval_datasets = {'other': train}"
    pathlib.Path("other.config").write_text("%s\n%s\n" % ((trained / "my.config").read_text(), changes))
    name = write("x.wav", "bad")  # which is blanks only with that mean
    for more, text in (
        ([], "\n"),
        (["--data", "train"], "bad\n"),
        (["++search_data", "other"], "bad\n"),
        (["++search_data", "dev"], "\n"),
    ):
        assert run(name, "--config", "other.config", "--epoch", "1", *more, epoch=None)[1] == text


def test_files_of_the_features_lie_where_the_training_ran(run: Any, trained: pathlib.Path) -> None:
    (trained / "mean.txt").write_text("\n".join(["100"] * 4))
    text = (trained / "my.config").read_text()
    try:
        (trained / "my.config").write_text(
            text.replace('"random_permute"', '"norm_mean": "mean.txt", "random_permute"')
        )
        assert run(write("x.wav", "bad"))[:2] == (0, "\n")
    finally:
        (trained / "my.config").write_text(text)


def test_samples_as_features(
    run: Any, tmp_path: pathlib.Path, trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network on raw audio: labels are 0 where the samples are loud, and times follow from the sample rate."""
    text = (trained / "my.config").read_text()
    text = text.replace('"features": "log_mel_filterbank", "num_feature_filters": 4', '"features": "raw"')
    changes = """
extern_data["data"]["dim"] = 1
batch_size = 100000
network = {
    "loud": {"class": "eval", "eval": "tf.abs(source(0))", "from": "data"},
    "pooled": {"class": "pool", "mode": "max", "pool_size": (80,), "padding": "valid", "from": "loud"},
    "ctc": {"class": "softmax", "from": "pooled", "loss": "ctc", "target": "classes"},
}
model = "raw/net"
"""
    pathlib.Path("raw.config").write_text(text + changes)
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    config = returnn_tf.Config.from_file("raw.config")
    net = returnn_tf.Network.from_config(config, train=True)
    net.set_param_values(
        {**net.get_param_values(), "ctc/W": np.array([[40, 0, 0, 0, 0]]), "ctc/b": np.array([0, -9, -9, -9, 20])}
    )
    os.mkdir("raw")
    returnn_tf.save_checkpoint(net, "raw/net.001")
    code, out, _ = run(write("x.wav", "bd"), "--json", model="raw.config", epoch=None)
    found = json.loads(out)
    assert code == 0 and found["text"] == "aa"
    for label, start in zip(found["labels"], (0.1, 0.4)):
        assert label["start"] == pytest.approx(start, abs=0.02)
        assert label["end"] == pytest.approx(start + 0.2 + 0.1, abs=0.02)  # and what a label goes on behind its frames


def test_overrides(run: Any) -> None:
    assert run(write("x.wav", "ad"), "--epoch", "1", "++search_output_layer", "ctc", epoch=None)[1] == "ad\n"


# --- audio that does not fit ---


def test_other_files_are_recognised(run: Any) -> None:
    """What is wrong with a file is told with its name, the others are recognised, and the exit code tells."""
    good, last = write("good.wav", "ab"), write("last.wav", "c")
    pathlib.Path("text.wav").write_text("no audio")
    soundfile.write("empty.wav", np.zeros(0, "float32"), RATE)
    soundfile.write("two.wav", np.stack([tones("a"), tones("b")], axis=1), RATE)
    write("fast.wav", "a", 16000)
    code, out, err = run(good, "gone.wav", "text.wav", "empty.wav", "two.wav", "fast.wav", last)
    assert code == 1 and out == "good.wav\tab\nlast.wav\tc\n"
    for message in (
        "error: audio file 'gone.wav' does not exist",
        "error: audio file 'text.wav' cannot be decoded",
        "error: audio file 'empty.wav' has no samples. Leave it out",
        "error: audio file 'two.wav' has 2 channels, but the model takes one: --channel 0",
        "error: audio file 'fast.wav' has 16000 samples per second, but the model takes 8000. --resample converts it",
        "; 5 files failed",
    ):
        assert message in err
    assert "Traceback" not in err


def test_a_file_on_which_the_network_fails(run: Any, trained: pathlib.Path) -> None:
    """The others of its batch are recognised; parts of it would be, too."""
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    checked = "tf.debugging.check_numerics(source(0) / tf.cast(tf.shape(source(0))[1] < 150, 'float32'), 'too long')"
    changes = (
        "network['checked'] = {'class': 'eval', 'eval': %r, 'from': 'data'}\nnetwork['pooled']['from'] = 'checked'"
    )
    pathlib.Path("other.config").write_text("%s\n%s\n" % ((trained / "my.config").read_text(), changes % checked))
    names = [write("a.wav", "a"), write("long.wav", "abcdab"), write("b.wav", "b")]
    code, out, err = run(*names, "--config", "other.config")
    assert code == 1 and out == "a.wav\ta\nb.wav\tb\n"
    assert (
        "error: " in err and "too long" in err and "sequences of the batch: long.wav" in err and "1 file failed" in err
    )
    code, out, _ = run(*names, "--config", "other.config", "--segment", "1.2")
    assert code == 0 and out.splitlines()[1].replace(" ", "") == "long.wav\tabcdab"


@pytest.mark.parametrize("channel, text", [("0", "ab"), ("1", "cd"), ("mix", None)])
def test_channel(run: Any, channel: str, text: Optional[str]) -> None:
    soundfile.write("two.wav", np.stack([tones("ab"), tones("cd")], axis=1), RATE)
    code, out, _ = run("two.wav", "--channel", channel)
    assert code == 0 and (out == "%s\n" % text if text else len(out) > 2)


def test_no_such_channel(run: Any) -> None:
    code, _, err = run(write("one.wav", "a"), "--channel", "1")
    assert code == 1 and "'one.wav' has 1 channel, but no track 1" in err


@pytest.mark.parametrize("rate", [16000, 11025, 44100])
def test_resample(run: Any, rate: int) -> None:
    assert run(write("x.wav", "abcd", rate), "--resample")[:2] == (0, "abcd\n")


# --- mistakes on the command line ---


def _files(*names: str) -> Sequence[str]:
    for name in names:
        write(name, "a")
    return names


@pytest.mark.parametrize(
    "args, message",
    [
        (["files.txt"], "'files.txt' names no audio file. It needs a path in each line"),
        (["x.wav", "folder"], "'folder' is a folder. Name the files"),
        (["x.wav", "y.wav", "--srt"], "--format srt holds one transcript, but there are 2 files. --output FOLDER"),
        (["x.wav", "folder/x.wav", "--output", "texts"], "would be written to files of the same name"),
        (["x.wav", ""], "the name of an audio file is empty"),
        (["gone.txt"], "'gone.txt' does not exist"),
        (["x.wav", "--output", "y.wav"], "--output 'y.wav' is a file, but must be a folder"),
        (["x.wav", "--layer", "scors"], "no layer 'scors'"),
        (["x.wav", "--layer", "scores"], "neither labels nor posteriors of CTC"),
        (["x.wav", "--data", "trian"], "there is no dataset 'trian'. Did you mean 'train'?"),
        (["x.wav", "--sample-rate", "16000"], "--sample-rate 16000: the config says 8000"),
        (["x.wav", "--segment", "0"], "expected 1 seconds or more"),
        (["x.wav", "--segment", "9", "--nbest", "2", "--json"], "--nbest and --segment exclude each other"),
        (["x.wav", "--channel", "left"], "expected a number from 0, or 'mix'"),
        (["x.wav", "--epoch", "7"], "no checkpoint of epoch 7"),
        (["x.wav", "--epoch", "good"], "expected a whole number"),
        (["x.wav", "--epoch", "best"], "--epoch best"),
        (["x.wav", "--nbest", "2"], "--nbest"),
        (["x.wav", "--nbest", "2", "--json"], "--nbest 2: this layer has the labels of one hypothesis"),
        (["x.wav", "--fromat", "ctm"], "Did you mean '--format'?"),
        ([], "the following arguments are required: AUDIO"),
    ],
)
def test_mistakes(run: Any, args: list[str], message: str) -> None:
    os.mkdir("folder")
    _files("x.wav", "y.wav", "folder/x.wav")
    pathlib.Path("files.txt").write_text("\n\n")
    code, out, err = run(*args, epoch=None if "--epoch" in args else "1")
    assert code in (1, 2) and out == "" and message in err and "Traceback" not in err


def test_models_that_are_none(run: Any, trained: pathlib.Path) -> None:
    _files("x.wav")
    os.mkdir("nothing")
    os.mkdir("exported")
    pathlib.Path("exported/model.json").write_text("{}")
    for model, message in (
        ("nothing", "a folder without a run"),
        ("exported", "is an exported model, which is for other programs"),
        ("net.onnx", "is an exported model"),
        ("elsewhere", "there is no such folder"),
        ("x.wav", "is audio, but the model comes first"),
    ):
        code, _, err = run("x.wav", model=model)
        assert code == 2 and message in err
    code, _, err = run("x.wav", model=str(trained / "out/net.001"))
    assert code == 2 and "is one checkpoint already" in err


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            "train = {'class': 'HDFDataset', 'files': ['a.hdf']}",
            "no dataset of the config has the option 'audio' (train)",
        ),
        (
            "train = {'class': 'PostprocessingDataset', 'dataset': train, 'map_seq': len}",
            "the function 'map_seq' changes",
        ),
        ("audio['num_feature_filters'] = 5", "has 5 features for data key 'data', but extern_data declares 4"),
        ("audio['window_len'] = -1", "window_len"),
        ("network = {'output': {'class': 'copy', 'from': 'data'}}", "none has the loss 'ctc'"),
        (
            "network['output'] = {'class': 'copy', 'from': ['data:classes']}",
            "the network needs the data keys 'data', 'classes' to recognise something",
        ),
    ],
)
def test_configs_that_do_not_fit(run: Any, trained: pathlib.Path, changes: str, message: str) -> None:
    _files("x.wav")
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    pathlib.Path("other.config").write_text("%s\n%s\n" % ((trained / "my.config").read_text(), changes))
    code, _, err = run("x.wav", "--config", "other.config")
    assert code == 2 and message in err and "Traceback" not in err


def test_lost_config(run: Any, trained: pathlib.Path) -> None:
    _files("x.wav")
    os.rename(trained / "my.config", trained / "moved.config")
    try:
        code, _, err = run("x.wav")
    finally:
        os.rename(trained / "moved.config", trained / "my.config")
    assert code == 2 and "my.config is not there any more. Name it: --config FILE" in err


def test_unknown_sample_rate(run: Any, trained: pathlib.Path) -> None:
    """It is not checked, which is said; with --sample-rate it is."""
    pathlib.Path("vocab.txt").write_text((trained / "vocab.txt").read_text())
    text = (trained / "my.config").read_text().replace('"sample_rate": 8000, ', "")
    pathlib.Path("other.config").write_text(text)
    name = write("x.wav", "abcd", 16000)
    assert "The sample rate of the audio is not checked" in run(name, "--config", "other.config")[2]
    code, out, err = run(name, "--config", "other.config", "--sample-rate", "8000", "--resample")
    assert (code, out) == (0, "abcd\n") and "not checked" not in err
    assert "--resample: to which rate?" in run(name, "--config", "other.config", "--resample")[2]


def test_audio_in_place_of_names(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _files("x.wav")
    with open("x.wav", encoding="utf8") as file:
        monkeypatch.setattr("sys.stdin", file)
        code, _, err = run("-")
    assert code == 1 and "the standard input is no text" in err
