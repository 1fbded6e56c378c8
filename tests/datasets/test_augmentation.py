"""The option ``augment``: what each step does to audio, how its numbers are drawn, and which lists are errors."""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from returnn_tf.config.errors import ConfigError, DataError
from returnn_tf.config.options import REQUIRED, declared_options
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.augmentation import CODECS, STEPS, Augmentation, audio_files
from tests.datasets import utterances
from tests.datasets.test_audio_permute import frequency

RATE = 16000
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)
RNG = np.random.RandomState(1)
HISS = RNG.normal(size=RATE).astype(np.float32) * np.float32(0.1)


def changed(step: dict[str, Any], audio: np.ndarray = TONE, rate: int = RATE, seed: int = 3) -> np.ndarray:
    """Return audio after one step."""
    return Augmentation.parse([step], where="x").apply(audio, rate, np.random.RandomState(seed))


def decibels(audio: np.ndarray) -> float:
    """Return the mean power."""
    return float(10 * np.log10(np.mean(np.square(audio, dtype=np.float64))))


def written(path: Path, audio: np.ndarray, rate: int = RATE) -> str:
    """Write a file of floats, and return its path."""
    soundfile.write(path, audio, rate, subtype="FLOAT")
    return str(path)


@pytest.fixture
def noises(tmp_path: Path) -> Path:
    """Return a folder with noise of several lengths and rates, and a file that is no audio."""
    (tmp_path / "noise" / "inner").mkdir(parents=True)
    written(tmp_path / "noise" / "long.wav", np.tile(HISS, 3))
    written(tmp_path / "noise" / "inner" / "short.wav", HISS[:900])
    written(tmp_path / "noise" / "inner" / "stereo.wav", np.stack([HISS, HISS[::-1]], axis=1), 11025)
    (tmp_path / "noise" / "README.txt").write_text("from somewhere")
    return tmp_path / "noise"


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.1, 1.7])
def test_speed_changes_length_and_pitch(factor: float) -> None:
    got = changed({"class": "speed", "factor": factor})
    assert got.shape == (round(RATE / factor),)
    assert got.dtype == np.float32
    assert frequency(got) == pytest.approx(440 * factor, rel=0.002)
    assert decibels(got[1000:-1000]) == pytest.approx(decibels(TONE), abs=0.1)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_tempo_changes_the_length_alone(factor: float, rate: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(2 * rate) / rate).astype(np.float32)
    got = changed({"class": "tempo", "factor": factor}, tone, rate)
    assert len(got) == round(len(tone) / factor)
    assert frequency(got) == pytest.approx(440 * RATE / rate, rel=0.002)


@pytest.mark.parametrize("semitones", [-3.0, 0.0, 5.0])
def test_pitch_changes_the_pitch_alone(semitones: float) -> None:
    got = changed({"class": "pitch", "semitones": semitones})
    assert len(got) == RATE
    assert frequency(got) == pytest.approx(440 * 2 ** (semitones / 12), rel=0.005)


def test_volume() -> None:
    got = changed({"class": "volume", "decibels": -6})
    assert decibels(got) - decibels(TONE) == pytest.approx(-6, abs=1e-3)


@pytest.mark.parametrize("name", ["long.wav", "inner/short.wav", "inner/stereo.wav", ""])
@pytest.mark.parametrize("snr", [-5.0, 0.0, 17.0])
def test_noise_has_the_ratio_asked_for(snr: float, name: str, noises: Path) -> None:
    for seed in range(3):
        noise = changed({"class": "noise", "files": str(noises / name), "snr": snr}, seed=seed) - TONE
        assert decibels(TONE) - decibels(noise) == pytest.approx(snr, abs=0.01)


def test_parts_of_noise_differ_and_short_noise_is_repeated(noises: Path) -> None:
    step = {"class": "noise", "files": str(noises / "long.wav"), "snr": 0}
    assert not np.allclose(changed(step, seed=1), changed(step, seed=2), atol=1e-3)
    noise = changed({**step, "files": str(noises / "inner" / "short.wav")}) - TONE
    np.testing.assert_allclose(noise[900:], noise[:-900], atol=1e-5)


