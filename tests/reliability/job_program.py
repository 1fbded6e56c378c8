"""What the jobs of the tests run instead of a training: a program of some lines that behaves as one, quickly."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: "trains" until a signal comes: then it "saves" (another checkpoint) and exits, as the config says
_PROGRAM = """\
import os, pathlib, signal, sys, time
if sys.argv[1] == "status":
    os.execv(sys.executable, [sys.executable, "-m", "returnn_tf"] + sys.argv[1:])
settings = {}
exec(pathlib.Path(sys.argv[1]).read_text(), settings)
model = pathlib.Path(settings["model"])
saved = len(list(pathlib.Path(".").glob(model.name + ".*.index")))
print("training", sys.argv[1:], "from", saved, flush=True)

def stop(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if settings["saves"]:
        pathlib.Path("%s.%03d.index" % (model, saved + 1)).write_text("")
    sys.exit(128 + number)

signal.signal(signal.SIGUSR1, stop)
signal.signal(signal.SIGTERM, stop)
if settings["stops"]:
    os.kill(os.getpid(), signal.SIGUSR1)
pathlib.Path("ready.%d" % saved).write_text("")
while saved < settings["goal"]:
    time.sleep(0.1)
print("finished", flush=True)
"""


def write_config(path: pathlib.Path, **settings: Any) -> str:
    """Return the config of a job.

    :param settings: goal: checkpoints after which it has finished; saves: whether it makes one when a signal comes;
        stops: whether it sends itself a signal at once
    :return: its name
    """
    settings = {"model": str(path.parent / "net"), "goal": 2, "saves": True, "stops": False, **settings}
    path.write_text("".join("%s = %r\n" % item for item in settings.items()))
    return path.name


def submit(env: dict[str, str], folder: pathlib.Path, *arguments: str) -> str:
    """Submit the job by tools/submit.py; return its id."""
    (folder / "program.py").write_text(_PROGRAM)
    command = [sys.executable, str(ROOT / "tools" / "submit.py"), "--time", "10m", "--mem", "100M"]
    command += ["--program", "%s program.py" % sys.executable, "--env", "PYTHONPATH=%s" % ROOT, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("submitted as job ")
    return done.stdout.split()[3].rstrip(";")
