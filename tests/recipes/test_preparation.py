"""The scripts that prepare the corpora of the recipes: what they make of texts, and what they say of a wrong corpus."""

from __future__ import annotations

import importlib.util
import pathlib
import re
from types import ModuleType
from typing import Any

import pytest

from tests.recipes import miniature

RECIPES = pathlib.Path(__file__).parents[2] / "recipes"


def script_of(recipe: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_" + recipe, RECIPES / recipe / "prepare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recipe, text, words", [
    ("switchboard", "[silence]", ""),
    ("switchboard", "Um [laughter-yes] [noise] i_1 know [laughter]", "um yes i know"),
    ("switchboard", "the [wen/when] th[is]- {yupster} -[an]other <b_aside>", "the when this yupster another"),
    ("tedlium2", "so it 's to(2) {BREATH} say <sil> [NOISE] <unk> they 've 'em", "so it's to say they've 'em"),
    ("tedlium2", "<unk>", ""),
])  # fmt: skip
def test_words_of_transcriptions(recipe: str, text: str, words: str) -> None:
    assert script_of(recipe).cleaned(text) == words


@pytest.mark.parametrize("source, target, kept", [
    ("ein Haus", "a house", True), ("", "a house", False), ("ein Haus", "", False), ("ja", "yes of course", True),
    ("ja", "yes of course we do it", False), ("a " * 100, "b " * 100, True), ("a " * 101, "b " * 100, False),
])  # fmt: skip
def test_pairs_that_are_translations(source: str, target: str, kept: bool) -> None:
    assert script_of("wmt17-de-en").is_translation(source, target) is kept


def test_words_of_segments_in_recordings(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search finds in segments becomes what sclite scores: recording, channel, time in the recording, sorted."""
    monkeypatch.chdir(tmp_path)
    tag = "hub5/en_4156/en_4156-%s_%06d-%06d"
    rows = [tag % ("B", 1010, 1160) + " 1 0.050 0.300 tree 0.981", tag % ("A", 250, 400) + " 1 0.500 0.250 old"]
    pathlib.Path("found.ctm").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr("sys.argv", ["prepare.py", "ctm", "found.ctm", "recordings.ctm"])
    assert script_of("switchboard").main() == 0
    assert pathlib.Path("recordings.ctm").read_text().splitlines() == [
        "en_4156 A 3.000 0.250 old",
        "en_4156 B 10.150 0.300 tree 0.981",
    ]


def shortened(path: pathlib.Path) -> None:
    """Let the header of a file say that shorten has compressed it."""
    content = path.read_bytes()
    header = content[: content.index(b"end_head")] + b"sample_coding -s26 ulaw,embedded-shorten-v2.00\nend_head\n"
    path.write_bytes(header.ljust(1024) + content[1024:])


def removed(path: pathlib.Path) -> None:
    path.unlink()


def cut_off(path: pathlib.Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("recipe, arguments, name, change, message", [
    ("switchboard", ["corpus"], "swb1_d1/data/sw02001.sph", shortened, "sw02001.sph is compressed.*sph2pipe"),
    ("switchboard", ["corpus"], "swb1_d1/data/sw02001.sph", removed, "no audio of 1 .*sw02001.sph"),
    ("switchboard", ["alignment", "alignment.txt", "--labels", "5"], "", None, "alignment.txt, line 1: .*from 0 to 4"),
    ("switchboard", ["alignment", "ali.txt", "--labels", "5"], "", None, "No such file.*ali.txt"),
    ("switchboard", ["ctm", "alignment.txt", "out"], "", None, "alignment.txt, line 1: not a word of a segment such"),
    ("switchboard", ["hub5"], "hub5e_00/hub5e00.stm", removed, "one hub5e_00/.*stm, not 0"),
    ("tedlium2", [], "TEDLIUM_release2/dev/sph/Speaker1_2010.sph", shortened, "Speaker1_2010.sph is compressed"),
    ("tedlium2", [], "TEDLIUM_release2/dev/stm/Speaker1_2010.stm", removed, "no TEDLIUM_release2/dev/stm"),
    ("tedlium2", [], "TEDLIUM_release2/LM/ted.en.gz", removed, "no TEDLIUM_release2/LM"),
    ("wmt17-de-en", ["texts"], "training/europarl-v7.de-en.en", removed, "no training/europarl-v7.de-en.en, beside"),
    ("wmt17-de-en", ["texts"], "training/europarl-v7.de-en.en", cut_off, "europarl.*different numbers of lines"),
])  # fmt: skip
def test_mistakes(
    recipe: str,
    arguments: list[str],
    name: str,
    change: Any,
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One message that names the file; no traceback."""
    getattr(miniature, recipe.partition("-")[0])(tmp_path)
    if change is not None:
        change(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["prepare.py", *arguments])
    assert script_of(recipe).main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("prepare.py: .*" + message, line), line
