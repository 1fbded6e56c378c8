"""Features of audio: the recorded ones, and what the options may not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.audio import AudioFeatures, read_audio
from tests.datasets.recorded import ROOT, array_info, load_json

AUDIO = ROOT / "audio"
CASES = load_json("audio/features.json")["cases"]


def first_quarter_of_a_second(audio: np.ndarray, sample_rate: int, random_state: Any) -> np.ndarray:
    """Return the function "pre" of the recordings."""
    return audio[: sample_rate // 4]


def twice_and_length_of_name(features: np.ndarray, seq_name: str) -> np.ndarray:
    """Return the function "post" of the recordings."""
    return features * 2 + len(seq_name)


def samples_as_features(
    audio: np.ndarray, num_feature_filters: int, sample_rate: int, step_len: float, gain: float, **_others: Any
) -> np.ndarray:
    """Return the function "feat" of the recordings."""
    hop = int(step_len * sample_rate)
    return audio[: len(audio) // hop * hop].reshape(-1, hop)[:, :num_feature_filters] * gain


FUNCTIONS = {"<pre>": first_quarter_of_a_second, "<post>": twice_and_length_of_name, "<feat>": samples_as_features}


def in_audio(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a recording with files where they are here, and functions in the place of their names."""
    files = {name: str(AUDIO / options[name]) for name in ("norm_mean", "norm_std_dev") if is_file(options.get(name))}
    functions = {name: FUNCTIONS[value] for name, value in options.items() if str(value) in FUNCTIONS}
    return {**options, **files, **functions}


def is_file(value: Any) -> bool:
    """Return whether the value of a normalisation is the name of a file."""
    return isinstance(value, str) and value.endswith(".txt")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_recorded(case: dict[str, Any], recorded_features: Any) -> None:
    """Dimension and features are the recorded ones; where there is none, ours is an error for users."""
    samples, rate = read_audio(str(AUDIO / case["file"]))
    assert (rate, list(samples.shape)) == (case["sample_rate"], case["audio"]["shape"])
    np.testing.assert_allclose(
        samples.reshape(-1)[:8], case["audio"]["first"], atol=1e-4 if "ogg" in case["file"] else 0
    )
    if "ogg" not in case["file"]:
        assert array_info(samples.astype("float64"))["sha256"] == case["audio"]["sha256"]
    rng = np.random.RandomState(5)
    if "exception" in case:
        with pytest.raises((ConfigError, DataError)):
            AudioFeatures.make(in_audio(case["options"]), owner="dataset 'train'").extract(
                samples, rate, rng=rng, seq_name="tag-1"
            )
        return
    features = AudioFeatures.make(in_audio(case["options"]), owner="dataset 'train'")
    assert features.dim == features.spec.dim == case["feature_dimension"]
    for number, output in enumerate(case["outputs"]):
        got = features.extract(samples, rate, rng=rng, seq_name="tag-1")
        assert (list(got.shape), str(got.dtype)) == (output["shape"], output["dtype"])
        assert got.shape[1:] == features.spec.shape
        np.testing.assert_allclose(got, recorded_features["%s/%d" % (case["name"], number)], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def recorded_features() -> Any:
    """Return arrays by case and number of the call."""
    with np.load(AUDIO / "features.npz") as arrays:
        return dict(arrays)