@pytest.mark.parametrize("is_noise_silent", [False, True])
def test_silence_has_no_ratio(is_noise_silent: bool, tmp_path: Path) -> None:
    silence = np.zeros(RATE, np.float32)
    noise, audio = (silence, TONE) if is_noise_silent else (HISS, silence)
    path = written(tmp_path / "noise.wav", noise)
    np.testing.assert_array_equal(changed({"class": "noise", "files": path}, audio), audio)


@pytest.mark.parametrize("delay", [0, 37])
def test_reverberation_is_a_convolution_without_delay(delay: int, tmp_path: Path) -> None:
    response = np.zeros(4000, np.float32)
    response[delay], response[delay + 800] = 0.8, -0.4
    got = changed({"class": "reverberation", "files": written(tmp_path / "room.wav", response)}, HISS)
    echo = np.concatenate([np.zeros(800), HISS[:-800]])
    expected = HISS - 0.5 * echo
    expected *= np.sqrt(np.mean(HISS**2) / np.mean(expected**2))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_channel_of_a_response_is_drawn(tmp_path: Path) -> None:
    response = np.zeros([100, 2], np.float32)
    response[0], response[50, 0] = 1.0, 1.0
    step = {"class": "reverberation", "files": written(tmp_path / "room.wav", response, 2 * RATE)}
    results = {changed(step, HISS, seed=seed).tobytes() for seed in range(10)}
    assert len(results) == 2


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize(("name", "least", "most"), [
    ("mu-law", 25, 45), ("a-law", 25, 45), ("gsm", 5, 30), ("vorbis", 5, 40), ("opus", 3, 40), ("mp3", 5, 40),
])  # fmt: skip
def test_codecs_lose_some_of_the_signal(name: str, least: float, most: float, rate: int) -> None:
    """The result is not delayed: else the difference would be as loud as the signal."""
    times = np.arange(rate + 37) / rate
    audio = sum(np.sin(2 * np.pi * 150 * n * times + 3 * np.sin(2 * times)) / n for n in range(1, 9))
    audio = (0.1 * audio * (1.2 + np.sin(9 * times))).astype(np.float32)
    got = changed({"class": "codec", "codecs": [name], "quality": 0.3}, audio, rate)
    assert got.shape == audio.shape
    inner = slice(1000, -1000)
    assert least < decibels(audio[inner]) - decibels((got - audio)[inner]) < most


def test_telephones_cut_off_high_frequencies() -> None:
    got = changed({"class": "codec", "codecs": ["a-law"]}, HISS)
    spectrum = np.abs(np.fft.rfft(got)) ** 2
    assert spectrum[4500:].sum() < 1e-3 * spectrum[:3500].sum()


@pytest.mark.parametrize("name", sorted(STEPS))
def test_channels_are_changed_alike(name: str, noises: Path) -> None:
    step = {"class": name, **({"files": str(noises)} if name in ("noise", "reverberation") else {})}
    one = changed(step, HISS)
    both = changed(step, np.stack([HISS, HISS], axis=1))
    np.testing.assert_allclose(both[:, 0], both[:, 1], atol=1e-6)
    np.testing.assert_allclose(both[:, 0], one, atol=1e-4)


@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.parametrize("length", [1, 2, 50])
def test_short_audio(length: int, name: str, noises: Path) -> None:
    step = {"class": name, **({"files": str(noises)} if name in ("noise", "reverberation") else {})}
    for seed in range(3):
        assert len(changed(step, HISS[:length], seed=seed)) >= 1


