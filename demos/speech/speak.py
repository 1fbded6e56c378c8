#!/usr/bin/env python3
"""Lets espeak-ng speak the sentences of the demo, adds noise, and writes tables of the utterances.

    python speak.py out                     out/audio/*.wav, out/train.tsv, dev.tsv, sentences.tsv, voices.tsv
    python speak.py out --train 200         fewer

No sentence is in two of the tables. The voices of voices.tsv speak nowhere else.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import os
import shutil
import subprocess
import sys
import wave
from typing import Any, NamedTuple

import numpy as np
import sentences
from numpy.typing import NDArray

HOW_TO_INSTALL = """this demo needs the speech synthesis espeak-ng:
    apt-get install espeak-ng        Debian, Ubuntu
    dnf install espeak-ng            Fedora
    brew install espeak-ng           macOS"""
ACCENTS = ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland")
VARIANTS = (
    "m1", "m2", "m3", "m4", "m6", "m7", "m8", "f1", "f2", "f3", "f5", "Alex", "Alicia", "Andy", "Annie", "Diogo",
    "Gene", "Hugo", "Marco", "Mike", "Michael", "aunty", "belinda", "benjamin", "boris", "ed", "edward", "john", "max",
    "paul", "rob", "victor", "zac",
)  # fmt: skip
#: Accents and variants that only the held-out voices have.
HELD_OUT_ACCENTS = ("en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc")
HELD_OUT_VARIANTS = ("m5", "f4", "Lee", "steph", "linda", "Jacky")
SIZES = {"train": 2400, "dev": 100, "sentences": 200, "voices": 200}


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
    return values / np.sqrt(np.mean(np.square(values)))


def with_noise(samples: NDArray[Any], utterance: Utterance) -> NDArray[Any]:
    """Return the audio with noise and some silence around it, as int16."""
    rng = np.random.default_rng(utterance.seed)
    before, after = rng.integers(500, 5000, size=2)
    speech = np.concatenate([np.zeros(before), samples.astype(np.float64), np.zeros(after)])
    level = np.sqrt(np.mean(np.square(samples.astype(np.float64)))) * 10 ** (-utterance.snr / 20)
    mixed = speech + level * noise(len(speech), rng)
    return np.clip(mixed, -32768, 32767).astype(np.int16)


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
    os.makedirs(os.path.join(folder, "audio"), exist_ok=True)
    files = ["audio/%s.wav" % utterance.name for utterance in utterances]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(speak, utterances, [os.path.join(folder, file) for file in files]))
    with open(os.path.join(folder, name + ".tsv"), "w", encoding="utf8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["file", "seq_name", "text", "speaker_name"])
        writer.writerows([path, u.name, u.text, u.voice] for path, u in zip(files, utterances))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name, size in SIZES.items():
        parser.add_argument("--" + name, type=int, default=size, metavar="N", help="utterances (%d)" % size)
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 1
    sizes = {name: getattr(args, name) for name in SIZES}
    texts = sentences.distinct(sum(sizes.values()), seed=1)
    known, held_out = voices_of(ACCENTS, VARIANTS), voices_of(HELD_OUT_ACCENTS, HELD_OUT_VARIANTS)
    for seed, (name, size) in enumerate(sizes.items()):
        of_set, texts = texts[:size], texts[size:]
        write_set(args.folder, name, draw(name, of_set, held_out if name == "voices" else known, seed))
        print("%s: %d utterances, e.g. %r" % (name, size, of_set[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
