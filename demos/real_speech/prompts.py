#!/usr/bin/env python3
"""Makes a corpus of the prompts of a telephone system, Asterisk, in five languages; phones are those of espeak-ng.

    python prompts.py out/packages out      out/prompts_train.tsv, out/prompts_test_en.tsv, out/prompts_en.lexicon, ...

One speaker for each language (English and Spanish have the same one) says each prompt once. The lexicon of a language
has all its prompts. A fifth of the texts is held out: no recording of these, nor of prompts that sound the same, is in
the training set, so that a model finds them by the phones which it learnt from others.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import glob
import gzip
import itertools
import math
import os
import random
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from espeak import HOW_TO_INSTALL, phones_of  # noqa: E402
from packages import PackageError, data_card, fetch  # noqa: E402

#: Language -> the voice of espeak-ng whose phones are taken. The texts are for the USA, Mexico, Canada, Italy, Russia.
VOICES = {"en": "en-us", "es": "es-419", "fr": "fr", "it": "it", "ru": "ru"}
TEXTS, AUDIO = "asterisk-core-sounds-%s", "asterisk-core-sounds-%s-wav"
SOUNDS = os.path.join("usr", "share", "asterisk", "sounds")
RATE = 8000
LONGEST = 30.0  # seconds
FASTEST = 20.0  # phones per second; nobody speaks faster, so where there are more, the text is that of something else
HELD_OUT = {"test": 0.2, "dev": 0.08}  # shares of the texts
SETS = ("train", "dev", "test")


class Prompt(NamedTuple):
    """A recording.

    :param name: in the package, e.g. "digits/1"
    :param text: as the package has it
    :param phones: separated by blanks
    """

    language: str
    name: str
    path: str
    text: str
    phones: str
    seconds: float

    @property
    def tag(self) -> str:
        """The name in the corpus."""
        return "%s/%s" % (self.language, self.name)


def read_texts(content: str) -> dict[str, str]:
    r"""Return the texts of a list, by name; of two with one name, the first. Lines that begin with ``;`` are comments.

    >>> read_texts("; English\n\nhello: Hello.\nhello: Bye\nspy-local: Local\n")
    {'hello': 'Hello.', 'spy-local': 'Local'}
    """
    found: dict[str, str] = {}
    for line in content.lstrip("\ufeff").splitlines():
        name, colon, text = line.partition(":")
        if colon and not line.startswith(";"):
            found.setdefault(name.strip(), text.strip())
    return found


def spoken(text: str, language: str) -> Optional[str]:
    """Return what is read of a text, or None if that can't be told from it.

    That is so with remarks in brackets (sounds, hints for translators), with question marks that stand for lost
    letters, with letters of another alphabet, and without letters. A character in brackets behind its name is dropped.

    >>> spoken("dot [.]", "en"), spoken("(10 seconds of silence)", "en"), spoken("Qualcosa ? sbagliato", "it")
    ('dot', None, None)
    """
    text = re.sub(r"[\[(]\W*[\])]", " ", text)
    if re.search(r"[][<>()]|\w\?\w|\s\?|\?\s+[^\W\d_A-Z]", text):
        return None
    letters = {unicodedata.name(letter).split()[0] for letter in text if letter.isalpha()}
    if letters != {"CYRILLIC" if language == "ru" else "LATIN"}:
        return None
    return " ".join(text.split())


def key(text: str) -> str:
    """Return the letters and digits of a text without accents: texts with the same ones are the same phrase.

    >>> key("Opción  inválida.")
    'opcion invalida'
    """
    plain = (c for c in unicodedata.normalize("NFD", text.casefold()) if not unicodedata.combining(c))
    return " ".join(re.sub(r"\W|_", " ", "".join(plain)).split())


def read_language(texts: str, audio: str, language: str) -> tuple[list[Prompt], Counter[str]]:
    """Return the prompts of a language, by name, and how many were left out for which reason.

    :param texts: folder of the unpacked package with the texts
    :param audio: folder of that with the audio
    :raises PackageError: neither has what is expected
    :raises OSError: espeak-ng failed
    """
    import soundfile

    package = TEXTS % language
    path = os.path.join(texts, "usr", "share", "doc", package, "core-sounds-%s.txt.gz" % language)
    sounds = glob.glob(os.path.join(glob.escape(os.path.join(audio, SOUNDS)), language + "_*"))
    if not os.path.exists(path) or len(sounds) != 1:
        missing = path if sounds else os.path.join(audio, SOUNDS, language + "_*")
        raise PackageError("%s is missing: another version of the package?" % missing)
    with gzip.open(path, "rt", encoding="utf8") as file:
        known = read_texts(file.read())
    found: list[tuple[str, str, str, float]] = []
    left_out = Counter[str]()
    for audio_file in sorted(glob.glob(os.path.join(glob.escape(sounds[0]), "**", "*.wav"), recursive=True)):
        name = os.path.splitext(os.path.relpath(audio_file, sounds[0]))[0]
        text, info = known.get(name), soundfile.info(audio_file)
        said = text and spoken(text, language)
        if info.samplerate != RATE:
            raise PackageError("%s: %d Hz instead of %d" % (audio_file, info.samplerate, RATE))
        if not text:
            left_out["without text"] += 1
        elif not said:
            left_out["text does not tell what is said"] += 1
        elif info.duration > LONGEST:
            left_out["longer than %g s" % LONGEST] += 1
        else:
            found.append((name, audio_file, said, info.duration))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        phones = list(pool.map(lambda entry: phones_of(entry[2], VOICES[language]), found))
    prompts = []
    for (name, audio_file, text, seconds), of_text in zip(found, phones):
        if not 0 < len(of_text) <= FASTEST * seconds:
            left_out["text does not tell what is said"] += 1
        else:
            prompts.append(Prompt(language, name, audio_file, text, " ".join(of_text), seconds))
    return prompts, left_out


def phrases(prompts: Iterable[Prompt]) -> dict[tuple[str, str], str]:
    """Return the names of phrases, by language and phones: what sounds the same has the name of the first prompt."""
    names: dict[tuple[str, str], str] = {}
    for prompt in prompts:
        names.setdefault((prompt.language, prompt.phones), prompt.name)
    return names


def split(prompts: Iterable[Prompt]) -> dict[str, list[Prompt]]:
    """Return the sets: texts are drawn at random with a fixed seed, the same text in several languages is in one set.

    Prompts of dev and test that sound like one in training (or those of test like one in dev) are removed.
    """
    prompts = list(prompts)
    texts = sorted({key(prompt.text) for prompt in prompts})
    random.Random(27).shuffle(texts)
    set_of: dict[str, str] = {}
    start = 0
    for name, share in HELD_OUT.items():
        end = start + math.ceil(share * len(texts))
        set_of.update((text, name) for text in texts[start:end])
        start = end
    sets: dict[str, list[Prompt]] = {}
    seen: set[tuple[str, str]] = set()
    for name in SETS:
        of_set = [prompt for prompt in prompts if set_of.get(key(prompt.text), "train") == name]
        sets[name] = [prompt for prompt in of_set if (prompt.language, prompt.phones) not in seen]
        seen |= {(prompt.language, prompt.phones) for prompt in of_set}
    return sets


def write_set(prefix: str, of_set: Iterable[Prompt], names: Mapping[tuple[str, str], str], audio_root: str) -> None:
    """Write the table of a set, and the languages of its sequences."""
    from returnn_tf.datasets import HDFWriter

    of_set, languages = list(of_set), list(VOICES)
    with open(prefix + ".tsv", "w", encoding="utf8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
        writer.writerow(["file", "seq_name", "text", "phrase", "orthography"])
        for prompt in of_set:
            phrase = names[prompt.language, prompt.phones]
            path = os.path.relpath(prompt.path, audio_root)
            writer.writerow([path, prompt.tag, prompt.phones, phrase, prompt.text])
    with HDFWriter(prefix + "_language.hdf", dim=len(languages), labels=languages, ndim=1, replace=True) as file:
        for prompt in of_set:
            file.insert_batch(np.array([[languages.index(prompt.language)]], np.int32), [1], [prompt.tag])


def write_lexicon(prefix: str, names: Mapping[str, str]) -> None:
    """Write the phrases of a language as words of a lexicon, and an n-gram model of exactly one of them.

    :param names: phones -> name
    """
    with open(prefix + ".lexicon", "w", encoding="utf8") as file:
        file.writelines("%s\t%s\n" % (name, phones) for phones, name in names.items())
    each, never = -math.log10(len(names)), -99
    unigrams = ["%d\t<s>\t0" % never, "%d\t</s>" % never, "%d\t<unk>" % never]
    unigrams += ["%.6f\t%s\t%d" % (each, name, never) for name in names.values()]
    bigrams = ["0\t%s </s>" % name for name in names.values()]
    lines = ["\\data\\", "ngram 1=%d" % len(unigrams), "ngram 2=%d" % len(bigrams), ""]
    lines += ["\\1-grams:", *unigrams, "", "\\2-grams:", *bigrams, "", "\\end\\"]
    with open(prefix + ".arpa", "w", encoding="utf8") as file:
        file.writelines(line + "\n" for line in lines)


def write_corpus(prefix: str, prompts: list[Prompt], audio_root: str, most: Optional[int]) -> None:
    """Write vocabulary, lexicons and sets, and print how large they are.

    :param most: so many prompts of each set and language only
    """
    labels = sorted({phone for prompt in prompts for phone in prompt.phones.split()})
    with open(prefix + ".vocab", "w", encoding="utf8") as file:
        file.write("{\n%s}\n" % "".join("%r: %d,\n" % (label, index) for index, label in enumerate(labels)))
    names = phrases(prompts)
    for language in VOICES:
        of_language = {phones: name for (known, phones), name in names.items() if known == language}
        write_lexicon("%s_%s" % (prefix, language), of_language)
        print("%s: %d phrases" % (language, len(of_language)))
    for name, of_set in split(prompts).items():
        parts = {language: [p for p in of_set if p.language == language][:most] for language in VOICES}
        for language, part in parts.items():
            minutes = sum(prompt.seconds for prompt in part) / 60
            print("%-5s %s: %d prompts, %.1f minutes" % (name, language, len(part), minutes))
            if name == "test":
                write_set("%s_test_%s" % (prefix, language), part, names, audio_root)
        if name != "test":
            write_set("%s_%s" % (prefix, name), itertools.chain(*parts.values()), names, audio_root)
    print("%d phones" % len(labels))


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", help="folder for the packages; those that are in it are not downloaded again")
    parser.add_argument("folder", help="folder for the tables")
    parser.add_argument("--most", type=int, metavar="N", help="only N prompts of each set and language")
    args = parser.parse_args()
    if shutil.which("espeak-ng") is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 1
    prompts: list[Prompt] = []
    left_out = Counter[str]()
    try:
        packages = fetch([form % language for language in VOICES for form in (TEXTS, AUDIO)], args.packages)
        for language in VOICES:
            folders = [packages[form % language].folder for form in (TEXTS, AUDIO)]
            found, reasons = read_language(*folders, language)
            prompts += found
            left_out += reasons
    except (PackageError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    with open(os.path.join(args.folder, "prompts_data_card.md"), "w", encoding="utf8") as file:
        file.write(data_card(packages.values()))
    write_corpus(os.path.join(args.folder, "prompts"), prompts, args.packages, most=args.most)
    print("left out: %s" % "; ".join("%d: %s" % (count, reason) for reason, count in left_out.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
