"""`returnn-tf completion`: the script for bash completes in a real bash; those for others have the same words."""

from __future__ import annotations

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
    "returnn-tf explain hor": {"horovod"},
    "returnn-tf check --st": {"--strict"},
    "returnn-tf new x --ki": {"--kind"},
    "returnn-tf new x --kind h": {"hybrid"},
    "returnn-tf tool hdf-dump-": {"hdf-dump-translation-dataset"},
    "returnn-tf my.config --sa": {"--sanity"},
    "returnn-tf my.config ++num_ep": {"++num_epochs"},
    "returnn-tf my.config ++task sea": {"search"},
    "returnn-tf check my.c": {"my.config"},
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


def test_others_have_the_same_words() -> None:
    words = collect()
    assert set(words.commands) == set(COMMANDS.names())
    assert bash(words).partition("\n")[2] in zsh(words) and "bashcompinit" in zsh(words)
    text = fish(words)
    assert all("-a %s -d " % name in text for name in words.commands)
    assert "-l kind -x -a 'ctc attention" in text and "++num_epochs" in text and "softmax_over_spatial" in text
    assert all(
        line.startswith(("#", "complete -c returnn-tf ")) and line.count("'") % 2 == 0 for line in text.splitlines()
    )


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == bash(collect()) + "\n"
    assert main(["completion", "bsh"]) == 2
    assert "for which shell: bash, zsh, fish? Did you mean 'bash'?" in capsys.readouterr().err
    assert main(["completion"]) == 2
