"""Speech of espeak-ng with noise, in wav files, with tables of the utterances."""

from __future__ import annotations

import concurrent.futures
import csv
import os
import re
import subprocess
import wave
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HOW_TO_INSTALL = """this demo needs the speech synthesis espeak-ng:
    apt-get install espeak-ng        Debian, Ubuntu
    dnf install espeak-ng            Fedora
    brew install espeak-ng           macOS"""


class Utterance(NamedTuple):
    """What is said, and how.

    :param voice: accent + variant of espeak-ng
    :param speed: words per minute
    :param pitch: 0 to 99
    :param snr: of the added noise, dB
    """

    name: str
    text: str
    voice: str
    speed: int
    pitch: int
    snr: float
    seed: int


def draw(name: str, texts: list[str], voices: list[str], seed: int) -> list[Utterance]:
    """Return the utterances of a set, with random voices, speeds, pitches and noise."""
    rng = np.random.default_rng(seed)
    found = []
    for number, text in enumerate(texts):
        voice = voices[int(rng.integers(len(voices)))]
        speed, pitch, snr = int(rng.integers(140, 221)), int(rng.integers(25, 76)), float(rng.uniform(10, 30))
        found.append(Utterance("%s-%04d" % (name, number), text, voice, speed, pitch, snr, seed * 100000 + number))
    return found


def voices_of(accents: tuple[str, ...], variants: tuple[str, ...]) -> list[str]:
    """Return all combinations."""
    return ["%s+%s" % (accent, variant) for accent in accents for variant in variants]


def noise(length: int, rng: Any) -> NDArray[Any]:
    """Return noise between white and pink, of mean power 1."""
    tilt = rng.uniform(0, 1)  # the power falls with frequency ** tilt
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-tilt / 2)
    spectrum[0] = 0
    values = np.fft.irfft(spectrum, length)
    return np.asarray(values / np.sqrt(np.mean(np.square(values))))


def with_noise(samples: NDArray[Any], utterance: Utterance) -> NDArray[Any]:
    """Return the audio with noise and some silence around it, as int16."""
    rng = np.random.default_rng(utterance.seed)
    before, after = rng.integers(500, 5000, size=2)
    speech = np.concatenate([np.zeros(before), samples.astype(np.float64), np.zeros(after)])
    level = np.sqrt(np.mean(np.square(samples.astype(np.float64)))) * 10 ** (-utterance.snr / 20)
    mixed = speech + level * noise(len(speech), rng)
    return np.asarray(np.clip(mixed, -32768, 32767), np.int16)


def speak(utterance: Utterance, path: str) -> None:
    """Write the audio file of an utterance.

    :raises OSError: espeak-ng failed
    """
    command = ["espeak-ng", "-v", utterance.voice, "-s", str(utterance.speed), "-p", str(utterance.pitch), "-w", path]
    done = subprocess.run([*command, utterance.text], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError("%s: %s" % (" ".join(command), done.stderr.strip()))
    with wave.open(path, "rb") as file:
        rate, content = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(content, np.int16)
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(with_noise(samples, utterance).tobytes())


def write_set(folder: str, name: str, utterances: list[Utterance]) -> None:
    """Speak the utterances of a set, and write its table."""
    files = ["audio/%s.wav" % utterance.name for utterance in utterances]
    for parent in {os.path.dirname(file) for file in files}:
        os.makedirs(os.path.join(folder, parent), exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(speak, utterances, [os.path.join(folder, file) for file in files]))
    with open(os.path.join(folder, name + ".tsv"), "w", encoding="utf8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["file", "seq_name", "text", "speaker_name"])
        writer.writerows([path, u.name, u.text, u.voice] for path, u in zip(files, utterances))


def phones_of(text: str, voice: str) -> list[str]:
    """Return the phones of a text in IPA, without stress, length, and the borders of words and languages.

    A doubled consonant is one phone, a diphthong too.

    :raises OSError: espeak-ng failed
    """
    command = ["espeak-ng", "-q", "--ipa", "--sep=_", "-v", voice, "--", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError("%s: %s" % (" ".join(command), done.stderr.strip()))
    return read_phones(done.stdout)


def read_phones(ipa: str) -> list[str]:
    """Return the phones that espeak-ng writes, separated by underscores.

    >>> read_phones("p__r_ˈɛ_ss ˈu_n_o (en)_l_ˈɒ_ɡ_(it) ˈɔ_tː_o")
    ['p', 'r', 'ɛ', 's', 'u', 'n', 'o', 'l', 'ɒ', 'ɡ', 'ɔ', 't', 'o']
    """
    without_languages = re.sub(r"\([a-z-]+\)", " ", ipa)
    phones = re.split(r"[_\s]+", re.sub('[ˈˌː\N{COMBINING BRIDGE BELOW}^"-]', "", without_languages))
    return [re.sub(r"^(.)\1+$", r"\1", phone) for phone in phones if phone]
