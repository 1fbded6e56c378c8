"""``returnn-tf launch``: run a command in several processes on this machine, which train together."""

from __future__ import annotations

import argparse
import os

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.launch import processes
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import ClusterError, CommandError
from returnn_tf.engine.distributed import membership
from returnn_tf.util.python_child import python_command

_DOC = """
Run a command in several processes on this machine, which train together by TensorFlow's own collectives.

    returnn-tf launch --processes 4 my.config ++num_epochs 20
    returnn-tf launch --processes 2 train my.config

Each process takes the GPU of its local rank, and its share of the cores. Lines of all but the first one begin with
their rank. SIGINT, SIGTERM and SIGUSR1 go to all processes: they save and end. When one fails, all end; with
--min-processes, those that were not killed start again, and resume from the last checkpoint. On several machines:
srun returnn-tf my.config ++distributed "{}". More: returnn-tf explain clusters.
"""
_PROGRAM = "from returnn_tf.cli.main import main; sys.exit(main())"


@register_command(
    "launch",
    "--processes N [--min-processes N] CONFIG ... [++key value ...]",
    "train with several processes on this machine",
    own_help=lambda _: _parser().format_help(),
    group="train",
)
def run(args: list[str]) -> int:
    """Start the processes and wait for them.

    :param args: the number of processes, then the arguments of each: as without ``launch``
    :return: the exit code of the process that failed first, else of the first rank whose code is not 0
    :raises ConfigError: wrong arguments, or this process is one of several already
    """
    parsed, rest = _parsed(args)
    member = membership.find(os.environ)
    if member is not None and member.size > 1:
        raise ClusterError(
            "launch starts all processes itself, but this one is rank %d of %d already, by %s. Run launch once, or "
            'start the processes without it: srun returnn-tf my.config ++distributed "{}"'
            % (member.rank, member.size, member.source)
        )
    if parsed.min_processes is not None and parsed.min_processes > parsed.processes:
        raise CommandError(
            "launch: --min-processes %d is more than --processes %d" % (parsed.min_processes, parsed.processes)
        )
    return processes.run(python_command(_PROGRAM, *rest), parsed.processes, parsed.min_processes)


def _parsed(args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the arguments of each process, which begin with the first one that is no option."""
    parser = _parser()
    start = 0
    while start < len(args) and args[start].startswith("-"):
        start += 1 if "=" in args[start] else 2
    parsed = parser.parse_args([*args[:start], *args[start : start + 1]])
    if args[start] == "launch":
        raise CommandError("launch: expected a config, not launch once more")
    return parsed, args[start:]


def _parser() -> CommandParser:
    parser = CommandParser("launch", _DOC)
    parser.add_argument(
        "--processes",
        type=positive,
        required=True,
        metavar="N",
        help="number of processes; with GPUs, one for each",
    )
    parser.add_argument(
        "--min-processes",
        type=positive,
        metavar="N",
        help="start again without processes that were killed, as long as so many are left",
    )
    parser.add_argument("command", metavar="CONFIG ...", help="configs, options and ++key value, as without launch")
    return parser
