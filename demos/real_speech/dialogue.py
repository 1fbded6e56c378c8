#!/usr/bin/env python3
"""Makes corpora of the acted dialogue of the game Fish Fillets - Next Generation, in Czech or Dutch.

    python dialogue.py out/packages out --language cs      out/cs_train.tsv, out/cs_dev.tsv, out/cs_test.tsv, ...

Texts are in the Lua scripts of the package fillets-ng-data, audio is in fillets-ng-data-cs and -nl. Whole levels of the
game are held out, the same ones in both languages. Czech sentences from elsewhere go to out/cs_more.txt.
"""

from __future__ import annotations

import argparse
import csv
import glob
import json
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from packages import PackageError, data_card, fetch  # noqa: E402
from quotations import sentences_of  # noqa: E402

GAME = os.path.join("usr", "share", "games", "fillets-ng")
#: Letters of a language, beside a to z.
LETTERS = {"cs": "áčďéěíňóřšťúůýž", "nl": "áèéëïóöü"}
#: Packages with more text, for language models.
MORE_TEXT = {"cs": "fortunes-cs"}
SETS = ("train", "dev", "test")
#: Levels of the game that are held out, drawn once at random. "share", what is said in many levels, stays in training.
HELD_OUT = {
    "dev": {"cabin2", "cannons", "cellar", "duckie", "gods", "map", "noground", "windoze"},
    "test": {"briefcase", "columns", "fdto", "key", "linux", "pyramid", "start"},
}
_STRING = r'"((?:[^"\\]|\\.)*)"'
_DIALOGUE = re.compile(r"dialogId\(\s*%s\s*,\s*%s\s*,\s*%s\s*\)\s*dialogStr\(\s*%s\s*\)" % ((_STRING,) * 4), re.DOTALL)
_COMMENT = re.compile(r"^[ \t]*--.*$", re.MULTILINE)


class Line(NamedTuple):
    """What is said, by its name in the scripts.

    :param font: of the subtitle, which is one for each character of the game
    :param text: as it is shown
    """

    name: str
    font: str
    text: str


class Utterance(NamedTuple):
    """An utterance of a corpus.

    :param tag: LANGUAGE/LEVEL/NAME
    :param level: of the game
    :param text: normalised
    :param seconds: duration
    """

    tag: str
    path: str
    level: str
    speaker: str
    text: str
    seconds: float


def read_script(content: str) -> list[Line]:
    r"""Return the lines of dialogue of a Lua script: calls of ``dialogId`` (name, font, English), then ``dialogStr``.

    >>> read_script('dialogId("a-m", "font_small", "Hi")\ndialogStr("Ahoj")')
    [Line(name='a-m', font='font_small', text='Ahoj')]
    """
    found = _DIALOGUE.findall(_COMMENT.sub("", content))
    return [Line(name, font, re.sub(r"\\(.)", r"\1", text)) for name, font, _, text in found]


def normalised(text: str, language: str) -> Optional[str]:
    """Return a text in lower case without punctuation, or None if how it is read can't be told from it.

    That is so with digits, which stand for different words; with placeholders (``%1``); with letters of other
    alphabets; and without any letter. Apostrophes within words stay.

    >>> normalised("Tak, co... 'Ne'?", "cs"), normalised("Zo’n vis!", "nl"), normalised("8 ryb", "cs")
    ('tak co ne', "zo'n vis", None)
    """
    text = unicodedata.normalize("NFC", text).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if re.search(r"[\d%]", text):
        return None
    text = re.sub(r"(?<!\w)'|'(?!\w)", " ", text)
    text = " ".join(re.sub(r"[^\w']|_", " ", text).split())
    known = set("abcdefghijklmnopqrstuvwxyz' " + LETTERS[language])
    return text if text and set(text) <= known else None


def read_corpus(texts: str, audio: str, language: str) -> tuple[list[Utterance], Counter[str]]:
    """Return the utterances of a language, by tag, and how many were left out for which reason.

    :param texts: folder of the unpacked package with the scripts
    :param audio: folder of that with the audio
    :raises PackageError: neither has what is expected
    """
    import soundfile

    pattern = os.path.join(glob.escape(os.path.join(texts, GAME)), "script", "*", "*_%s.lua" % language)
    lines: dict[tuple[str, str], Line] = {}
    for path in sorted(glob.glob(pattern)):
        with open(path, encoding="utf8") as file:
            level = os.path.basename(os.path.dirname(path))
            lines.update(((level, line.name), line) for line in read_script(file.read()))
    sounds = os.path.join(audio, GAME, "sound")
    paths = sorted(glob.glob(os.path.join(glob.escape(sounds), "**", language, "*.ogg"), recursive=True))
    if not lines or not paths:
        raise PackageError(
            "no %s of language %r in %s: another version of the package?"
            % (*(("audio", language, sounds) if lines else ("dialogue", language, pattern)),)
        )
    found, left_out = [], Counter[str]()
    for path in paths:
        level = os.path.relpath(path, sounds).split(os.sep)[0]
        name = os.path.splitext(os.path.basename(path))[0]
        line, seconds = lines.get((level, name)), soundfile.info(path).duration
        text = line and normalised(line.text, language)
        if line is None or not line.text.strip():
            left_out["no text"] += 1
        elif text is None:
            left_out["digits, placeholders or letters of other languages"] += 1
        elif not 0.3 <= seconds <= 20:
            left_out["shorter than 0.3 s or longer than 20 s"] += 1
        else:
            tag = "/".join([language, level, name])
            found.append(Utterance(tag, path, level, line.font.replace("font_", "") or "none", text, seconds))
    return found, left_out


