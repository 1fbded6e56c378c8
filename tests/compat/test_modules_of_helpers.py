"""What configs import from RETURNN that needs no network: lexica, checkouts, arithmetic on dicts, the log."""

from __future__ import annotations

import gzip
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import ConfigError, DataError

from .test_modules import load

LEXICON = """<?xml version="1.0" encoding="utf8"?>
<lexicon>
  <phoneme-inventory>
    <phoneme><symbol>a</symbol></phoneme>
    <phoneme><symbol>[SIL]</symbol><variation>none</variation></phoneme>
  </phoneme-inventory>
  <lemma special="silence"><orth>[SILENCE]</orth><phon score="0.5">[SIL]</phon></lemma>
  <lemma><orth>ah</orth><orth>aah</orth><phon>a</phon><phon score="1">a a</phon></lemma>
</lexicon>
"""


@pytest.mark.parametrize("packed", [False, True])
def test_lexicon(tmp_path: pathlib.Path, packed: bool) -> None:
    content = LEXICON.encode()
    (tmp_path / "lexicon.xml.gz").write_bytes(gzip.compress(content) if packed else content)
    lexicon = load(tmp_path, "from LmDataset import Lexicon\nx = Lexicon(%r)\n" % str(tmp_path / "lexicon.xml.gz"))["x"]
    assert lexicon.phoneme_list == ["a", "[SIL]"]
    assert lexicon.phonemes["[SIL]"] == {"index": 1, "symbol": "[SIL]", "variation": "none"}
    assert lexicon.phonemes["a"]["variation"] == "context"
    assert lexicon.lemmas["aah"] == {
        "orth": "aah", "phons": [{"phon": "a", "score": 0.0}, {"phon": "a a", "score": 1.0}]}  # fmt: skip
    assert lexicon.lemmas["[SILENCE]"]["phons"] == [{"phon": "[SIL]", "score": 0.5}]


@pytest.mark.parametrize("content", [b"", b"<a>", b"<a/>", b"\x1f\x8bnonsense"])
def test_what_is_no_lexicon(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    make = load(tmp_path, "from returnn.datasets.lm import Lexicon\ndef make(name): return Lexicon(name)\n")["make"]
    for name in (str(tmp_path / "x"), str(tmp_path / "missing")):
        with pytest.raises(DataError, match=name):
            make(name)


def test_numbers_dict(tmp_path: pathlib.Path) -> None:
    config = load(
        tmp_path,
        "from returnn.util.basic import NumbersDict\na = NumbersDict({'data': 10, 'classes': 3})\nb = NumbersDict(2)\n"
        "sum = a + b\nhalf = a // 2\nless = 20 - a\nbig = NumbersDict.max([a, {'data': 4, 'classes': 7}])\n"
        "like = NumbersDict.constant_like(1, a)\ncompare = a.any_compare(b, lambda x, y: x < y)\n"
        "none = NumbersDict()\n",
    )
    assert dict(config["sum"].items()) == {"data": 12, "classes": 5} and config["sum"]["other"] == 2
    assert config["half"] == {"data": 5, "classes": 1} and config["less"]["classes"] == 17
    assert config["big"] == {"data": 10, "classes": 7} and config["like"] == {"data": 1, "classes": 1}
    assert not config["compare"] and not config["none"].has_values() and config["a"].max_value() == 10
    assert config["a"] != config["b"] and config["b"]["whatever"] == 2
    assert isinstance(config["a"], Mapping) and {**config["a"]} == {"data": 10, "classes": 3} and len(config["a"]) == 2
    with pytest.raises(KeyError):
        config["a"]["other"]


def test_util(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    (tmp_path / "file_of_helpers.py").write_text("from Util import PY3\nvalue = PY3 + 1\n")
    config = load(
        tmp_path,
        "from Util import get_login_username, better_repr, to_bool, generic_import_module\n"
        "name = get_login_username()\n"
        "text = better_repr({'a': [1, 2]})\nflags = [to_bool('yes'), to_bool('0')]\n"
        "value = generic_import_module(%r).value\n" % str(tmp_path / "file_of_helpers.py"),
    )
    assert config["name"] == "somebody" and config["flags"] == [True, False] and config["value"] == 2
    assert eval(config["text"]) == {"a": [1, 2]}
    with pytest.raises(ConfigError, match="no file or module 'nothing'"):
        load(tmp_path, "from Util import generic_import_module\ngeneric_import_module('nothing')\n")


def test_log(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("returnn_tf")
    monkey = logger.propagate
    logger.addHandler(caplog.handler)
    try:
        caplog.set_level(logging.INFO, logger.name)
        load(tmp_path, "from returnn.log import log\nprint('hello', 3, file=log.v3)\nprint('hidden', file=log.v5)\n")
    finally:
        logger.removeHandler(caplog.handler)
    assert logger.propagate == monkey
    assert "hello 3" in caplog.messages and "hidden" not in caplog.messages


def test_import_of_a_checkout(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "repos" / "github.com" / "user" / "some-repo"
    (repo / "2020-setup").mkdir(parents=True)
    (repo / "2020-setup" / "parts.py").write_text("from .other import five\nfrom TFUtil import where_bc\n")
    (repo / "2020-setup" / "other.py").write_text("five = 5\n")
    (repo / ".git").mkdir()
    (repo / ".git" / "HEAD").write_text("0123456789abcdef\n")
    text = "from returnn.import_ import import_\n"
    text += "five = import_('github.com/user/some-repo', '2020-setup/parts', %r).five\n"
    monkeypatch.delenv("RETURNN_TF_CHECKOUTS", raising=False)
    with pytest.raises(ConfigError, match="git clone https://github.com/user/some-repo .* git -C .* checkout 0123456"):
        load(tmp_path, text % "20200101-0123456")
    monkeypatch.setenv("RETURNN_TF_CHECKOUTS", str(tmp_path / "repos"))
    assert load(tmp_path, text % "20200101-0123456")["five"] == 5
    with pytest.raises(ConfigError, match="the commit should be 777, but the checkout .* has 012"):
        load(tmp_path, text % "20200101-777")
    with pytest.raises(ConfigError, match="no module '2020-setup/nothing'"):
        load(tmp_path, text.replace("parts", "nothing") % None)


BROKEN: list[Any] = [
    ("import numpy\ndef f(): return numpy.loadtxt('there-is-no-such-file')\n", "FileNotFoundError"),
    ("def f(): return open('there-is-no-such-file')\n", "FileNotFoundError"),
    ("def f():\n    from there_is_no_such_module import x\n    return x\n", "ModuleNotFoundError"),
    ("def f(): return {}['key']\n", "KeyError"),
    ("def f(): return 1 / 0\n", "ZeroDivisionError"),
]


@pytest.mark.parametrize("code, message", BROKEN)
def test_mistakes_in_files_beside_the_config(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], code: str, message: str
) -> None:
    module = "broken_helper_%d" % BROKEN.index((code, message))
    (tmp_path / (module + ".py")).write_text(code)
    config = tmp_path / "my.config"
    config.write_text(
        "#!returnn\nimport %s\nextern_data = {'data': {'dim': 3}}\n"
        "def get_network(epoch, **kwargs):\n    return %s.f()\n" % (module, module)
    )
    assert main(["check", str(config)]) == 2
    err = capsys.readouterr().err
    assert "%s.py:" % module in err and message in err and "bug" not in err and "Traceback" not in err
