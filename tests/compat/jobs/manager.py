"""What a job manager does: writes a config as text, runs a script of the root in a clean environment, reads files back.

This follows the contracts of i6_core's jobs under Sisyphus; nothing of them is imported.
"""

from __future__ import annotations

import json
import os
import pathlib
import pprint
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.cli.main import main
from returnn_tf.logging.log import log

CHECKOUT = pathlib.Path(__file__).parents[3]
ROOT = CHECKOUT / "i6"
#: What a worker keeps of the environment of its user.
_KEPT = ("CUDA_VISIBLE_DEVICES", "HOME", "PWD", "TMP", "TMPDIR", "USER")


class Code(str):
    """A value of a config that is written as it is."""

    def __repr__(self) -> str:
        return str(self)


def environment(**others: str) -> dict[str, str]:
    """Return the environment of a worker: no PYTHONPATH, no virtual environment, no settings of ours."""
    env = {key: os.environ[key] for key in _KEPT if key in os.environ}
    env.update(LANG="en_US.UTF-8", PATH="/usr/local/bin:/usr/bin:/bin", SHELL="/bin/bash")
    env.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", **others)
    return env


def config_text(
    config: Mapping[str, Any], *, prolog: str = "", epilog: str = "", as_json: Optional[Mapping[str, Any]] = None
) -> str:
    """Return the text of a config: sorted keys, values by their ``repr``.

    :param as_json: further values, given as JSON
    """
    lines = ["%s = %s" % (key, pprint.pformat(config[key])) for key in sorted(config)]
    if as_json is None:
        rest = ["", "config = {}"]
    else:
        rest = ["", "import json", "config = json.loads(%s)" % json.dumps(json.dumps(as_json))]
    parts = ["#!rnn.py", "", prolog, *lines, *rest, "", "locals().update(**config)", "", epilog]
    return "\n".join(parts) + "\n"


#: What a config with staged networks begins with; the networks are in the folder beside it.
STAGED = """
import os
import sys
sys.path.insert(0, os.path.dirname(__file__))

def get_network(epoch, **kwargs):
  from networks import networks_dict
  for epoch_ in sorted(networks_dict.keys(), reverse=True):
    if epoch_ <= epoch:
      return networks_dict[epoch_]
  assert False, "Error, no networks found"
"""


def write_networks(folder: pathlib.Path, networks: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the networks by first epoch, each into a file."""
    (folder / "networks").mkdir()
    init = []
    for epoch, network in networks.items():
        text = "network = %s\n" % pprint.pformat(dict(network))
        (folder / "networks" / ("network_%i.py" % epoch)).write_text("#!rnn.py\n" + text)
        init.append("from .network_%i import network as network_%i" % (epoch, epoch))
    init.append("networks_dict = {%s}" % ", ".join("%i: network_%i" % (epoch, epoch) for epoch in networks))
    (folder / "networks" / "__init__.py").write_text("\n".join(init) + "\n")


def run(script: str, *args: str, folder: pathlib.Path, **others: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the root in a folder, as a task of a job does.

    :param script: path below the root
    :param others: further variables of the environment
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(ROOT / script), *args]
    env = environment(**others)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@dataclass
class Job:
    """A job with its folders: ``output`` with the config, ``work`` in which its tasks run.

    :param in_process: run the program in this process, which is quicker; the environment is then that of the tests
    """

    folder: pathlib.Path
    in_process: bool = False

    def __post_init__(self) -> None:
        for part in ("work", "output"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)

    @property
    def work(self) -> pathlib.Path:
        """Return the working directory."""
        return self.folder / "work"

    @property
    def output(self) -> pathlib.Path:
        """Return the folder of the outputs."""
        return self.folder / "output"

    def write(self, text: str) -> str:
        """Write the config; return its path."""
        path = self.output / "returnn.config"
        path.write_text(text)
        return str(path)

    def run(self, *args: str, code: int = 0) -> str:
        """Run the config in the working directory; return what was logged.

        :param args: after the config
        :param code: the exit code to expect
        """
        command = [str(self.output / "returnn.config"), *args]
        if self.in_process:
            before = os.getcwd()
            os.chdir(self.work)
            try:
                found, errors = main(command), ""
            finally:
                os.chdir(before)
                log.configure()
        else:
            done = run("rnn.py", *command, folder=self.work)
            found, errors = done.returncode, done.stderr + done.stdout
        assert found == code, errors
        return (self.work / "returnn.log").read_text()


class EpochData(dict[str, Any]):
    """What learning-rate files are evaluated with."""

    def __init__(self, learningRate: float, error: dict[str, float]) -> None:
        super().__init__(learning_rate=learningRate, error=error)


def learning_rates(path: pathlib.Path) -> dict[int, Any]:
    """Return the epochs of a learning-rate file as jobs read it."""
    names = {"EpochData": EpochData, "nan": float("nan"), "inf": float("inf")}
    result: dict[int, Any] = eval(path.read_text(), names)
    return result


def delete_other_epochs(models: pathlib.Path, kept: Collection[int]) -> set[int]:
    """Delete the files of all epochs but those, as ReturnnTrainingJob does at its end; return the epochs it had."""
    found = set()
    for path in models.iterdir():
        if path.is_file() and path.name.startswith("epoch."):
            parts = path.name.split(".")
            epoch = int(parts[2 if parts[1] == "pretrain" else 1])  # no file may have another name
            found.add(epoch)
            if epoch not in kept:
                path.unlink()
    return found


def best_checkpoint(models: pathlib.Path, rates: pathlib.Path, key: str, to: pathlib.Path) -> int:
    """Link the checkpoint of the best epoch by a key, as GetBestTFCheckpointJob does; return the epoch."""
    scores = {epoch: data["error"][key] for epoch, data in learning_rates(rates).items() if key in data["error"]}
    best = min(scores, key=lambda epoch: scores[epoch])
    to.mkdir()
    for suffix in ("index", "meta", "data-00000-of-00001"):
        os.link(models / ("epoch.%03d.%s" % (best, suffix)), to / ("checkpoint." + suffix))
    return best
