"""Decoding audio: every format, by either decoder, and what is damaged."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.audio import AudioFeatures, decode, read_audio

soundfile = pytest.importorskip("soundfile")

RATE = 16000
_TIME = np.arange(6000) / RATE
SAMPLES = 0.4 * np.sin(2 * np.pi * (200 + 900 * _TIME) * _TIME)

#: Name -> (format and subtype in libsndfile, what may be lost, bound for the difference of the two decoders, precision)
FORMATS: dict[str, tuple[str, Any, float, float, str]] = {
    "flac": ("FLAC", "PCM_16", 2.0**-15, 0.0, "float32"),
    "flac24": ("FLAC", "PCM_24", 2.0**-23, 0.0, "float32"),
    "wav": ("WAV", "PCM_16", 2.0**-15, 0.0, "float32"),
    "wav24": ("WAV", "PCM_24", 2.0**-23, 0.0, "float32"),
    "wav_float": ("WAV", "FLOAT", 1e-7, 0.0, "float32"),
    "wav32": ("WAV", "PCM_32", 2.0**-31, 0.0, "float64"),
    "wav_double": ("WAV", "DOUBLE", 0.0, 0.0, "float64"),
    "ogg": ("OGG", "VORBIS", 0.1, 1e-6, "float32"),
    "mp3": ("MP3", None, 0.1, 1e-5, "float32"),
    "opus": ("OGG", "OPUS", 0.1, 0.0, "float32"),
    "aiff": ("AIFF", "PCM_16", 2.0**-15, 0.0, "float32"),
}


def encoded(name: str, samples: Any = SAMPLES, rate: int = RATE) -> bytes:
    """Return the content of a file; skips what this libsndfile does not know."""
    kind, subtype = FORMATS[name][:2]
    if not soundfile.check_format(kind, subtype):
        pytest.skip("libsndfile %s knows no %s" % (soundfile.__libsndfile_version__, name))
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_decodes(name: str, channels: int) -> None:
    """What was written is read, [time] or [time, channels]."""
    written = SAMPLES if channels == 1 else np.stack([SAMPLES, 0.5 * SAMPLES[::-1]], axis=1)
    samples, rate = read_audio(encoded(name, written), name=name)
    assert (samples.dtype, samples.shape, rate) == (FORMATS[name][4], written.shape, RATE)
    assert np.abs(samples - written)[600:-600].max() <= FORMATS[name][2]


@pytest.mark.parametrize("name", FORMATS)
def test_decoders_agree(name: str) -> None:
    """tensorflow-io gives the same numbers, or says that it does not know the format."""
    pytest.importorskip("tensorflow_io")
    for samples in (SAMPLES, np.stack([SAMPLES, -SAMPLES], axis=1)):
        content = encoded(name, samples)
        expected, _ = read_audio(content)
        if name in ("opus", "aiff", "wav32", "wav_double"):
            with pytest.raises(ConfigError, match="'x'.*does not know.*Use the decoder 'soundfile'"):
                read_audio(content, name="x", decoder="tensorflow-io")
            continue
        got, rate = AudioFeatures.make({"decoder": "tensorflow-io"}, owner="x").read(content)
        assert (got.dtype, rate) == (np.float32, RATE)
        np.testing.assert_allclose(got, expected, rtol=0, atol=FORMATS[name][3])


def test_tensorflow_io_needs_its_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    tf = pytest.importorskip("tensorflow")
    monkeypatch.setitem(sys.modules, "tensorflow_io", types.ModuleType("tensorflow_io"))
    monkeypatch.setattr(tf.version, "VERSION", "2.21.0")
    with pytest.raises(ConfigError, match=r"works with TensorFlow 2\.16 only, this is 2\.21\.0. Use .*'soundfile'"):
        read_audio(encoded("wav", SAMPLES), decoder="tensorflow-io")


DAMAGE = {
    "empty": lambda content: b"",
    "text": lambda content: b"no audio at all, " * 100,
    "cut in the header": lambda content: content[:30],
    "cut in the middle": lambda content: content[: len(content) // 2],
    "zeros in the middle": lambda content: content[: len(content) // 3] + bytes(len(content) - len(content) // 3),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["flac", "wav", "ogg", "opus", "mp3"])
def test_damaged(name: str, how: str) -> None:
    """One error that names the file. In a wav file zeros are samples."""
    content = DAMAGE[how](encoded(name))
    if (name, how) == ("wav", "zeros in the middle"):
        assert len(read_audio(content)[0]) == len(SAMPLES)
        return
    with pytest.raises(DataError, match="^audio file 'corpus.zip:a/b.flac' (cannot be decoded|is incomplete)"):
        read_audio(content, name="corpus.zip:a/b.flac")


@pytest.mark.parametrize(
    "content, advice",
    [
        (b"\0\0\0\x20ftypM4A \0\0\0\0M4A mp42isom" + bytes(500), "not e.g. m4a, aac.*Convert it: ffmpeg"),
        (b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(500), "Convert it: ffmpeg"),  # AAC
        (b"\x1aE\xdf\xa3" + bytes(500), "Convert it: ffmpeg"),  # WebM
        (b"", "Is it damaged or cut off"),
    ],
)
def test_formats_that_libsndfile_does_not_know(content: bytes, advice: str) -> None:
    with pytest.raises(DataError, match="audio file 'a.x' cannot be decoded: .*" + advice):
        read_audio(content, name="a.x")


@pytest.mark.parametrize("name, missing, is_error", [("mp3", 841, False), ("mp3", 1152, True), ("flac", 1, True)])
def test_mpeg_may_lack_less_than_a_frame(
    name: str, missing: int, is_error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers count the delay of the coder, which is not decoded, as that of MPEG in a wav file by ffmpeg."""
    read = decode._all_samples
    monkeypatch.setattr(decode, "_all_samples", lambda file, dtype: read(file, dtype)[:-missing])
    if not is_error:
        assert len(read_audio(encoded(name))[0]) == len(SAMPLES) - missing
        return
    with pytest.raises(DataError, match=r"'x' is incomplete: .* missing \(%d\)" % missing):
        read_audio(encoded(name), name="x")


