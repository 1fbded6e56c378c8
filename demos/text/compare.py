#!/usr/bin/env python3
"""Language models of the same size which differ in what mixes the frames: LSTM, mLSTM, Mamba, RWKV-7 or attention.

Trains each of them, measures what decoding costs after contexts of up to 10 000 labels, and draws: perplexity over the
time of training, memory and time per label over the length of context. Each step is a command of its own, which is
printed. The lines must be there (``run.py --compare`` makes them); results go to out/ below the working directory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

import returnn_tf
from returnn_tf.engine.learning_rate.file import read_file

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from steps import StepFailed, Steps  # noqa: E402

CONFIG = os.path.join(HERE, "compare.config")
NAMES = {"lstm": "LSTM", "mlstm": "mLSTM", "mamba": "Mamba", "rwkv": "RWKV-7", "transformer": "Transformer"}
QUICK = ["++num_epochs", "1", "++batch_size", "500"]
QUICK_CONTEXTS = ["--contexts", "5", "20", "--repeat", "3"]

Result = Mapping[str, Any]
"""Of a model: ``parameters``; ``cpu``, seconds of its training; for each epoch ``seconds`` by the clock and the
perplexities ``dev`` and ``eval``; ``contexts``, see `context.py`."""


def parameters(model: str) -> int:
    """Return the number of trained parameters."""
    before = os.environ.get("LM")
    os.environ["LM"] = model
    try:
        net = returnn_tf.Network.from_config(returnn_tf.Config.from_file(CONFIG))
    finally:
        if before is None:
            del os.environ["LM"]
        else:
            os.environ["LM"] = before
    return sum(value.size for value in net.get_param_values().values())


def child_seconds() -> float:
    """Return the CPU time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def learned(path: str) -> list[dict[str, float]]:
    """Return seconds and perplexities of each epoch, from the file of learning rates."""
    entries = [data.error for _, data in sorted(read_file(path).items())]
    keys = {"seconds": ":meta:epoch_train_time_secs", "dev": "dev_score_output:exp", "eval": "eval_score_output:exp"}
    return [{name: float(entry[key]) for name, key in keys.items()} for entry in entries]


def run(steps: Steps, models: Sequence[str], *, few: bool) -> dict[str, Result]:
    """Train and measure.

    :param few: one epoch and short contexts: only shows that all steps work
    """
    steps.remove_products(r"compare(_.*|\.json|\.png)")
    results = {}
    for model in models:
        environment, name = {"LM": model}, NAMES[model]
        before = child_seconds()
        train = ["compare.config", *(QUICK if few else [])]
        steps.returnn("train: %s" % name, *train, environment=environment)
        cpu = child_seconds() - before
        folder = os.path.join("out", "compare_%s_steps" % model)
        export = ["export", "compare.config", "--state", "--portable", "--output", folder]
        steps.returnn("export, to be called label by label", *export, environment={**environment, "STREAM": "1"})
        found = os.path.join("out", "compare_%s_context.json" % model)
        contexts = QUICK_CONTEXTS if few else []
        steps.script("decode with more and more context", "context.py", folder, "out/heldout.hdf", found, *contexts)
        with open(os.path.join(steps.work, found), encoding="utf8") as file:
            measured = json.load(file)
        epochs = learned(steps.out("compare_%s_learning_rates" % model))
        results[model] = {"parameters": parameters(model), "cpu": cpu, "epochs": epochs, "contexts": measured}
    return results


def cpu_by_epoch(result: Result) -> list[float]:
    """Return CPU seconds until the end of each epoch: those of the training, divided as wall-clock time is."""
    seconds = [epoch["seconds"] for epoch in result["epochs"]]
    total = sum(seconds) or 1
    return [result["cpu"] * sum(seconds[: i + 1]) / total for i in range(len(seconds))]


def draw(results: Mapping[str, Result], path: str) -> None:
    """Draw perplexity over the time of training, memory and time of a label over the length of context."""
    figure, (learning, memory, time) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for model, result in results.items():
        label = NAMES[model]
        learning.plot(cpu_by_epoch(result), [epoch["dev"] for epoch in result["epochs"]], marker=".", label=label)
        lengths = [entry["context"] for entry in result["contexts"]]
        memory.plot(lengths, [entry["state"] / 1e6 for entry in result["contexts"]], marker=".", label=label)
        time.plot(lengths, [entry["ms"] for entry in result["contexts"]], marker=".", label=label)
    learning.set(xlabel="CPU time of training, seconds", ylabel="perplexity per character on dev")
    memory.set(xlabel="labels of context", ylabel="states of a sequence, MB", yscale="log")
    time.set(xlabel="labels of context", ylabel="CPU time of a label, ms", ylim=(0, None))
    for axes in (learning, memory, time):
        axes.grid(alpha=0.3, which="both")
    learning.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def table(results: Mapping[str, Result]) -> str:
    """Return the figures of all models, as a Markdown table."""
    rows = [
        "| | parameters | CPU s | perplexity, dev | held out | first, last context | ms a label | MB |",
        "|---" * 8 + "|",
    ]
    for model, result in results.items():
        last, (first, *_, longest) = result["epochs"][-1], result["contexts"]
        rows.append(
            "| %s | %d | %.0f | %.2f | %.2f | %d, %d | %.1f, %.1f | %.3f, %.3f |"
            % (
                *(NAMES[model], result["parameters"], result["cpu"], last["dev"], last["eval"]),
                *(first["context"], longest["context"], first["ms"], longest["ms"]),
                *(first["state"] / 1e6, longest["state"] / 1e6),
            )
        )
    return "\n".join(rows)


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    parser.add_argument("--models", nargs="+", choices=list(NAMES), default=list(NAMES), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one epoch, short contexts: shows that all steps work")
    args = parser.parse_args()
    steps = Steps(HERE, args.work)
    if not os.path.exists(steps.out("text.hdf")):
        print("There are no lines in %s. Run: python run.py --compare" % steps.out(""), file=sys.stderr)
        return 1
    try:
        results = run(steps, args.models, few=args.quick)
    except StepFailed as failed:
        print("the comparison ends here: the last command failed (%s)" % failed, file=sys.stderr)
        return 1
    with open(steps.out("compare.json"), "w", encoding="utf8") as file:
        json.dump(results, file, indent=1)
    draw(results, steps.out("compare.png"))
    print("\n%s\n\ndrawn in %s\n=== %s" % (table(results), steps.out("compare.png"), steps.summary()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
