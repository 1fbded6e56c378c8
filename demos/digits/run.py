#!/usr/bin/env python3
"""The digit-line demos from the scanned digits to the pictures; without arguments what ``make demo`` runs.

    python run.py                 digits.config: a BLSTM with CTC
    python run.py attention       attention.config: an attention decoder with beam search
    python run.py mdlstm          mdlstm.config: a multi-dimensional LSTM over the image with CTC
    python run.py NAME            NAME.config, likewise

Composes the lines if they are not there, trains, reads the held-out lines and draws. Each step is a command of its own,
which is printed, so that it can be repeated by hand. Everything goes to the directory out/ below the working directory
(``--work``, by default where this file is); what an earlier run of the same demo left there is replaced.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import decode
import h5py

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DEFAULT = "digits"
CTC = (DEFAULT, "mdlstm")  # the configs which are read by the best label of each column; the others search
SETS = ("train.hdf", "dev.hdf", "heldout.hdf")


class StepFailed(Exception):
    """A command ended with an error, which it printed itself."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("exit code %d" % exit_code)
        self.exit_code = exit_code


class Demo(NamedTuple):
    """One run of one demo.

    :param name: the config is ``<name>.config``
    :param work: working directory, absolute; results go to out/ in it
    :param compose_options: arguments of tools/compose_digit_lines.py
    :param train_options: further arguments of the training
    """

    name: str
    work: str
    compose_options: Sequence[str]
    train_options: Sequence[str]

    @property
    def config(self) -> str:
        """Return the path of the config."""
        return os.path.join(HERE, self.name + ".config")

    def out(self, name: str) -> str:
        """Return the path of a result."""
        return os.path.join(self.work, "out", name)

    def product(self, name: str) -> str:
        """Return the path of a result named after the demo; the results of the default demo have short names."""
        return self.out(name if self.name == DEFAULT else "%s_%s" % (self.name, name))

    def step(self, title: str, *command: str) -> float:
        """Run one Python program in the working directory with its output shown.

        :return: seconds
        :raises StepFailed: the command failed
        """
        shown = [shortest_path(word, self.work) if os.path.isabs(word) else word for word in command]
        print("\n=== %s\n$ %s" % (title, shlex.join(["python", *shown])), flush=True)
        path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        start = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, *command], cwd=self.work, env=environment, check=False)
        if done.returncode != 0:
            raise StepFailed(done.returncode)
        return time.monotonic() - start

    def task(self, title: str, *arguments: str) -> float:
        """Run the program with the config of the demo, see :func:`step`."""
        return self.step(title, "-m", "returnn_tf", self.config, *arguments)

    def remove(self, *names: str) -> None:
        """Delete products of an earlier run, and nothing else."""
        for path in map(self.product, names):
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.remove(path)


def compose(demo: Demo) -> None:
    """Compose the lines."""
    tool = os.path.join(ROOT, "tools", "compose_digit_lines.py")
    demo.step("compose lines out of the scanned digits", tool, "out", *demo.compose_options)


def lines_are_there(demo: Demo) -> bool:
    """Return whether an earlier run composed lines with the same options."""
    paths = [demo.out(name) for name in SETS]
    if not all(os.path.exists(path) for path in paths):
        return False
    wanted = dict(zip(demo.compose_options[::2], demo.compose_options[1::2]))
    with h5py.File(paths[0], "r") as file:
        return int(file.attrs["numSeqs"]) == int(wanted.get("--train", 18000))


def run_ctc(demo: Demo) -> tuple[float, list[decode.Recognised]]:
    """Read with the best label of each column.

    :return: seconds of the training, and what was read
    """
    demo.remove("model", "learning_rates", "eval_scores", "forward.hdf", "learning_curve.png", "recognised.png")
    if demo.name == DEFAULT or not lines_are_there(demo):
        compose(demo)
    seconds = demo.task("train", *demo.train_options)
    demo.task("evaluate", "++task", "eval")
    demo.task("forward the held-out lines", "++task", "forward")
    demo.step("draw", os.path.join(HERE, "draw.py"), "out", *([] if demo.name == DEFAULT else [demo.name]))
    return seconds, decode.recognise(demo.out("heldout.hdf"), demo.product("forward.hdf"))


def run_search(demo: Demo) -> tuple[float, list[decode.Recognised]]:
    """Read with the beam search of a config that has the layer names of attention.config.

    :return: seconds of the training, and what was read
    """
    demo.remove("model", "learning_rates", "search.py", "learning_curve.png", "recognised.png")
    if not lines_are_there(demo):
        compose(demo)
    seconds = demo.task("train", *demo.train_options)
    found = demo.product("search.py")
    demo.task(
        "search in the held-out lines",
        *("++task", "search", "++search_output_file", found, "++search_output_file_format", "py"),
    )
    demo.step("draw", os.path.join(HERE, "draw.py"), "out", demo.name)
    if demo.name == "attention":
        demo.step("draw the attention weights", os.path.join(HERE, "draw_attention.py"), demo.config)
    return seconds, decode.recognise_by_search(demo.out("heldout.hdf"), found)


def run(demo: Demo) -> float:
    """Run all steps of a demo.

    :return: the label error rate on the held-out lines, percent
    """
    start = time.monotonic()
    os.makedirs(os.path.join(demo.work, "out"), exist_ok=True)
    seconds, recognised = (run_ctc if demo.name in CTC else run_search)(demo)
    error = decode.label_error_rate(recognised)
    num_digits = sum(len(line.reference) for line in recognised)
    num_errors = sum(line.num_errors for line in recognised)
    print("\n=== done in %s, of which training took %s" % (minutes(time.monotonic() - start), minutes(seconds)))
    print(
        "label error rate: %.2f %% (%d edits in %d digits of %d held-out lines)"
        % (error, num_errors, num_digits, len(recognised))
    )
    pictures = {"learning curve": "learning_curve.png", "recognised lines": "recognised.png"}
    shown = {what: demo.product(name) for what, name in pictures.items()}
    if demo.name == "attention":
        shown["attention weights"] = demo.out("attention.png")
    for what, path in shown.items():
        print("%-18s %s" % (what + ":", shortest_path(path, os.curdir)))
    return error


def shortest_path(path: str, start: str) -> str:
    """Return the absolute path, or the relative one if that is shorter."""
    return min(path, os.path.relpath(path, start), key=len)


def minutes(seconds: float) -> str:
    """As m:ss."""
    return "%d:%02d" % divmod(round(seconds), 60)


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default=DEFAULT, help="of the config, without .config (default %(default)s)")
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument("--quick", action="store_true", help="few lines, two epochs: only shows that all steps work")
    parser.add_argument("--require", type=float, metavar="PERCENT", help="fail if the label error rate is above")
    args = parser.parse_args()
    compose_options = ["--train", "90", "--dev", "10", "--heldout", "20"] if args.quick else []
    train_options = ["++num_epochs", "2"] if args.quick else []
    demo = Demo(args.name, os.path.abspath(args.work), compose_options, train_options)
    if not os.path.isfile(demo.config):
        names = sorted(name[: -len(".config")] for name in os.listdir(HERE) if name.endswith(".config"))
        parser.error("there is no %s; there are: %s" % (demo.config, ", ".join(names)))
    try:
        error = run(demo)
    except StepFailed as failed:
        print("the demo ends here: the last command failed (%s)" % failed, file=sys.stderr)
        return failed.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if args.require is not None and error > args.require:
        print("the label error rate is above %g %%" % args.require, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
