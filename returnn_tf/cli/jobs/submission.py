"""``tools/submit.py``: reads configs and options, shows the job script or hands it to the scheduler."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from returnn_tf.cli.arguments import parse_arguments
from returnn_tf.cli.jobs.description import Description
from returnn_tf.cli.jobs.script import Training, job_script
from returnn_tf.config import Config, ConfigError

_COMMANDS = {"slurm": ("sbatch", "--parsable"), "sge": ("qsub", "-terse")}
_SECONDS = 120  # a scheduler which takes longer to answer hangs


def main(argv: Optional[List[str]] = None, doc: str = "") -> int:
    """The command.

    :param argv: the arguments after the program name
    :param doc: for ``--help``
    :return: exit code
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    end = next((i for i, argument in enumerate(argv) if argument.startswith("++")), len(argv))
    args = _parser(doc).parse_args(argv[:end])
    try:
        job, trainings = read_job(args.configs, argv[end:], _given(args))
        script = job_script(job, trainings, argv[end:])
        if args.dry_run:
            print(script, end="")
        else:
            print("submitted as job %s; its log comes into %s" % (submit(job, script), _log_dir(job)))
    except ConfigError as exc:
        print("error: %s" % exc, file=sys.stderr)
        return 2
    return 0


def _parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("configs", nargs="+", metavar="CONFIG", help="a config; several: a job for each, as an array")
    parser.add_argument("--dry-run", action="store_true", help="show the script; submit nothing")
    for field in dataclasses.fields(Description):
        parser.add_argument("--" + field.name.replace("_", "-"), **_argument(field))
    return parser


def _argument(field: dataclasses.Field[Any]) -> Dict[str, Any]:
    text = field.metadata["help"].replace("%", "%%")
    if field.name == "env" or isinstance(field.default, tuple):
        return {"action": "append", "metavar": "TEXT", "help": text + "; may be given several times"}
    if isinstance(field.default, bool):
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": text}
    if field.default not in ("", None):
        text += " (%s)" % field.default
    if field.metadata["choices"]:
        return {"choices": field.metadata["choices"], "help": text}
    kind = int if isinstance(field.default, int) else str
    return {"type": kind, "metavar": "N" if kind is int else "TEXT", "help": text}


def _given(args: argparse.Namespace) -> Dict[str, Any]:
    """The options of the command line which were given."""
    values = {field.name: getattr(args, field.name) for field in dataclasses.fields(Description)}
    values = {key: value for key, value in values.items() if value is not None}
    if "env" in values:
        wrong = [entry for entry in values["env"] if "=" not in entry]
        if wrong:
            raise ConfigError("--env: expected NAME=VALUE, got %r" % wrong[0])
        values["env"] = dict(entry.split("=", 1) for entry in values["env"])
    return values


def read_job(
    paths: Sequence[str], overrides: Sequence[str], options: Dict[str, Any]
) -> Tuple[Description, List[Training]]:
    """The description, from ``submit`` of the configs and the options, and what each config trains.

    :param paths: config files, one per job
    :param overrides: ``++key value``
    :param options: by name; they count more than those of the config
    :raises ConfigError: something is wrong with a config or an option
    """
    described: Dict[str, Any] = {}
    trainings: List[Training] = []
    for path in paths:
        config = Config.from_files([path], parse_arguments(list(overrides)).overrides)
        own = config.typed("submit", None) or {}
        if not isinstance(own, dict):
            raise ConfigError(
                "%s: expected a dict such as {'time': '24:00:00'}, got %r" % (config.where("submit"), own)
            )
        if trainings and own != described:
            raise ConfigError(
                "%s differs from that of %s, but the jobs of an array are all alike. Submit them one by one."
                % (config.where("submit"), paths[0])
            )
        described = own
        trainings.append(Training(path, config.str("model", "") or "", config.int("requeue_exit_code", 0) or 0))
    if "env" in options and isinstance(described.get("env"), dict):
        options = {**options, "env": {**described["env"], **options["env"]}}
    where = "submit" if not options else "submit, with the options"
    return Description.from_dict({**described, **options}, where), trainings


def submit(job: Description, script: str) -> str:
    """Hands the script to the scheduler; the id of the job.

    :raises ConfigError: there is no such scheduler here, or it refuses
    """
    command = _COMMANDS[job.scheduler]
    if shutil.which(command[0]) is None:
        raise ConfigError(
            "%s is not installed here. Submit on a machine of the cluster, or look at the script: --dry-run"
            % command[0]
        )
    try:
        os.makedirs(_log_dir(job), exist_ok=True)
    except OSError as exc:
        raise ConfigError("log_dir %r can't be made: %s" % (_log_dir(job), exc.strerror)) from None
    done = subprocess.run(
        command, input=script, cwd=job.workdir or None, capture_output=True, text=True, timeout=_SECONDS
    )
    if done.returncode:
        raise ConfigError("%s refuses the job: %s" % (command[0], (done.stderr or done.stdout).strip()))
    return done.stdout.strip().split(";")[0]


def _log_dir(job: Description) -> str:
    return os.path.join(job.workdir, job.log_dir)
