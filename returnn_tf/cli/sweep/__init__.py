"""``returnn-tf sweep sweep.py``: look for better settings of a config by training it again and again."""

from __future__ import annotations

import argparse
import dataclasses
import os

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.cli.submit.script import Training, job_script
from returnn_tf.cli.submit.submission import log_dir, read_job, submit
from returnn_tf.cli.sweep import results
from returnn_tf.cli.sweep.description import Sweep, read_sweep
from returnn_tf.cli.sweep.loop import train_trials
from returnn_tf.cli.sweep.study import Study
from returnn_tf.config.errors import CommandError

_DOC = """
Look for better settings of a config: trials change some of them, by a sampler that learns from the scores of the ones
before (Optuna's TPE), and end early where others were better after the same epoch.

    returnn-tf sweep sweep.py                        trains, draws what mattered; resumes what was interrupted
    returnn-tf sweep sweep.py --processes 4          four trials at a time, on this machine
    returnn-tf sweep sweep.py --submit 8             the same by an array of 8 jobs of a cluster
    returnn-tf sweep sweep.py --show                 what is known by now

sweep.py names the config, and has a function of the trial; this is all that it needs:

    config = "my.config"
    def suggest(trial):
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
                "network/lstm/n_out": trial.suggest_int("units", 32, 512, log=True)}

More settings: metric = "dev_score" (its lowest value counts), trials = 20, epochs, prune = True, folder, seed, and what
to try first: first = [{"learning_rate": 0.01, "units": 128}]. Several of these commands, on machines that share the
folder, share the trials. More: the guide on sweeps.
"""


@register_command(
    "sweep",
    "SWEEP.py [--processes N | --submit N [--dry-run] | --show] [--output OUT.svg]",
    "look for better settings of a config, in many short trainings",
    own_help=lambda _: _parser().format_help(),
    group="train",
)
def run(args: list[str]) -> int:
    """Train the trials that are left, and show the results.

    :param args: the file, and options
    :return: 0, or 128 + the signal that stopped it
    :raises ConfigError: wrong arguments, files or values
    :raises DataError: the trials fail, or what is known of them is damaged
    """
    given = _parser().parse_args(args)
    if given.dry_run and given.submit is None:
        raise CommandError("sweep: --dry-run is for --submit")
    sweep = read_sweep(given.sweep)
    if given.submit is not None:
        return _submit(sweep, given)
    study = Study(sweep, create=not given.show)
    code = 0 if given.show else train_trials(sweep, study, given.processes)
    if code == 0:
        print(results.text(sweep, study))
        results.draw(sweep, study, given.output or os.path.join(sweep.folder, "sweep.svg"))
    return code


def _parser() -> CommandParser:
    parser = CommandParser("sweep", _DOC)
    parser.add_argument("sweep", metavar="SWEEP.py", help="what to try")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--processes", metavar="N", type=positive, default=1, help="trials at a time (1)")
    how.add_argument(
        "--submit", metavar="N", type=positive, help="submit an array of N jobs; options: submit of the config"
    )
    how.add_argument("--show", action="store_true", help="only show the results, and draw them")
    parser.add_argument("--dry-run", action="store_true", help="print the script instead of submitting it")
    parser.add_argument(
        "--output",
        metavar="OUT.svg",
        help="the picture: .svg, .png, .pdf; default: sweep.svg beside the trials",
    )
    return parser


def _submit(sweep: Sweep, given: argparse.Namespace) -> int:
    """Submit an array of jobs, each of which trains trials until none is left."""
    job, _ = read_job([sweep.config], [], {})
    if job.tasks > 1:
        raise CommandError("sweep: each job trains one trial at a time in one process, but submit of %s has tasks = %d"
                           % (sweep.config, job.tasks))  # fmt: skip
    script = job_script(
        dataclasses.replace(job, program=job.program + " sweep"), [Training(given.sweep)] * given.submit
    )
    if given.dry_run:
        print(script, end="")
    else:
        print("submitted as job %s; log folder: %s" % (submit(job, script), log_dir(job)))
    return 0
