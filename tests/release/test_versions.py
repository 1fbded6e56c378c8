"""`make test-versions`: which pairs and interpreters it takes, how it counts, what it writes."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from returnn_tf.cli import doctor

CHECKOUT = Path(__file__).parents[2]
HERE = "%d.%d" % sys.version_info[:2]


def load() -> Any:
    """Import the script, which is in no package."""
    spec = importlib.util.spec_from_file_location("release_versions", CHECKOUT / "release" / "versions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


versions = load()


def test_pairs() -> None:
    """Without names a choice, in which each release and each Python is."""
    chosen = versions.find_pairs(versions.CHOSEN)
    assert {pair.tensorflow for pair in chosen} == set(versions.RELEASES)
    assert {pair.python for pair in chosen} == {"3.9", "3.10", "3.11", "3.12", "3.13"}
    assert [str(pair) for pair in versions.find_pairs(["2.21/3.13"])] == ["2.21/3.13"]
    assert len(versions.find_pairs(["all"])) == 25
    with_faults = [pair.tensorflow for pair in versions.find_pairs(versions.CHOSEN_FOR_FAULTS)]
    assert with_faults[0] == min(versions.RELEASES) and with_faults[-1] == max(versions.RELEASES)
    with pytest.raises(versions.Problem, match="no pair '2.16/3.13'; there are: all, 2.16/3.9, "):
        versions.find_pairs(["2.16/3.13"])


def test_the_same_ranges_everywhere() -> None:
    """In pyproject.toml, doctor, the Makefile and the README."""
    releases = [tuple(map(int, release.split("."))) for release in versions.RELEASES]
    pythons = {tuple(map(int, name.split("."))) for names in versions.RELEASES.values() for name in names.split()}
    assert (min(releases), max(releases)) == doctor._TENSORFLOWS
    assert (min(pythons), max(pythons)) == doctor._PYTHONS
    project = (CHECKOUT / "pyproject.toml").read_text()
    above = "2.%d" % (max(releases)[1] + 1)
    assert len(re.findall(r'"tensorflow.*>=2\.16\.\d+,<%s"' % re.escape(above), project)) == 2
    assert 'requires-python = ">=%d.%d,<%d.%d"' % (*min(pythons), max(pythons)[0], max(pythons)[1] + 1) in project
    listed = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    assert {tuple(map(int, name.split("."))) for name in listed} == pythons
    makefile, readme = (CHECKOUT / "Makefile").read_text(), (CHECKOUT / "README.md").read_text("utf8")
    assert "(%d, %d) <= sys.version_info[:2] <= (%d, %d)" % (*min(pythons), *max(pythons)) in makefile
    assert "Python %d.%d \u2013 %d.%d" % (*min(pythons), *max(pythons)) in readme


def test_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the PATH, pyenv and uv, the first that has the version and runs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert versions.find_interpreter(HERE) == sys.executable
    assert versions.find_interpreter("3.99") is None
    monkeypatch.setattr(versions.sys, "executable", "/no/such/python")
    real = "#!/bin/sh\nexec '%s' \"$@\"\n" % os.path.realpath(sys.prefix + "/bin/python")
    uv = tmp_path / "uv"
    _script(tmp_path / "of-uv", real)
    _script(uv, '#!/bin/sh\n[ "$UV_PYTHON_DOWNLOADS $4" = "never %s" ] && echo %s\n' % (HERE, tmp_path / "of-uv"))
    assert versions.find_interpreter(HERE) == str(tmp_path / "of-uv")
    pyenv = tmp_path / "pyenv" / "versions" / (HERE + ".7") / "bin" / "python"
    _script(pyenv, real)
    assert versions.find_interpreter(HERE) == str(pyenv)
    _script(pyenv, "#!/bin/sh\nexit 1\n")
    assert versions.find_interpreter(HERE) == str(tmp_path / "of-uv")
    _script(tmp_path / ("python" + HERE), real)
    assert versions.find_interpreter(HERE) == str(tmp_path / ("python" + HERE))


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_missing_interpreter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told; an error only if the pair was asked for."""
    monkeypatch.setattr(versions, "find_interpreter", lambda version: None)
    assert versions.main(["2.21/3.13"]) == 2
    assert "2.21/3.13: left out, no Python 3.13 was found" in capsys.readouterr().out
    assert versions.main([]) == 0
    assert versions.main(["--faults"]) == 0 and versions.main(["--faults", "2.21/3.13"]) == 2
    assert versions.main(["2.3/2.7"]) == 2


