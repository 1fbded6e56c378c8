#!/usr/bin/env python3
"""The digit-line demo from the scanned digits to the pictures: what ``make demo`` runs.

Composes the lines, trains, evaluates, forwards the held-out lines and draws. Each step is a command of its own, which
is printed, so that it can be repeated by hand. Everything goes to the directory out/ below the working directory
(``--work``, by default where this file is); what an earlier run left there is replaced.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from typing import List, Sequence

import decode

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CONFIG = os.path.join(HERE, "digits.config")
PRODUCTS = ("model", "learning_rates", "eval_scores", "forward.hdf", "learning_curve.png", "recognised.png")


class StepFailed(Exception):
    """A command ended with an error, which it printed itself."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("exit code %d" % exit_code)
        self.exit_code = exit_code


def step(title: str, command: Sequence[str], work: str) -> float:
    """Runs one command in the directory ``work`` with its output shown.

    :return: seconds
    :raises StepFailed: the command failed
    """
    shown = [shortest_path(word, work) if os.path.isabs(word) else word for word in command[1:]]
    print("\n=== %s\n$ %s" % (title, shlex.join(["python", *shown])), flush=True)
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    start = time.monotonic()
    done = subprocess.run(command, cwd=work, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode != 0:
        raise StepFailed(done.returncode)
    return time.monotonic() - start


def remove_products(out: str) -> None:
    """Deletes what an earlier run of the demo left, and nothing else."""
    for name in PRODUCTS:
        path = os.path.join(out, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)


def returnn(*arguments: str) -> List[str]:
    """The command line of the program with the config of the demo."""
    return [sys.executable, "-m", "returnn_tf", CONFIG, *arguments]


def run(work: str, compose_options: Sequence[str], train_options: Sequence[str]) -> float:
    """All steps.

    :return: the label error rate on the held-out lines, percent
    """
    start = time.monotonic()
    out = os.path.join(work, "out")
    os.makedirs(out, exist_ok=True)
    remove_products(out)
    compose = [sys.executable, os.path.join(ROOT, "tools", "compose_digit_lines.py"), "out", *compose_options]
    step("compose lines out of the scanned digits", compose, work)
    seconds = step("train", returnn(*train_options), work)
    step("evaluate", returnn("++task", "eval"), work)
    step("forward the held-out lines", returnn("++task", "forward"), work)
    step("draw", [sys.executable, os.path.join(HERE, "draw.py"), "out"], work)
    recognised = decode.recognise(os.path.join(out, "heldout.hdf"), os.path.join(out, "forward.hdf"))
    error = decode.label_error_rate(recognised)
    num_digits = sum(len(line.reference) for line in recognised)
    num_errors = sum(line.num_errors for line in recognised)
    print("\n=== done in %s, of which training took %s" % (minutes(time.monotonic() - start), minutes(seconds)))
    print(
        "label error rate: %.2f %% (%d edits in %d digits of %d held-out lines)"
        % (error, num_errors, num_digits, len(recognised))
    )
    for name, what in [("learning_curve.png", "learning curve"), ("recognised.png", "recognised lines")]:
        print("%-17s %s" % (what + ":", shortest_path(os.path.join(out, name), os.curdir)))
    return error


def shortest_path(path: str, start: str) -> str:
    """The absolute path, or the one relative to a directory if that is shorter."""
    return min(path, os.path.relpath(path, start), key=len)


def minutes(seconds: float) -> str:
    """As m:ss."""
    return "%d:%02d" % divmod(round(seconds), 60)


def main() -> int:
    """Entry point.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument("--quick", action="store_true", help="few lines, two epochs: only shows that all steps work")
    parser.add_argument("--require", type=float, metavar="PERCENT", help="fail if the label error rate is above")
    args = parser.parse_args()
    compose_options = ["--train", "90", "--dev", "10", "--heldout", "20"] if args.quick else []
    train_options = ["++num_epochs", "2"] if args.quick else []
    try:
        error = run(os.path.abspath(args.work), compose_options, train_options)
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