def split(utterances: Iterable[Utterance]) -> dict[str, list[Utterance]]:
    """Return the sets, without the utterances of dev and test whose text is in training, or of test in dev."""
    where = {level: name for name, levels in HELD_OUT.items() for level in levels}
    sets: dict[str, list[Utterance]] = {name: [] for name in SETS}
    for utterance in utterances:
        sets[where.get(utterance.level, "train")].append(utterance)
    seen: set[str] = set()
    for name in SETS:
        of_set = sets[name]
        sets[name] = [utterance for utterance in of_set if utterance.text not in seen]
        seen |= {utterance.text for utterance in of_set}
    return sets


def write_tables(folder: str, language: str, sets: Mapping[str, Iterable[Utterance]], audio_root: str) -> None:
    """Write a table for each set, as ``returnn-tf data oggzip --audio-root`` reads it."""
    for name, of_set in sets.items():
        with open(os.path.join(folder, "%s_%s.tsv" % (language, name)), "w", encoding="utf8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
            writer.writerow(["file", "seq_name", "text", "speaker_name"])
            writer.writerows([os.path.relpath(u.path, audio_root), u.tag, u.text, u.speaker] for u in of_set)


def write_more_text(
    path: str, sentences: Iterable[str], language: str, sets: Mapping[str, Iterable[Utterance]]
) -> None:
    """Write the normalised sentences that no set has, one a line, each once, sorted."""
    known = {utterance.text for of_set in sets.values() for utterance in of_set}
    texts = {text for text in (normalised(sentence, language) for sentence in sentences) if text} - known
    with open(path, "w", encoding="utf8") as file:
        file.writelines("%s\n" % text for text in sorted(texts))


def write_vocabulary(path: str, language: str) -> None:
    """Write the labels of the characters: all that ``normalised`` lets through."""
    labels = sorted("abcdefghijklmnopqrstuvwxyz' " + LETTERS[language])
    with open(path, "w", encoding="utf8") as file:
        file.write("{\n%s}\n" % "".join("%r: %d,\n" % (label, index) for index, label in enumerate(labels)))


def statistics(sets: Mapping[str, list[Utterance]]) -> dict[str, dict[str, float]]:
    """Return of each set the utterances, minutes, words, and the share of words not in training, in percent."""
    known = {word for utterance in sets["train"] for word in utterance.text.split()}
    result: dict[str, dict[str, float]] = {}
    for name, of_set in sets.items():
        words = [word for utterance in of_set for word in utterance.text.split()]
        unknown = sum(word not in known for word in words)
        result[name] = {
            "utterances": len(of_set),
            "minutes": round(sum(utterance.seconds for utterance in of_set) / 60, 1),
            "words": len(words),
            "words not in training": round(100 * unknown / max(1, len(words)), 1),
        }
    return result


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", help="folder for the packages; those that are in it are not downloaded again")
    parser.add_argument("folder", help="folder for the tables")
    parser.add_argument("--language", choices=sorted(LETTERS), default="cs")
    parser.add_argument("--most", type=int, metavar="N", help="only N utterances of each set")
    args = parser.parse_args()
    names = ["fillets-ng-data", "fillets-ng-data-%s" % args.language]
    more_text = MORE_TEXT.get(args.language)
    try:
        packages = fetch([*names, *filter(None, [more_text])], args.packages)
        utterances, left_out = read_corpus(packages[names[0]].folder, packages[names[1]].folder, args.language)
        sentences = list(sentences_of(packages[more_text], args.language)) if more_text else []
    except PackageError as error:
        print(error, file=sys.stderr)
        return 1
    sets = {name: of_set[: args.most] for name, of_set in split(utterances).items()}
    prefix = os.path.join(args.folder, args.language)
    write_tables(args.folder, args.language, sets, args.packages)
    write_vocabulary(prefix + ".vocab", args.language)
    if sentences:
        write_more_text(prefix + "_more.txt", sentences, args.language, sets)
    with open(prefix + "_data_card.md", "w", encoding="utf8") as file:
        file.write(data_card(packages.values()))
    for name, figures in statistics(sets).items():
        print("%-5s %s" % (name, json.dumps(figures)[1:-1].replace('"', "")))
    print("left out: %s" % "; ".join("%d: %s" % (count, reason) for reason, count in left_out.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