def test_header_with_too_many_samples() -> None:
    """The number of samples in a damaged header is not believed: they would take 256 GiB."""
    content = bytearray(encoded("flac"))
    assert int.from_bytes(content[21:26], "big") & 0xFFFFFFFFF == len(SAMPLES)
    content[21] |= 0x0F  # the upper bits of 36
    with pytest.raises(DataError, match=r"'x' is incomplete.*\(6\d{10}\)|'x' cannot be decoded"):
        read_audio(bytes(content), name="x")


def test_long_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in parts."""
    monkeypatch.setattr(decode, "_PART", 1000)
    for count in (1, 999, 1000, 1001, 3000, 3500):
        samples, _ = read_audio(encoded("flac", SAMPLES[:count]))
        np.testing.assert_allclose(samples, SAMPLES[:count], atol=2.0**-15)


def test_wav_of_a_pipe() -> None:
    """A size that was not known when the file was begun is no damage."""
    content = bytearray(encoded("wav"))
    position = content.index(b"data") + 4
    content[position : position + 4] = b"\xff" * 4
    assert len(read_audio(bytes(content))[0]) == len(SAMPLES)


@pytest.mark.parametrize("size", [0x7FFFF000, 0x7FFFFFFF, 0xFFFFFFFF, 0x70000000])
def test_wav_that_claims_more_than_there_is(size: int, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Some sizes stand for an unknown one: it is told once that such files may be cut off. Others are errors."""
    monkeypatch.setattr(decode._UnknownSizes, "warned", False)
    content = bytearray(encoded("wav"))
    position = content.index(b"data") + 4
    content[position : position + 4] = size.to_bytes(4, "little")
    if size == 0x70000000:
        with pytest.raises(DataError, match="'x' is incomplete"):
            read_audio(bytes(content), name="x")
        return
    for name in ("x", "y"):
        assert len(read_audio(bytes(content), name=name)[0]) == len(SAMPLES)
    (text,) = caplog.messages
    assert "audio file 'x' claims %d bytes" % size in text


def test_missing_file(tmp_path: Any) -> None:
    """The path, and where it was looked for."""
    with pytest.raises(DataError, match="audio file '.*/no.wav' does not exist"):
        read_audio(str(tmp_path / "no.wav"))
    with pytest.raises(DataError, match="cannot be read"):
        read_audio(tmp_path)
    (tmp_path / "a.wav").write_bytes(encoded("wav"))
    assert read_audio(tmp_path / "a.wav")[1] == RATE
