"""A few utterances and their audio files, for corpora in several formats."""

from __future__ import annotations

import io

import numpy as np
import soundfile

RATE = 8000
RAW = {"features": "raw", "peak_normalization": False, "sample_rate": RATE}
CHARS = {"class": "Utf8ByteTargets"}
TEXTS = {"one": "eins", "two": "zwei drei", "three": "vier"}
#: float32, as they come out of files with 16 bits
SAMPLES = {
    tag: np.random.RandomState(seed).randint(-20000, 20000, 4000 + 800 * seed).astype("int16") / np.float32(1 << 15)
    for seed, tag in enumerate(TEXTS)
}


def wav(samples, rate=RATE):
    """Return the content of a wav file with 16 bits."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def write_files(folder):
    """Write an audio file for each utterance."""
    folder.mkdir(parents=True, exist_ok=True)
    for tag, samples in SAMPLES.items():
        (folder / (tag + ".wav")).write_bytes(wav(samples))


def check(dataset, tags=tuple(TEXTS)):
    """Compare audio and texts of a dataset, whose tags are given, with those of the utterances."""
    sequences = list(dataset.sequences(1))
    assert [seq.tag for seq in sequences] == list(tags)
    for seq in sequences:
        tag = max(TEXTS, key=seq.tag.rfind)
        np.testing.assert_array_equal(seq.data["data"][:, 0], SAMPLES[tag])
        assert bytes(seq.data["classes"].astype("uint8")).decode() == TEXTS[tag] == seq.data["raw"].item()
