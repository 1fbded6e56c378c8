"""Features of audio by options in other combinations, against formulas written down frame by frame; wrong options."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.audio import AudioFeatures

RNG = np.random.RandomState(3)
TIME = np.arange(2600) / 11025
SPEECH = 0.3 * np.sin(2 * np.pi * 300 * TIME) * np.sin(20 * TIME) + 0.01 * RNG.normal(size=len(TIME))
SPEECH[1200:1500] = 0.0


def slaney(frequency: float) -> float:
    """Return pitch in mel."""
    return frequency * 3 / 200 if frequency < 1000 else 15 + 27 * math.log(frequency / 1000) / math.log(6.4)


def filters(rate: float, size: int, count: int, fmin: float, fmax: float) -> np.ndarray:
    """Return [bins, count], one number after the other; the edges by bisection of `slaney`."""
    edges = []
    for pitch in np.linspace(slaney(fmin), slaney(fmax), count + 2):
        low, high = 0.0, rate
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if slaney(middle) < pitch else (low, middle)
        edges.append(low)
    result = np.zeros((size // 2 + 1, count))
    for k in range(size // 2 + 1):
        for i, (a, b, c) in enumerate(zip(edges, edges[1:], edges[2:])):
            f = k * rate / size
            result[k, i] = max(0, min((f - a) / (b - a), (c - f) / (c - b))) * 2 / (c - a)
    return result


def expected(audio: np.ndarray, rate: int, options: dict[str, Any]) -> np.ndarray:
    """Return the features, by the formulas."""
    o = {"features": "mfcc", "window_len": 0.025, "step_len": 0.01, "num_feature_filters": 40, **options}
    special = {"fmin": 0, "fmax": None, "center": True, "n_mels": 128, "min_amp": 1e-10, **o.get("feature_options", {})}
    x = np.array(audio, float)
    if o.get("preemphasis"):
        x = np.array([x[t] - (o["preemphasis"] * x[t - 1] if t else 0) for t in range(len(x))])
    if o.get("peak_normalization", True) and np.abs(x).max() > 0:
        x = x / np.abs(x).max()
    n, hop, count = int(o["window_len"] * rate), int(o["step_len"] * rate), o["num_feature_filters"]
    size = 2 * count if o["features"] == "linear_spectrogram" else n
    if special["center"]:
        x = np.concatenate([np.zeros(size // 2), x, np.zeros(size // 2)])
    window = np.zeros(size)
    window[(size - n) // 2 : (size - n) // 2 + n] = [0.5 - 0.5 * math.cos(2 * math.pi * k / n) for k in range(n)]
    frames = np.array([x[i : i + size] for i in range(0, len(x) - size + 1, hop)])
    spectra = np.abs(np.array([np.fft.rfft(frame * window) for frame in frames]))
    bands = special["n_mels"] if o["features"] == "mfcc" else count
    mel = spectra**2 @ filters(rate, size, bands, special["fmin"], special["fmax"] or rate / 2)
    logs = np.log(np.maximum(1e-3, mel))
    if o["features"] == "mfcc":
        db = 10 * np.log10(np.maximum(1e-10, mel))
        db = np.maximum(db, db.max() - 80)
        y = np.array(
            [
                [
                    math.sqrt((2 if k else 1) / bands)
                    * sum(row[i] * math.cos(math.pi * k * (2 * i + 1) / (2 * bands)) for i in range(bands))
                    for k in range(count)
                ]
                for row in db
            ]
        )
        y[:, 0] = [math.sqrt((frame**2).mean()) for frame in frames]
    elif o["features"] == "log_mel_filterbank":
        y = logs
    elif o["features"] == "log_log_mel_filterbank":
        y = 10 * np.log10(np.maximum(1e-10, logs**2))
        y = np.maximum(y, y.max() - 80)
    elif o["features"] == "db_mel_filterbank":
        y = 20 * np.log10(np.maximum(special["min_amp"], mel))
    else:
        y = spectra[:, 1:]
    return after(y, o)


def after(y: np.ndarray, o: dict[str, Any]) -> np.ndarray:
    """Return derivatives, normalisation, joined frames."""
    parts = [y]
    for order in range(1, int(o.get("with_delta", 0)) + 1):
        rows = []
        for t in range(len(y)):
            start = min(max(t - 4, 0), len(y) - 9)
            fit = np.polyfit(np.arange(9), y[start : start + 9], order)
            rows.append(fit[0] * math.factorial(order))
        parts.append(np.array(rows))
    y = np.concatenate(parts, axis=1)
    mean, deviation = o.get("norm_mean"), o.get("norm_std_dev")
    if mean is not None:
        y = y - (y.mean(axis=0) if isinstance(mean, str) else mean)
    if deviation is not None:
        y = y / (np.maximum(y.std(axis=0), 0.01) if isinstance(deviation, str) else deviation)
    j = o.get("join_frames") or 1
    y = np.concatenate([y, np.repeat(y[-1:], -len(y) % j, axis=0)])
    return y.reshape(len(y) // j, -1)


def samples_of(name: str) -> np.ndarray:
    """Return audio by name."""
    return {"speech": SPEECH, "short": SPEECH[:90], "loud": SPEECH * 30, "single": SPEECH.astype("float32")}[name]


MEL = {"features": "log_mel_filterbank", "num_feature_filters": 12}
GOOD: list[tuple[int, str, dict[str, Any]]] = [
    (8000, "speech", {"num_feature_filters": 13, "with_delta": 3, "join_frames": 2}),
    (11025, "speech", {"num_feature_filters": 5, "feature_options": {"n_mels": 5, "fmin": 120.5}}),
    (11025, "speech", {"num_feature_filters": 6, "feature_options": {"n_mels": 30, "fmax": 3000, "center": False}}),
    (
        16000,
        "speech",
        {"num_feature_filters": 3, "norm_mean": "per_seq", "norm_std_dev": "per_seq", "with_delta": True},
    ),
    (16000, "loud", {"num_feature_filters": 4, "peak_normalization": False, "feature_options": {"n_mels": 9}}),
    (11025, "single", {"num_feature_filters": 4, "feature_options": {"n_mels": 9}}),
    (11025, "speech", {**MEL, "window_len": 0.032, "step_len": 0.0125, "norm_std_dev": 2}),
    (11025, "speech", {**MEL, "window_len": 0.0101, "step_len": 0.0251, "with_delta": 1, "preemphasis": 0.5}),
    (11025, "speech", {**MEL, "norm_mean": np.arange(12), "norm_std_dev": np.full(12, 0.5, "float32")}),
    (11025, "speech", {**MEL, "norm_mean": True, "join_frames": 7}),
    (11025, "speech", {**MEL, "norm_std_dev": "per_seq", "join_frames": 1}),
    (11025, "short", {**MEL, "join_frames": 3, "norm_mean": -1}),
    (11025, "loud", {**MEL, "peak_normalization": False}),
    (11025, "single", {**MEL, "preemphasis": 0.97}),
    (11025, "speech", {**MEL, "preemphasis": 0, "join_frames": 0, "with_delta": 0, "random_permute": {}}),
    (8000, "speech", {"features": "log_log_mel_filterbank", "num_feature_filters": 9, "with_delta": 1}),
    (8000, "speech", {"features": "log_log_mel_filterbank", "num_feature_filters": 9, "preemphasis": 0.9}),
    (8000, "speech", {"features": "db_mel_filterbank", "num_feature_filters": 7, "feature_options": {"fmin": 100}}),
    (
        11025,
        "speech",
        {"features": "db_mel_filterbank", "num_feature_filters": 7, "feature_options": {"min_amp": 0.01}},
    ),
    (11025, "speech", {"features": "linear_spectrogram", "num_feature_filters": 138, "join_frames": 2}),
    (11025, "speech", {"features": "linear_spectrogram", "num_feature_filters": 200, "preemphasis": 0.97}),
    (
        8000,
        "speech",
        {"features": "linear_spectrogram", "num_feature_filters": 100, "feature_options": {"center": False}},
    ),
]


@pytest.mark.parametrize("rate,name,options", GOOD, ids=str)
def test_formulas(rate: int, name: str, options: dict[str, Any]) -> None:
    """All kinds and options."""
    features = AudioFeatures.make(options, owner="dataset 'train'")
    got = features.extract(samples_of(name), rate, rng=np.random.RandomState(1), seq_name="a")
    want = expected(samples_of(name), rate, options)
    assert (got.dtype, got.shape) == (np.float32, want.shape) and features.dim == got.shape[1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_raw() -> None:
    """The samples, with and without an axis of channels; derivatives and joined frames."""
    stereo = np.stack([SPEECH, -SPEECH / 2], axis=1)
    for options, audio, want in (
        ({}, SPEECH, SPEECH[:, None] / np.abs(SPEECH).max()),
        ({"num_channels": 1}, SPEECH, SPEECH[:, None, None] / np.abs(SPEECH).max()),
        ({"num_channels": 1}, SPEECH[:, None], SPEECH[:, None, None] / np.abs(SPEECH).max()),
        ({"num_channels": 2, "peak_normalization": False}, stereo, stereo[:, :, None]),
        (
            {"num_channels": 2, "norm_mean": "per_seq"},
            stereo,
            (stereo - stereo.mean(0))[:, :, None] / np.abs(SPEECH).max(),
        ),
        (
            {"with_delta": 2, "join_frames": 3},
            SPEECH,
            after(SPEECH[:, None], {"with_delta": 2, "join_frames": 3}) / np.abs(SPEECH).max(),
        ),
    ):
        features = AudioFeatures.make({"features": "raw", **options}, owner="x")
        got = features.extract(audio, 8000, rng=np.random.RandomState(1), seq_name="a")
        assert (got.shape[1:], got.dtype) == (features.spec.shape, np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_pitch() -> None:
    """By pyworld; without it the error says so when the dataset is made."""
    options = {"features": "f0", "feature_options": {"fmin": 100}}
    if importlib.util.find_spec("pyworld") is None:
        with pytest.raises(
            ConfigError, match="dataset 'train': audio: the package 'pyworld' is needed for features 'f0'"
        ):
            AudioFeatures.make(options, owner="dataset 'train'")
        return
    audio = sum(np.sin(2 * np.pi * 150 * k * np.arange(8000) / 16000) / k for k in range(1, 15))
    got = AudioFeatures.make(options, owner="x").extract(audio, 16000, rng=np.random.RandomState(1), seq_name="a")
    assert got.shape == (51, 1)
    np.testing.assert_allclose(got[10:40], 150, atol=1)


@pytest.mark.parametrize("package", ["soundfile", "scipy"])
def test_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when the dataset is made, with the command that installs it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(ConfigError, match=r"the package '%s' is needed.*pip install .*\[audio\]" % package):
        AudioFeatures.make({}, owner="x")


def test_silence_is_finite() -> None:
    """Digital silence stays 0 and has features."""
    for kind in (
        "mfcc",
        "log_mel_filterbank",
        "log_log_mel_filterbank",
        "db_mel_filterbank",
        "kaldi_fbank",
        "linear_spectrogram",
        "raw",
    ):
        options = {"features": kind, **({"num_feature_filters": 200} if kind.startswith("linear") else {})}
        for extra in ({}, {"norm_mean": "per_seq", "norm_std_dev": "per_seq"}, {"random_permute": True}):
            features = AudioFeatures.make({**options, **extra}, owner="x")
            for seed in range(6):
                got = features.extract(np.zeros(1500), 16000, rng=np.random.RandomState(seed), seq_name="a")
                assert np.isfinite(got).all()


def test_one_sample() -> None:
    """Where frames are centred, any audio has one."""
    got = AudioFeatures.make(MEL, owner="x").extract(np.ones(1), 16000, rng=np.random.RandomState(1), seq_name="a")
    assert got.shape == (1, 12)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"featurs": "mfcc"}, "unknown option 'featurs'. Did you mean 'features'"),
    ({"features": "mfc"}, "unknown kind of features: 'mfc'. Did you mean 'mfcc'"),
    ({"features": None}, "unknown kind of features: None"),
    ({"features": "raw_ogg", "num_feature_filters": 30}, "'raw_ogg' are not supported: .* native"),
    ({"raw_ogg_opts": {}}, "raw_ogg_opts' is not supported"),
    ({"window_len": 0}, "window_len' must be above 0"),
    ({"step_len": -0.01}, "step_len' must be above 0"),
    ({"window_len": "0.025"}, "window_len' must be a number"),
    ({"num_feature_filters": 0}, "num_feature_filters' must be at least 1"),
    ({"num_feature_filters": 129}, "n_mels=128 bands give no 129 coefficients"),
    ({"feature_options": {"fmim": 60}}, "feature_options of 'mfcc': unknown option 'fmim'. Did you mean 'fmin'"),
    ({"features": "log_mel_filterbank", "feature_options": {"center": False}}, "'log_mel_filterbank': unknown option"),
    ({"features": "log_log_mel_filterbank", "feature_options": {"fmin": 1}}, "unknown option"),
    ({"features": "linear_spectrogram", "num_feature_filters": 255}, "must be even"),
    ({"features": "linear_spectrogram", "num_feature_filters": 256, "feature_options": {"fmin": 1}}, "unknown option"),
    ({"feature_options": {"fmin": 500, "fmax": 400}}, "fmax=400 must be above fmin=500"),
    ({"feature_options": {"fmin": 8000}, "sample_rate": 16000}, "fmin=8000 is not below half the sample rate"),
    (
        {"features": "linear_spectrogram", "num_feature_filters": 100, "sample_rate": 16000},
        "num_feature_filters to 200",
    ),
    ({"window_len": 1e-5, "sample_rate": 8000}, "frames of 0 samples"),
    ({"features": "raw", "num_feature_filters": 40}, "num_feature_filters' is 40, but features 'raw' have 1"),
    ({"features": "f0", "num_feature_filters": 2}, "'f0' have 1"),
    ({"features": "f0", "feature_options": {"fmin": 900}}, "fmax=800.0 must be above fmin=900"),
    ({"num_channels": 2}, "num_channels' is for features 'raw' only"),
    ({"features": "raw", "num_channels": 2, "pre_process": len}, "num_channels must not be set"),
    ({"with_delta": -1}, "with_delta' must be from 0 to 8, got -1"),
    ({"with_delta": 9}, "with_delta' must be from 0 to 8"),
    ({"norm_mean": [0.0] * 40}, "norm_mean' must be a number, 'per_seq', the name of a file"),
    ({"norm_mean": np.zeros(39)}, r"norm_mean' has the shape \(39,\), but the features have dim 40"),
    ({"norm_mean": np.zeros((1, 40))}, r"norm_mean' has the shape \(1, 40\)"),
    ({"norm_mean": np.zeros(13), "num_feature_filters": 13, "with_delta": 1}, "dim 26"),
    ({"norm_mean": np.zeros(40), "join_frames": 2}, "does not fit join_frames"),
    ({"norm_std_dev": np.zeros(40)}, "must be above 0"),
    ({"norm_std_dev": 0}, "must be above 0"),
    ({"norm_mean": math.nan}, "not finite"),
    ({"norm_mean": "no-such-file"}, "'no-such-file' does not exist"),
    ({"random_permute": {"rnd_scale": 1.0}}, "random_permute: unknown option 'rnd_scale'. Did you mean"),
    ({"random_permute": "yes"}, "random_permute must be True, False or a dict"),
    ({"random_permute": {"rnd_pitch_switch": 0, "rnd_pitch_lower": -2}}, "rnd_pitch_lower has no effect"),
    ({"random_permute": {"rnd_stretch_switch": -1.0, "rnd_stretch_upper": 2.0}}, "rnd_stretch_upper has no effect"),
    ({"random_permute": {"rnd_zoom_lower": 1.2}}, "rnd_zoom_lower=1.2 is above rnd_zoom_upper=1.1"),
    ({"random_permute": {"rnd_zoom_order": 6}}, "from 0 to 5"),
    ({"pre_process": "function"}, "pre_process' must be"),
    ({"join_frames": -1}, "join_frames' must be at least 0"),
    ({"sample_rate": 0}, "sample_rate' must be at least 1"),
    ({"decoder": "ffmpeg"}, "decoder' is 'ffmpeg'"),
]


@pytest.mark.parametrize("options,message", WRONG, ids=str)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    """Said when the dataset is made, with its name."""
    with pytest.raises((ConfigError, DataError), match=message) as info:
        AudioFeatures.make(options, owner="dataset 'train'")
    assert "dataset 'train': audio" in str(info.value)


WRONG_AUDIO: list[tuple[dict[str, Any], Any, str]] = [
    ({}, np.zeros(0), "the audio is empty"),
    ({}, np.zeros((0, 2)), "the audio is empty"),
    ({}, np.zeros(1000, "int16"), "must be floats from -1 to 1"),
    ({}, np.zeros((10, 2, 1)), "must be floats"),
    ({}, np.array([0.0, math.nan, 1.0] * 200), "not finite"),
    ({"peak_normalization": False}, np.array([0.0, -math.inf, 1.0] * 200), "not finite"),
    ({"features": "log_mel_filterbank"}, np.array([0.0, math.inf] * 200, "float32"), "not finite"),
    ({}, np.zeros((1000, 2)), "2 channels, but features are computed of one.*num_channels=2"),
    ({"features": "raw"}, np.zeros((1000, 2)), "2 channels"),
    ({"features": "raw", "num_channels": 3}, np.zeros((1000, 2)), "2 channels, but num_channels is 3"),
    ({"features": "raw", "num_channels": 2}, np.zeros(1000), "1 channels, but num_channels is 2"),
    ({"sample_rate": 8000}, np.zeros(1000), "16000 samples per second, but the option sample_rate is 8000"),
    ({"feature_options": {"center": False}}, np.zeros(399), "399 samples, fewer than a frame of 400"),
    ({"with_delta": 1}, np.zeros(1000), "with_delta needs 9 frames, but the audio has only 7"),
    ({"feature_options": {"fmin": 9000}}, np.zeros(1000), "fmin=9000 is not below"),
    ({"pre_process": lambda **_: None}, np.ones(1000), "pre_process must return floats"),
    ({"pre_process": lambda audio, **_: audio[:0]}, np.ones(1000), "pre_process must return floats"),
    ({"pre_process": lambda audio, **_: audio[:, None]}, np.ones(1000), "pre_process must return floats"),
    ({"post_process": lambda features, seq_name: features[:, :3]}, np.ones(1000), "post_process must return features"),
    ({"post_process": lambda features, seq_name: None}, np.ones(1000), "post_process must return features"),
    ({"features": lambda **_: np.zeros((3, 7))}, np.ones(1000), "num_feature_filters"),
    ({"features": lambda **_: "text"}, np.ones(1000), "must return features"),
]


@pytest.mark.parametrize("options,audio,message", WRONG_AUDIO, ids=[message for _, _, message in WRONG_AUDIO])
def test_wrong_audio(options: dict[str, Any], audio: Any, message: str) -> None:
    """One error; the dataset that reads the audio names the place, once."""
    features = AudioFeatures.make(options, owner="dataset 'train'")
    with pytest.raises((ConfigError, DataError), match=message) as info:
        features.extract(audio, 16000, rng=np.random.RandomState(1), seq_name="tag-7")
    assert "tag-7" not in str(info.value) and "'train'" not in str(info.value)


def test_functions_get_double_precision_and_draw() -> None:
    """A function of the user sees float64 [time], and the generator of the sequence."""
    seen = []

    def features(**arguments: Any) -> np.ndarray:
        seen.append(arguments)
        return np.full((4, 2), arguments["random_state"].uniform())

    def pre_process(audio: np.ndarray, sample_rate: int, random_state: Any) -> np.ndarray:
        assert audio.dtype == np.float64
        return audio.mean(axis=1) * random_state.uniform()

    extract = AudioFeatures.make(
        {"features": features, "pre_process": pre_process, "num_feature_filters": 2, "feature_options": {"gain": 3}},
        owner="x",
    )
    got = extract.extract(np.ones((100, 2), "float32"), 100, rng=np.random.RandomState(5), seq_name="a")
    first, second = np.random.RandomState(5).uniform(size=2)
    np.testing.assert_allclose(got, second, rtol=1e-6)
    np.testing.assert_allclose(seen[0].pop("audio"), first)
    assert isinstance(seen[0].pop("random_state"), np.random.RandomState)
    assert seen == [{"sample_rate": 100, "window_len": 0.025, "step_len": 0.01, "num_feature_filters": 2, "gain": 3}]
    assert extract.threads(4) == 1 and AudioFeatures.make({}, owner="x").threads(4) == 4
