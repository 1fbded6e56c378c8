#!/usr/bin/env python3
"""The text demo from Python's documentation to error rates.

Makes the lines, trains the language model and the Transformer, searches with the Transformer alone, chooses the weight
of the language model on dev, and searches with both. Each step is a command of its own, which is printed, so that it
can be repeated by hand. Everything goes to the directory out/ below the working directory (``--work``, by default where
this file is); what an earlier run left there is replaced.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Optional

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCALES = ("0", "0.2", "0.4", "0.6")
PRODUCTS = r"(lm|transformer)_(model|learning_rates|search\.txt)|fusion_.*\.txt"
QUICK = ["++num_epochs", "1", "++batch_size", "500"]


class StepFailed(Exception):
    """A command ended with an error, which it printed itself."""


def step(title: str, command: Sequence[str], work: str, environment: Optional[Mapping[str, str]] = None) -> str:
    """Run one command in the directory ``work`` with its output shown.

    :param environment: variables beside those of this process
    :return: the output
    :raises StepFailed: the command failed
    """
    given = ["%s=%s" % entry for entry in (environment or {}).items()]
    shown = [os.path.relpath(word, work) if os.path.isabs(word) else word for word in command[1:]]
    print("\n=== %s\n$ %s" % (title, " ".join([*given, shlex.join(["python", *shown])])), flush=True)
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    everything = {**os.environ, **(environment or {}), "PYTHONPATH": path}
    output: list[str] = []
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=work, env=everything, stdout=pipe, stderr=merged, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    if process.returncode != 0:
        raise StepFailed("exit code %d" % process.returncode)
    return "".join(output)


def remove_products(out: str) -> None:
    """Delete what an earlier run of the demo left, and nothing else."""
    for name in os.listdir(out):
        if re.fullmatch(PRODUCTS, name):
            path = os.path.join(out, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def returnn(config: str, *arguments: str) -> list[str]:
    """Return the command line of the program with a config of the demo."""
    return [sys.executable, "-m", "returnn_tf", os.path.join(HERE, config + ".config"), *arguments]


def number_after(text: str, what: str) -> float:
    """Return the last number in the output of a command that follows these words."""
    return float(re.findall(re.escape(what) + r" ([\d.]+)", text)[-1])


def search(config: str, data: str, work: str, scale: Optional[str] = None) -> float:
    """Search in a dataset with one of the configs.

    :param scale: weight of the language model; None: without
    :return: wrong characters, in percent
    """
    name = "%s_%s.txt" % (config, data if scale is None else "%s_%s" % (data, scale))
    name = "%s_search.txt" % config if data == "eval" else name
    options = ["++task", "search", "++search_data", data, "++search_output_file", os.path.join("out", name)]
    title = "search in %s%s" % (data, "" if scale is None else " with the language model, scale " + scale)
    output = step(title, returnn(config, *options), work, None if scale is None else {"LM_SCALE": scale})
    return number_after(output, "label errors")


def run(
    work: str, corpus_options: Sequence[str], train_options: Sequence[str], scales: Sequence[str]
) -> dict[str, float]:
    """Run all steps.

    :return: name of a figure -> perplexity, or errors on the held-out lines in percent
    """
    out = os.path.join(work, "out")
    os.makedirs(out, exist_ok=True)
    remove_products(out)
    step("make lines", [sys.executable, os.path.join(HERE, "corpus.py"), "out", *corpus_options], work)
    step("what to compare with", [sys.executable, os.path.join(HERE, "baselines.py"), "out"], work)
    step("train the language model", returnn("lm", *train_options), work)
    perplexity = number_after(step("evaluate it", returnn("lm", "++task", "eval"), work), "output/output:exp")
    step("train the Transformer", returnn("transformer", *train_options), work)
    alone = search("transformer", "eval", work)
    on_dev = {scale: search("fusion", "dev", work, scale) for scale in scales}
    best = min(on_dev, key=lambda scale: on_dev[scale])
    fused = search("fusion", "eval", work, best)
    print("\nlanguage model: perplexity %.2f per character" % perplexity)
    print("errors on dev by scale of the language model: %s" % ", ".join("%s: %.2f %%" % x for x in on_dev.items()))
    print(
        "errors on held-out lines: Transformer %.2f %%, with language model (scale %s) %.2f %%" % (alone, best, fused)
    )
    return {"perplexity": perplexity, "transformer": alone, "fusion": fused}


def compare(work: str, *, quick: bool) -> None:
    """Make the lines and run compare.py."""
    os.makedirs(os.path.join(work, "out"), exist_ok=True)
    few = ["--lines", "20"] if quick else []
    step("make lines", [sys.executable, os.path.join(HERE, "corpus.py"), "out", *few], work)
    options = ["--work", work, *(["--quick"] if quick else [])]
    step("compare language models", [sys.executable, os.path.join(HERE, "compare.py"), *options], work)


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument("--quick", action="store_true", help="few lines, one epoch: only shows that all steps work")
    parser.add_argument(
        "--compare", action="store_true", help="instead: train and compare language models with different recurrences"
    )
    args = parser.parse_args()
    start = time.monotonic()
    try:
        if args.compare:
            compare(os.path.abspath(args.work), quick=args.quick)
        elif args.quick:
            run(os.path.abspath(args.work), ["--lines", "20"], QUICK, SCALES[:1])
        else:
            run(os.path.abspath(args.work), [], [], SCALES)
    except StepFailed as failed:
        print("the demo ends here: the last command failed (%s)" % failed, file=sys.stderr)
        return 1
    print("=== done in %d:%02d" % divmod(round(time.monotonic() - start), 60))
    return 0


if __name__ == "__main__":
    sys.exit(main())
