"""``returnn-tf submit``: write the job script of a training run for Slurm or SGE, and submit it."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.cli.submit.description import Description
from returnn_tf.cli.submit.script import job_script
from returnn_tf.cli.submit.submission import log_dir, read_job, submit
from returnn_tf.config.errors import ClusterError

_DOC = """
Write the job script of a training run for Slurm or SGE, and submit it.

    returnn-tf submit --time 48:00:00 --gpus 1 my.config ++num_epochs 20
    returnn-tf submit --tasks 4 --cpus 8 --mem 16G --queue long --dry-run my.config     shows the script
    returnn-tf submit --scheduler sge --tasks 4 a.config b.config                       an array of two jobs

The options may also be set in the config: submit = {"time": "48:00:00", "gpus": 1}. A job that is preempted or reaches
its time limit saves, is requeued and resumes. More: returnn-tf explain clusters.
"""


@register_command(
    "submit",
    "CONFIG ... [--time T --gpus N ...]",
    "write a job for Slurm or SGE and submit it",
    own_help=lambda _: _parser().format_help(),
    group="train",
)
def run(args: list[str]) -> int:
    """Print the script or submit it.

    :param args: options and configs, then ``++key value`` for all of them
    :raises ConfigError: wrong options, or the scheduler is missing or refuses the job
    """
    end = next((i for i, argument in enumerate(args) if argument.startswith("++")), len(args))
    parsed = _parser().parse_args(args[:end])
    job, trainings = read_job(parsed.configs, args[end:], _given(parsed))
    script = job_script(job, trainings, args[end:])
    if parsed.dry_run:
        print(script, end="")
    else:
        print("submitted as job %s; log folder: %s" % (submit(job, script), log_dir(job)))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("submit", _DOC)
    parser.add_argument("configs", nargs="+", metavar="CONFIG", help="a config; several form a job array")
    parser.add_argument("--dry-run", action="store_true", help="print the script instead of submitting it")
    for field in dataclasses.fields(Description):
        parser.add_argument("--" + field.name.replace("_", "-"), **_argument(field))
    return parser


def _argument(field: dataclasses.Field[Any]) -> dict[str, Any]:
    text = field.metadata["help"].replace("%", "%%")
    if field.name == "env" or isinstance(field.default, tuple):
        return {"action": "append", "metavar": "TEXT", "help": text + "; repeatable"}
    if isinstance(field.default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": text}
    if field.default not in ("", None):
        text += " (%s)" % field.default
    if field.metadata["choices"]:
        choices = field.metadata["choices"]
        return {"choices": choices, "metavar": "NAME", "help": "%s: %s" % (" | ".join(choices), text)}
    kind = int if isinstance(field.default, int) else str
    return {"type": kind, "metavar": "N" if kind is int else "TEXT", "help": text}


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options set on the command line."""
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(Description)}
    values = {key: value for key, value in values.items() if value is not None}
    if "env" in values:
        wrong = [entry for entry in values["env"] if "=" not in entry]
        if wrong:
            raise ClusterError("--env: expected NAME=VALUE, got %r" % wrong[0])
        values["env"] = dict(entry.split("=", 1) for entry in values["env"])
    return values
