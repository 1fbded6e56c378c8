#!/usr/bin/env python3
"""A trained attention decoder, exported and read by two programs that contain no Python.

    python run.py [--work DIR] [--quick]

Trains the attention model of the digit lines if it is not there, exports it step by step, builds the decoders in cpp/
and c/ against the libraries of the installed TensorFlow, lets them read the held-out lines, and compares with the
search that is built in. Results go to out/ in the working directory (by default that of the demo of digits).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DIGITS = os.path.join(ROOT, "demos", "digits")
sys.path.insert(0, DIGITS)

import decode  # noqa: E402
import numpy as np  # noqa: E402

CONFIG = os.path.join(DIGITS, "attention.config")
BEAM, END = 12, 10  # as in the config
FOUND = "out/attention_by_line.py"


def run(title: str, command: list[str], work: str, **options: object) -> subprocess.CompletedProcess:
    """Run a command in the working directory and show it; its failure ends the demo."""
    shown = ["python" if word == sys.executable else word for word in command]
    print("\n=== %s\n$ %s" % (title, shlex.join(shown)), flush=True)
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=work, env={**os.environ, "PYTHONPATH": path}, check=False, **options)  # type: ignore
    if done.returncode != 0:
        sys.exit("the demo ends here: the last command failed (exit code %d)" % done.returncode)
    return done


def as_text(lines: dict[str, np.ndarray]) -> str:
    """Return the sequences as the programs read them: "tag frames dim", then the numbers."""
    parts = []
    for tag, pixels in lines.items():
        parts.append("%s %d %d" % (tag.replace(" ", "_"), *pixels.shape))
        parts += [" ".join("%.9g" % value for value in row) for row in pixels]
    return "\n".join(parts) + "\n"


def read_by(program: list[str], text: str, work: str) -> tuple[dict[str, list[int]], float]:
    """Return what a program reads in the lines.

    :return: tag -> digits, seconds
    """
    start = time.monotonic()
    done = run(
        "read the held-out lines with %s" % os.path.basename(program[0]),
        program,
        work,
        input=text,
        text=True,
        stdout=subprocess.PIPE,
    )
    seconds = time.monotonic() - start
    rows = [line.split() for line in done.stdout.splitlines()]
    return {tag: [int(label) for label in labels] for tag, _, *labels in rows}, seconds


def error_rate(lines_hdf: str, found: dict[str, list[int]]) -> float:
    """Return the label error rate on the held-out lines, in percent."""
    references = decode.read_hdf(lines_hdf, "classes")
    errors = sum(decode.edit_distance(labels.tolist(), found[tag]) for tag, labels in references.items())
    return 100.0 * errors / sum(map(len, references.values()))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=DIGITS, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument("--quick", action="store_true", help="few lines, two epochs: only shows that all steps work")
    args = parser.parse_args()
    work = os.path.abspath(args.work)
    python, out = sys.executable, "out"
    heldout = os.path.join(work, out, "heldout.hdf")
    if not os.path.isdir(os.path.join(work, out, "attention_model")):
        quick = ["--quick"] if args.quick else []
        run("train", [python, os.path.join(DIGITS, "run.py"), "attention", "--work", work, *quick], work)

    folder = os.path.join(out, "attention_steps")
    shutil.rmtree(os.path.join(work, folder), ignore_errors=True)
    export = [python, "-m", "returnn_tf", "export", CONFIG, "--to", "steps", "--layer", "output", "--output", folder]
    run("export the model step by step", export, work)
    for language in ("cpp", "c"):
        folder_of = os.path.join(HERE, language)
        build = ["make", "-s", "-C", folder_of, "PYTHON=" + python, "OUT=" + os.path.join(work, out)]
        run("build the decoder in %s" % folder_of, build, work)

    search = [python, "-m", "returnn_tf", CONFIG, "++task", "search"]
    # Line by line, as the programs do: the limit of the decoder's steps is the length of the longest line of a batch.
    search += ["++max_seqs", "1", "++search_output_file", FOUND, "++search_output_file_format", "py"]
    run("read the held-out lines with the search that is built in", search, work)

    lines = {tag: pixels.astype(np.float32) for tag, pixels in decode.read_hdf(heldout).items()}
    text = as_text(lines)
    with open(os.path.join(work, folder, "model.json"), encoding="utf8") as file:
        facts = json.load(file)
    names = {name: entry["tensor"] for name, entry in facts["inputs"].items()}
    options = ["--input", names["data"], "--sizes", names["data_size0"], "--beam-size", str(BEAM)]
    options += ["--start-label", str(END), "--end-label", str(END)]
    graph, checkpoint = (os.path.join(folder, facts[name]) for name in ("meta_graph", "checkpoint"))
    for library in facts["native"]["libraries"]:
        options += ["--library", os.path.join(folder, library)]
    programs = {
        "C++": ["out/decoder", "search", "--graph", graph, "--checkpoint", checkpoint, *options],
        "C": ["out/decoder_c", "search", graph, checkpoint, *options],
    }
    built_in = decode.recognise_by_search(heldout, os.path.join(work, FOUND))
    rows = [("returnn_tf's search", decode.label_error_rate(built_in), "", "")]
    same_all = True
    for name, command in programs.items():
        found, seconds = read_by(command, text, work)
        same = sum(line.hypothesis == found[line.tag] for line in built_in)
        same_all = same_all and same == len(built_in)
        rows.append((name, error_rate(heldout, found), "%d of %d" % (same, len(built_in)), "%.1f s" % seconds))
    print("\n%-20s %16s %14s %8s" % ("read by", "label error rate", "same digits", "time"))
    for name, error, same, seconds in rows:
        print("%-20s %14.2f %% %14s %8s" % (name, error, same, seconds))
    return 0 if same_all else 1


if __name__ == "__main__":
    sys.exit(main())
