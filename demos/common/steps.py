"""The steps of a demo: commands which are printed, so that they can be repeated by hand."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPUTING = re.compile(
    r"train epoch \d+, finished after (\d+) steps?, (\d+):(\d+):(\d+) elapsed \(([\d.]+)% computing time\)"
)


class StepFailed(Exception):
    """A command ended with an error, which it printed itself."""


class Steps:
    """Runs the commands of a demo.

    :param folder: of the demo, with its configs and programs
    :param work: working directory; results go to out/ in it
    """

    def __init__(self, folder: str, work: str) -> None:
        self.folder = folder
        self.work = os.path.abspath(work)
        self.started = time.monotonic()
        #: title -> seconds
        self.seconds: dict[str, float] = {}
        self._computing: list[tuple[float, float]] = []  # seconds of an epoch, and its share of computing, percent
        os.makedirs(os.path.join(self.work, "out"), exist_ok=True)

    def out(self, name: str) -> str:
        """Return the path of a result."""
        return os.path.join(self.work, "out", name)

    def remove_products(self, pattern: str) -> None:
        """Delete what an earlier run of the demo left, and nothing else."""
        for name in os.listdir(os.path.join(self.work, "out")):
            if re.fullmatch(pattern, name):
                path = self.out(name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def returnn(self, title: str, *arguments: str, environment: Optional[Mapping[str, str]] = None) -> str:
        """Run ``returnn-tf`` with these arguments; a name of a config is one of the demo's folder."""
        words = [os.path.join(self.folder, word) if word.endswith(".config") else word for word in arguments]
        return self.step(title, ["-m", "returnn_tf", *words], environment)

    def script(self, title: str, name: str, *arguments: str) -> str:
        """Run one of the demo's programs."""
        return self.step(title, [os.path.join(self.folder, name), *arguments])

    def step(self, title: str, command: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> str:
        """Run Python with these arguments in the working directory, with its output shown.

        :return: the output
        :raises StepFailed: the command failed
        """
        given = ["%s=%s" % entry for entry in (environment or {}).items()]
        shown = [os.path.relpath(word, self.work) if os.path.isabs(word) else word for word in command]
        print("\n=== %s\n$ %s" % (title, " ".join([*given, shlex.join(["python", *shown])])), flush=True)
        path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        everything = {**os.environ, **(environment or {}), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        start = time.monotonic()
        lines: list[str] = []
        pipe, merged = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(
            [sys.executable, *command], cwd=self.work, env=everything, stdout=pipe, stderr=merged, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        if process.returncode != 0:
            raise StepFailed("exit code %d" % process.returncode)
        self.seconds[title] = time.monotonic() - start
        self._note_computing("".join(lines))
        return "".join(lines)

    def _note_computing(self, output: str) -> None:
        for _, hours, minutes, seconds, share in COMPUTING.findall(output):
            self._computing.append((int(hours) * 3600 + int(minutes) * 60 + int(seconds) + 0.5, float(share)))

    @property
    def computing_share(self) -> float:
        """Return the computing time in percent of the time of the training, by the log; compiling is no part of it."""
        total = sum(seconds for seconds, _ in self._computing)
        return sum(seconds * share for seconds, share in self._computing) / total if total else 100.0

    def summary(self) -> str:
        """Return how long everything took, by the clock and on the CPUs, and the share of computing time."""
        total = time.monotonic() - self.started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        longest = sorted(self.seconds.items(), key=lambda entry: -entry[1])[:4]
        parts = ", ".join("%s %s" % (title, minutes(seconds)) for title, seconds in longest)
        return "done in %s (%s), CPU time %s; computing time %.1f %% of the training" % (
            minutes(total),
            parts,
            minutes(used.ru_utime + used.ru_stime),
            self.computing_share,
        )


def minutes(seconds: float) -> str:
    """Return a duration as m:ss."""
    return "%d:%02d" % divmod(round(seconds), 60)
