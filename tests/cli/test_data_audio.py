"""``returnn-tf data audio``: the wav files are what the features of an epoch are computed of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from returnn_tf.cli.main import main
from returnn_tf.datasets import Dataset
from tests.datasets import utterances
from tests.datasets.test_augmentation import corpus

STEPS = [{"class": "speed", "factor": [0.8, 1.2]}, {"class": "volume"}, {"class": "codec", "codecs": ["gsm"]}]


def with_labels(folder: Path) -> dict[str, Any]:
    """Return a dataset of audio and others labels, with the order of the labels."""
    audio = corpus(folder, STEPS)
    return {
        "class": "MetaDataset",
        "seq_order_control_dataset": "text",
        "datasets": {"audio": audio, "text": {**audio, "audio": None, "seq_ordering": "reverse"}},
        "data_map": {"data": ("audio", "data"), "raw": ("text", "raw")},
    }


@pytest.mark.parametrize("kind", ["plain", "inner", "emphasized"])
@pytest.mark.parametrize("epoch", [1, 2])
def test_files_are_what_is_trained_on(
    epoch: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the dataset, with the random numbers of the epoch, but without what distorts the sound."""
    trained = with_labels(tmp_path) if kind == "inner" else corpus(tmp_path, STEPS)
    sequences = list(Dataset.from_config(trained).sequences(epoch))
    if kind == "emphasized":
        trained["audio"]["preemphasis"] = 0.97
    assert main(["data", "audio", repr(trained), "--output", str(tmp_path / "heard"), "--epoch", str(epoch)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [seq.tag for seq in sequences]
    for seq, line in zip(sequences, lines):
        audio, rate = soundfile.read(tmp_path / "heard" / seq.tag, dtype="float32")
        assert rate == utterances.RATE
        np.testing.assert_allclose(audio, seq.data["data"][:, 0].clip(-1, 1), atol=2**-14)
        assert ("clipped" in line) == (np.abs(seq.data["data"]).max() > 1)


@pytest.mark.parametrize(("more", "names"), [
    (["--tags", "two.wav,one.wav"], ["two.wav", "one.wav"]),
    (["--seqs", "2"], ["one.wav", "two.wav"]),
])  # fmt: skip
def test_some_sequences(more: list[str], names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = corpus(tmp_path, [])
    assert main(["data", "audio", repr(dataset), "--output", str(tmp_path / "heard"), *more]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == names
    assert sorted(path.name for path in (tmp_path / "heard").iterdir()) == sorted(names)


@pytest.mark.parametrize(("change", "more", "message"), [
    ({"audio": None}, [], "has no features of audio"),
    ({}, ["--tags", "ten"], "'ten'"),
    ({}, ["--output", "/proc/heard"], "can't make the folder '/proc/heard'"),
])  # fmt: skip
def test_mistakes(
    change: dict[str, Any], more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = {**corpus(tmp_path, []), **change}
    assert main(["data", "audio", repr(dataset), "--output", str(tmp_path / "heard"), *more]) in (1, 2)
    assert message in capsys.readouterr().err