def test_the_core_exists() -> None:
    paths = [path for part in versions.CORE.values() for path in part] + [versions.FAULTS]
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []


def test_faults_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line on how long they took."""
    monkeypatch.setattr(versions, "FOLDER", tmp_path)
    monkeypatch.setattr(versions, "FAULTS", str(tmp_path / "test_x.py"))
    monkeypatch.setattr(versions, "make_environment", lambda pair, interpreter, log: interpreter)
    test = (
        "import pytest\nprint('3 faults of ranks: x')\n"
        "@pytest.mark.long\n@pytest.mark.parametrize('code', [%s])\n"
        "def test_x(code):\n    exec(code)\n"
    )
    pair = versions.Pair("2.21", "3.13")
    for codes, expected in (
        ("'1', 'pytest.skip()'", ("1, 1 skipped; 3 faults of ranks: x", False)),
        ("'1', '1 / 0'", ("1, 1 failed; 3 faults of ranks: x", True)),
        ("'pytest.skip()'", ("0, 1 skipped; 3 faults of ranks: x", True)),
    ):
        (tmp_path / "test_x.py").write_text(test % codes)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: x\naddopts = -s\n")
        assert versions.run_faults(pair, sys.executable) == expected


REPORT = """<testsuites><testsuite>
  <testcase classname="tests.tensor.test_dim" name="a"/>
  <testcase classname="tests.native.test_lstm" name="a"/>
  <testcase classname="tests.native.test_lstm" name="b"><failure message="no"/></testcase>
  <testcase classname="tests.native.test_lstm" name="c"><skipped message="no GPU"/></testcase>
  <testcase classname="tests.native.test_lstm_other" name="a"/>
  <testcase classname="" name="tests.layers.rec.test_x"><error message="collection failure"/></testcase>
</testsuite></testsuites>"""


def test_report() -> None:
    cells, failed = versions.read_report(REPORT)
    found = dict(zip(versions.CORE, cells))
    assert failed and found["tensor, config"] == "1" and found["native ops"] == "1, 1 failed, 1 skipped"
    assert found["layers"] == "0, 1 failed" and found["engine"] == "0"
    whole = "".join(
        '<testcase classname="%s.x" name="a"/>' % paths[0].replace(".py", "").replace("/", ".")
        for paths in versions.CORE.values()
    )
    assert versions.read_report("<t>%s</t>" % whole) == (["1"] * len(versions.CORE), False)


def test_rows() -> None:
    """A row replaces that of the same pair, and the table is sorted by numbers."""

    def row(*first: str) -> list[str]:
        return [*first, *["1"] * (len(versions.HEAD) - len(first))]

    page = "a\n" + versions.START + versions.END + "b\n"
    for first in (("2.16.2", "3.11.7"), ("2.16.2", "3.9.18"), ("2.9.0", "3.12.1"), ("2.16.3", "3.11.8", "changed")):
        page = versions.with_row(page, row(*first))
    assert page.startswith("a\n" + versions.START + "| TensorFlow | Python |") and page.endswith(versions.END + "b\n")
    found = re.findall(r"(?m)^\| (2\.\S+) \| (\S+) \| (\S+)", page)
    assert found == [("2.9.0", "3.12.1", "1"), ("2.16.2", "3.9.18", "1"), ("2.16.3", "3.11.8", "changed")]