@pytest.mark.parametrize(("amount", "expected"), [
    (3.0, {3.0: 1.0}), ({1: 1, 2.0: 3}, {1: 0.25, 2: 0.75}), ({5: 0, 6: 2}, {6: 1.0}),
])  # fmt: skip
def test_amounts_by_weight(amount: Any, expected: dict[float, float]) -> None:
    steps = Augmentation.parse([{"class": "volume", "decibels": amount}], where="x")
    rng, ones = np.random.RandomState(0), np.ones(1, np.float32)
    counts = collections.Counter(round(decibels(steps.apply(ones, RATE, rng)), 3) for _ in range(2000))
    assert set(counts) == set(expected)
    for value, share in expected.items():
        assert counts[value] / 2000 == pytest.approx(share, abs=0.04)


def test_ranges_and_probability() -> None:
    steps = Augmentation.parse([{"class": "volume", "decibels": [3, 9.0], "probability": 0.25}], where="x")
    rng, ones = np.random.RandomState(0), np.ones(1, np.float32)
    got = np.array([decibels(steps.apply(ones, RATE, rng)) for _ in range(2000)])
    there = got[got != 0]
    assert len(there) / 2000 == pytest.approx(0.25, abs=0.03)
    assert 3 <= there.min() < 3.3 and 8.7 < there.max() <= 9


