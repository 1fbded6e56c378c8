"""Task ``search`` writes transcripts: words with times and confidence."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

import returnn_tf
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.settings.declaration import option_of
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.search.output import formats
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.formats.base import FORMATS
from tests.engine.test_transcriber import ATTENTION, FRAMES, GREEDY, NAMES, feed
from tests.run_tasks import run_task

SEQS = [{"data": feed()["data"][row][: len(labels)]} for row, labels in enumerate(FRAMES)]
COPY: dict[str, Any] = {"class": "copy", "from": "data", "is_output_layer": True}
SETTINGS: dict[str, Any] = {
    "task": "search",
    "eval": {"class": "StaticDataset", "data": SEQS, "output_dim": {"data": (4, 2)}},
    "extern_data": {
        "data": {"dim": 4},
        "classes": {
            "dim": 3, "sparse": True, "vocab": {"class": "Vocabulary", "labels": NAMES[:3], "unknown_label": None},
        },
    },
    "network": GREEDY,
    "model": "net/none",
    "allow_random_model_init": True,
    "search_do_eval": False,
    "search_output_file": "out",
    "search_frame_seconds": 0.5,
    "batch_size": 100,
    "behavior_version": 21,
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(**changes: Any) -> pathlib.Path:
    assert run_task(Config({**SETTINGS, **changes})) == 0
    return pathlib.Path("out")


@pytest.mark.slow
def test_ctm() -> None:
    lines = run(search_output_file_format="ctm").read_text().splitlines()
    assert lines == [
        "seq-0 1 0.500 2.100 the 0.980",
        "seq-0 1 3.500 1.500 cat 0.980",
        "seq-1 1 0.000 0.600 cat 0.980",
        "seq-1 1 1.500 0.500 cat 0.980",
    ]


@pytest.mark.slow
def test_times_of_audio_that_has_another_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside "data" of other lengths, which the search does not need."""
    seqs = [{"audio": seq["data"], "data": seq["data"][:1]} for seq in SEQS]
    network = {**GREEDY, "ctc": {**GREEDY["ctc"], "from": "data:audio"}}
    changes: dict[str, Any] = {
        "eval": {"class": "StaticDataset", "data": seqs, "output_dim": {"audio": (4, 2), "data": (4, 2)}},
        "extern_data": {**SETTINGS["extern_data"], "audio": {"dim": 4}},
        "network": network,
    }
    lines = run(search_output_file_format="ctm", **changes).read_text().splitlines()
    assert lines[-1] == "seq-1 1 1.500 0.500 cat 0.980"
    assert "Times in out: ctc: the best CTC path of the hypothesis, in frames of 'audio'" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("network, layer", [(GREEDY, "output"), (ATTENTION, "decision")], ids=["ctc", "attention"])
def test_search_from_python_gives_the_same(network: dict[str, Any], layer: str) -> None:
    size = 4 if network is ATTENTION else 3
    classes = {"dim": size, "sparse": True, "vocab": {"class": "Vocabulary", "labels": NAMES[:size]}}
    classes["vocab"]["unknown_label"] = None
    changes: dict[str, Any] = {
        "network": network,
        "extern_data": {**SETTINGS["extern_data"], "classes": classes},
        "eval": {**SETTINGS["eval"], "data": SEQS[:1]},
    }
    text = run(search_output_file_format="jsonl", search_output_layer=layer, **changes).read_text()
    net, _ = load_network(Config({**SETTINGS, **changes}), search=True)
    (found,) = returnn_tf.search(net, changes["eval"], layer, transcripts=True)
    assert found.transcript is not None and found.transcript.duration == 5.0
    assert "".join(FORMATS["jsonl"].lines(found.transcript)) == text
    (plain,) = returnn_tf.search(net, changes["eval"], layer)
    assert plain.transcript is None and plain.text == found.text


def test_transcripts_need_labels() -> None:
    net, _ = load_network(Config({**SETTINGS, "network": {**GREEDY, "x": COPY}}), search=True)
    with pytest.raises(ConfigError, match="layer 'x' has no labels, so there is no transcript"):
        returnn_tf.search(net, SETTINGS["eval"], "x", transcripts=True)


@pytest.mark.slow
@pytest.mark.parametrize("name, suffix", [("srt", ".srt"), ("textgrid", ".TextGrid")])
def test_a_folder_with_a_file_for_each_sequence(name: str, suffix: str) -> None:
    folder = run(search_output_file_format=name)
    assert sorted(path.name for path in folder.iterdir()) == ["seq-0" + suffix, "seq-1" + suffix]
    assert "the" in (folder / ("seq-0" + suffix)).read_text()


@pytest.mark.slow
def test_without_the_time_of_a_frame_json_lines_have_no_times() -> None:
    lines = run(search_output_file_format="jsonl", search_frame_seconds=None).read_text().splitlines()
    first = json.loads(lines[0])
    assert first["text"] == "the cat" and "duration" not in first
    assert [set(word) for word in first["words"]] == [{"text", "confidence"}] * 2


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"search_frame_seconds": None}, "needs times, but the dataset does not say how long a frame is"),
        ({"search_frame_seconds": -1.0}, "search_frame_seconds"),
        (
            {"network": {"output": {"class": "reduce", "mode": "argmax", "axes": "F", "from": "data"}}},
            "has no output of CTC on the labels",
        ),
        ({"search_output_layer": ["output", "ctc"]}, "supports one layer"),
        ({"search_score_layers": {"lm": ("output/lm", "0.3")}}, "must give for each name a layer, or"),
        ({"search_score_layers": {"lm": ("output/lm", 0.3)}}, "there is no layer 'output/lm'"),
        ({"search_times": "ctx"}, "search_times: there is no layer 'ctx'. Did you mean 'ctc'"),
    ],
)
def test_what_can_not_be_written(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(search_output_file_format="ctm", **changes)
    assert not pathlib.Path("out").exists()


@pytest.mark.slow
def test_what_the_format_has_no_form_for_ends_the_search_at_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the last one."""
    searched = []
    monkeypatch.setattr(Searcher, "run", lambda self, feed, run=Searcher.run: [searched.append(1), run(self, feed)][1])
    vocab = {"class": "Vocabulary", "labels": ["th@@", "e", "|||"], "unknown_label": None}
    extern_data = {**SETTINGS["extern_data"], "classes": {"dim": 3, "sparse": True, "vocab": vocab}}
    with pytest.raises(DataError, match=r"Sequence 'seq-0': the text 'the \|\|\|' has '\|\|\|'"):
        run(search_output_file_format="nbest", extern_data=extern_data, max_seqs=1)
    assert len(searched) == 1 and not pathlib.Path("out").exists()


def test_the_setting_names_all_formats() -> None:
    assert list(option_of(TaskSettings, "search_output_file_format").metadata["choices"]) == formats()
