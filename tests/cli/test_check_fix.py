"""returnn-tf check --fix: certain suggestions are written into the config; anything else stays as it is."""

from __future__ import annotations

import os
import stat

import pytest

from returnn_tf.cli.main import main
from returnn_tf.config.errors import did_you_mean

CONFIG = """behavior_version = 30
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
num_epochs = 3
optimizer = {"class": "adam", 'epsilon': 1e-8}
network = {
    "ä": dict({"class": "x"}, **{"class": "linear", "n_out": 4, "activation": "tanh", "from": "data"}),
    "r": {"class": "rec", "unit": "lstm", "n_out": 3, "from": "ä"},
    "output": {"class": "softmax", "loss": "ce", "loss_opts": {"focal_loss_factor": 3}, "from": "r"},
}
network["output"]["target"] = "classes"
"""

#: What is right in CONFIG -> what is written instead.
FIXED = {
    "name of a setting": {"num_epochs": "num_epohcs"},
    "class of an optimizer": {'"adam"': '"adm"'},
    "option of an optimizer, in its quotes": {"'epsilon'": "'epsilonn'"},
    "option of a layer": {'"unit"': '"untit"'},
    "class of a layer": {'"softmax"': '"sofmtax"'},
    "unit": {'"lstm"': '"lsmt"'},
    "option that is assigned": {'["target"] = "classes"': '["targte"] = "classes"'},
    "many, of which one hides others": {
        "num_epochs": "num_epohcs",
        '"adam"': '"adm"',
        "'epsilon'": "'epsilonn'",
        '"unit"': '"untit"',
        '"softmax"': '"sofmtax"',
    },
}
LEFT = {
    "layer": {'"from": "r"': '"from": "rr"'},
    "option that is far away": {"focal_loss_factor": "focal_los"},
    "option in two dicts that are alike": {
        '"r": {"class": "rec", "unit": "lstm"': '"r": {"class": "rec", "untit": "lstm"',
        "network[": 'more = {"r": {"class": "rec", "untit": "lstm", "n_out": 3, "from": "ä"}}\nnetwork[',
    },
    "setting that occurs elsewhere": {"num_epochs = 3": "num_epohcs = 3  # not num_epohcs = 5"},
    "setting that is also there as it should be": {"num_epochs = 3": "num_epohcs = 3\nnum_epochs = 5"},
    "option that is also there as it should be": {'"unit": "lstm"': '"unit": "lstm", "untit": "gru"'},
    "assigned option that is also there": {
        '"loss": "ce"': '"loss": "ce", "target": "classes"',
        '["target"] =': '["targte"] =',
    },
    "value that code makes": {'"adam"': '"ad" + "m"'},
    "class with two nearest names": {'"softmax"': '"con"'},
    "number in a name": {'"n_out": 3': '"n_out": 3, "L3": 0.1'},
}


def _write(path, changes):
    text = CONFIG
    for right, wrong in changes.items():
        assert right in text
        text = text.replace(right, wrong)
    path.write_bytes(text.encode("utf8"))
    return text


@pytest.mark.parametrize("name", FIXED)
def test_fixed(name, tmp_path, capsys):
    """The config is as it was before the mistakes; the copy has them, and the difference is shown."""
    path = tmp_path / "my.config"
    wrong = _write(path, FIXED[name])
    assert main(["check", "--fix", str(path)]) == 0
    out = capsys.readouterr().out
    assert path.read_text("utf8") == CONFIG and (tmp_path / "my.config.orig").read_text("utf8") == wrong
    assert "corrected; %s is kept as %s.orig" % (path, path) in out
    assert {line[1:] for line in out.splitlines() if line.startswith("+ ")} <= set(CONFIG.splitlines())


@pytest.mark.parametrize("name", LEFT)
def test_left(name, tmp_path, capsys):
    """What is not certain is reported as without --fix, and the file is not touched."""
    path = tmp_path / "my.config"
    _write(path, LEFT[name])
    before = path.stat()
    code = main(["check", "--fix", str(path)])
    captured = capsys.readouterr()
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert os.listdir(tmp_path) == ["my.config"] and "0 names corrected" in captured.out
    assert main(["check", str(path)]) == code
    assert capsys.readouterr().err.splitlines()[-1] == captured.err.splitlines()[-1]


def test_file_stays_what_it_is(tmp_path, capsys):
    """Ends of lines, encoding, permissions and links remain; copies are numbered."""
    path, link = tmp_path / "my.config", tmp_path / "link.config"
    text = "# -*- coding: latin-1 -*-\n# ä\n" + _write(path, {'"unit"': '"untit"'})
    path.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
    path.chmod(0o640)
    link.symlink_to(path)
    (tmp_path / "link.config.orig").write_text("older")
    assert main(["check", "--fix", str(link)]) == 0
    assert path.read_bytes() == text.replace("untit", "unit").replace("\n", "\r\n").encode("latin-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and link.is_symlink()
    assert (tmp_path / "link.config.orig").read_text() == "older" and (tmp_path / "link.config.orig2").exists()


def test_older_names(tmp_path, capsys):
    """With --migrate, older names of classes and settings are replaced, too."""
    path = tmp_path / "my.config"
    old = CONFIG.replace('"r": {', '"h": {"class": "hidden", "from": "r", "loss": "as_is"},\n    "r": {')
    old += "newbob_learning_rate_decay = 0.5\n"
    path.write_text(old, "utf8")
    main(["check", "--fix", str(path)])
    assert path.read_text("utf8") == old
    main(["check", "--fix", "--migrate", str(path)])
    new = old.replace("hidden", "linear").replace("newbob_learning_rate_decay", "learning_rate_decay")
    assert path.read_text("utf8") == new


def test_file_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    """It is named, and stays as it is."""
    path = tmp_path / "my.config"
    text = _write(path, {'"unit"': '"untit"'})

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copy2", fail)
    assert main(["check", "--fix", str(path)]) == 2
    assert "--fix can't write %s: No space left" % path in capsys.readouterr().err
    assert path.read_text("utf8") == text


def test_with_json(capsys):
    """One standard output can't have both."""
    assert main(["check", "--fix", "--json", "my.config"]) == 2
    assert "--fix and --json don't go together" in capsys.readouterr().err


def test_several_spellings():
    """Where several names are equally near, all are named, and none of them is certain."""
    assert did_you_mean("abcx", ["abcd", "abce", "other"]) in (
        "Did you mean 'abcd' or 'abce'?",
        "Did you mean 'abce' or 'abcd'?",
    )