def test_steps_are_made_in_order() -> None:
    steps: list[dict[str, Any]] = [{"class": "speed", "factor": 2}, {"class": "volume", "decibels": 20}]
    both = Augmentation.parse(steps, where="x").apply(TONE, RATE, np.random.RandomState(1))
    assert (len(both), round(decibels(both[500:-500]) - decibels(TONE))) == (RATE // 2, 20)


def test_files_do_not_depend_on_the_disk(noises: Path) -> None:
    names = [Path(path).relative_to(noises).as_posix() for path in audio_files(str(noises))]
    assert names == ["long.wav", "inner/short.wav", "inner/stereo.wav"]
    single = str(noises / "README.txt")
    assert audio_files([single, str(noises / "inner")])[0] == single


@pytest.mark.parametrize(("steps", "message"), [
    ({"class": "speed"}, "augment.*must be a list"),
    (["speed"], "augment' must be a list of entries: a dict"),
    ([{"factor": 1.1}], r"augment, step 1: \{'factor': 1.1\} .*is no step. E.g. \{'class': 'speed'\}"),
    ([{"class": "speed"}, {"class": "temp"}], "step 2: .*'temp'.* is no step. Did you mean 'tempo'"),
    ([{"class": "speed", "factors": 1.1}], r"step 1 \(speed\): unknown option 'factors'. Did you mean 'factor'"),
    ([{"class": "speed", "factor": [1.1, 0.9]}], r"\[least, largest\]"),
    ([{"class": "speed", "factor": [0.9, 1.0, 1.1]}], r"\[least, largest\]"),
    ([{"class": "speed", "factor": 0.0}], "from 0.25 to 4"),
    ([{"class": "speed", "factor": {1.0: 1, 9.0: 1}}], "from 0.25 to 4"),
    ([{"class": "speed", "factor": {1.0: 0}}], "weights of at least 0"),
    ([{"class": "speed", "factor": {0.9: -1, 1.0: 2}}], "weights of at least 0"),
    ([{"class": "tempo", "probability": 1.5}], "probability"),
    ([{"class": "volume"}], r"step 1 \(volume\) has no effect, since peak_normalization"),
    ([{"class": "codec"}, {"class": "volume"}], r"step 2 \(volume\) has no effect"),
    ([{"class": "noise"}], "'files'"),
    ([{"class": "noise", "files": "nowhere"}], r"step 1 \(noise\): files: 'nowhere' does not exist"),
    ([{"class": "noise", "files": "."}], r"files: '\.' has no audio files"),
    ([{"class": "reverberation", "files": []}], "the list is empty"),
    ([{"class": "codec", "codecs": ["gms"]}], "has no codec 'gms'.*gsm"),
    ([{"class": "codec", "codecs": {}}], "must name codecs"),
    ([{"class": "codec", "codecs": {"gsm": 0}}], "must name codecs"),
])  # fmt: skip
def test_bad_lists(steps: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        AudioFeatures.make({"augment": steps}, owner="dataset 'train'")
    assert str(caught.value).startswith("dataset 'train': audio")


def test_volume_counts_where_a_codec_follows() -> None:
    AudioFeatures.make({"augment": [{"class": "volume"}, {"class": "codec"}]}, owner="x")
    AudioFeatures.make({"augment": [{"class": "volume"}], "peak_normalization": False}, owner="x")


@pytest.mark.parametrize("kind", ["noise", "reverberation"])
@pytest.mark.parametrize("content", ["no audio", "silence"])
def test_bad_files(kind: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.wav"
    if content == "silence":
        written(path, np.zeros(0 if kind == "noise" else 10, np.float32))
    else:
        path.write_text(content)
    with pytest.raises(DataError, match="bad.wav"):
        changed({"class": kind, "files": str(path)})


def test_codec_without_the_rate() -> None:
    with pytest.raises(DataError, match="codec 'opus': can't be encoded at 11025 Hz"):
        changed({"class": "codec", "codecs": ["opus"]}, rate=11025)


def corpus(folder: Path, steps: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Write a manifest with the utterances, and return a dataset that augments them."""
    utterances.write_files(folder)
    lines = [
        '{"audio_filepath": "%s.wav", "text": "%s", "duration": %g}' % (tag, text, len(samples) / utterances.RATE)
        for (tag, text), samples in zip(utterances.TEXTS.items(), utterances.SAMPLES.values())
    ]
    (folder / "manifest.json").write_text("\n".join(lines))
    audio = {**utterances.RAW, "augment": steps}
    return {"class": "NeMoDataset", "path": str(folder / "manifest.json"), "audio": audio, **options}


def test_datasets_draw_by_epoch_and_sequence(tmp_path: Path) -> None:
    """Each epoch hears something else; the number of threads and the order do not matter."""
    steps = [{"class": "speed"}, {"class": "volume"}, {"class": "codec", "codecs": list(CODECS), "probability": 0.5}]
    got = []
    for options in ({"read_threads": 1}, {"read_threads": 3, "seq_ordering": "reverse"}):
        dataset = Dataset.from_config(corpus(tmp_path, steps, **options))
        assert dataset.redraws
        got.append([{seq.tag: seq.data["data"] for seq in dataset.sequences(epoch)} for epoch in (1, 2)])
    for one, other in zip(*got):
        for tag, data in one.items():
            np.testing.assert_array_equal(data, other[tag])
    first, second = got[0]
    assert all(first[tag].shape != second[tag].shape or (first[tag] != second[tag]).any() for tag in first)


def test_order_is_that_of_the_files(tmp_path: Path) -> None:
    """Lengths for sorting are those before speed; the lengths of batches those after it."""
    dataset = Dataset.from_config(corpus(tmp_path, [{"class": "speed", "factor": 0.5}], seq_ordering="sorted"))
    lengths = [len(seq.data["data"]) for seq in dataset.sequences(1)]
    assert lengths == sorted(2 * len(samples) for samples in utterances.SAMPLES.values())


def test_errors_name_the_sequence(tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_text("no audio")
    dataset = Dataset.from_config(corpus(tmp_path / "a", [{"class": "noise", "files": str(tmp_path / "bad.wav")}]))
    with pytest.raises(DataError, match=r"one\.wav.*bad\.wav"):
        next(dataset.sequences(1))


def test_the_guide_has_all_steps_and_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/augmentation.md").read_text("utf8")
    for name, step in STEPS.items():
        (row,) = re.findall(r"(?m)^\| `%s` \| ([^|]*) \|" % name, page)
        options = {option: info.default for option, info in declared_options(step).items() if option != "probability"}
        assert set(re.findall(r"`(\w+)`", row)) >= set(options)
        for option, default in options.items():
            assert default is REQUIRED or "`%s` `%s`" % (option, default) in row
    assert all("`%s`" % codec in page for codec in CODECS)
