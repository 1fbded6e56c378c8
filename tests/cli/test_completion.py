"""`returnn-tf completion`: the script for bash completes in a real bash; those for others have the same words."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from returnn_tf.cli.commands import COMMANDS
from returnn_tf.cli.completion import bash, collect, fish, zsh
from returnn_tf.cli.main import main

CASES = {
    "returnn-tf che": {"check"},
    "returnn-tf exp": {"explain", "export"},
    "returnn-tf layers soft": {"softmax", "softmax_over_spatial"},
    "returnn-tf explain dis": {"distributed"},
    "returnn-tf check --st": {"--strict"},
    "returnn-tf tra": {"train", "transcribe"},
    "returnn-tf transcribe m --seg": {"--segment"},
    "returnn-tf doctor --q": {"--quick"},
    "returnn-tf new x --ki": {"--kind"},
    "returnn-tf new x --kind h": {"hybrid"},
    "returnn-tf tool hdf-dump-": {"hdf-dump-translation-dataset"},
    "returnn-tf my.config --sa": {"--sanity"},
    "returnn-tf my.config ++num_ep": {"++num_epochs"},
    "returnn-tf my.config ++task sea": {"search"},
    "returnn-tf check my.c": {"my.config"},
    "returnn-tf my.c": {"my.config"},
    "returnn-tf run my.config --sa": {"--sanity"},
    "returnn-tf export my.config --to onn": {"onnx"},
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash(tmp_path: Path) -> None:
    (tmp_path / "my.config").touch()
    (tmp_path / "script").write_text(bash(collect()))
    program = ["source ./script", "complete -p returnn-tf"]
    for line in CASES:
        program.append('COMP_WORDS=(%s); COMP_CWORD=%d; _returnn_tf; echo "${COMPREPLY[@]}"' % (line, line.count(" ")))
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(program)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    registered, *replies = done.stdout.splitlines()
    assert "-F _returnn_tf returnn-tf" in registered and not done.stderr
    assert {line: set(reply.split()) for line, reply in zip(CASES, replies)} == CASES


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh(tmp_path: Path) -> None:
    """The function that zsh calls, with the words of its line editor; what it offers is cut to those that match."""
    (tmp_path / "my.config").touch()
    (tmp_path / "script").write_text(zsh(collect()))
    program = ["source ./script", "compset() { return 1 }", "compadd() { print -rn -- $matches }"]
    for line in CASES:
        program.append("words=(%s); CURRENT=%d; ${=_comps[returnn-tf]}; print" % (line, line.count(" ") + 1))
    environment = {**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    done = subprocess.run(
        ["zsh", "-f", "-c", "\n".join(program)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    replies = [set(reply.split()) for reply in done.stdout.splitlines()]
    files = {"my.config", "script"}  # zsh itself drops those that do not match
    assert [reply - (files - CASES[line]) for line, reply in zip(CASES, replies)] == list(CASES.values())


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish(tmp_path: Path) -> None:
    (tmp_path / "my.config").touch()
    (tmp_path / "script").write_text(fish(collect()))
    program = ["source ./script", *("complete -C '%s'; echo ==" % line for line in CASES)]
    done = subprocess.run(
        ["fish", "--no-config", "-c", "\n".join(program)],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    replies = [{row.partition("\t")[0] for row in part.splitlines() if row} for part in done.stdout.split("==\n")]
    assert dict(zip(CASES, replies)) == CASES


def test_others_have_the_same_words() -> None:
    words = collect()
    assert set(words.commands) == set(COMMANDS.names())
    assert "bashcompinit" in zsh(words) and "compgen -W" not in zsh(words)
    text = fish(words)
    assert all("-a %s -d " % name in text for name in words.commands)
    assert "-l kind -x -a 'ctc attention" in text and "++num_epochs" in text and "softmax_over_spatial" in text
    assert all(
        line.startswith(("#", "complete -c returnn-tf ")) and line.count("'") % 2 == 0 for line in text.splitlines()
    )


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == bash(collect()) + "\n"
    assert main(["completion", "bahs"]) == 2
    assert "for which shell: bash, zsh, fish? Did you mean 'bash'?" in capsys.readouterr().err
    assert main(["completion"]) == 2
