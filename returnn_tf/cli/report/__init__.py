"""``returnn-tf report RUN``: one HTML file about a training run and its network."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.report import details, examples, model, records
from returnn_tf.cli.report.page import Section, page
from returnn_tf.cli.runs.config import config_of, in_folder
from returnn_tf.cli.runs.run import Run, find_run
from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import CodeError, CommandDataError, CommandError, ConfigError, DataError
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.user_code import error_in_config
from returnn_tf.engine.monitoring.pictures import check_matplotlib
from returnn_tf.engine.support.atomic_files import write_text
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.logging.log import log

_DOC = """
Write one HTML file about a run: curves, speed and memory, settings, and, of its network, the worst sequences, words
with their times, alignments and attention weights of some (with heads that unfold, also of self_attention), confusions,
layers and a drawing. The file needs no others.

    returnn-tf report out/model                              report.html, with the newest checkpoint
    returnn-tf report my.config --data eval --num_seqs 500 --output eval.html
    returnn-tf report out/learning_rates --no-model          curves and records only

A run is a folder or prefix of checkpoints, a learning-rate file, or a config. Sequences are taken evenly from the
dataset, and run one by one as in evaluation.
"""
_DEFAULT = "report.html"
_NO_MODEL = "--no-model"
_INSTEAD = "Name the config instead of the folder, or report on the records only: %s" % _NO_MODEL
_WITHOUT_MODEL = "To report on the records only, without loading the network: %s" % _NO_MODEL


@register_command(
    "report",
    "RUN [--output OUT.html] [--data NAME] [--num_seqs N] [--epoch N] [--no-model] [--force] [++key value ...]",
    "write one HTML file about a run: curves, alignments, worst sequences, confusions, settings",
    own_help=lambda _: _parser().format_help(),
    group="look",
)
def run(args: list[str]) -> int:
    """Write the report.

    :param args: run, options, ``++key value`` for its config
    :raises ConfigError: wrong arguments; no such run, config, checkpoint or dataset; the output exists
    :raises DataError: a file of the run or of the dataset is damaged
    """
    first = next((index for index, text in enumerate(args) if text.startswith("++")), len(args))
    given = _parser().parse_args(args[:first])
    target = os.path.abspath(given.output)
    if not target.lower().endswith((".html", ".htm")):
        raise CommandError("report: %r: a report is a page in HTML. Choose a name that ends in .html" % given.output)
    check_matplotlib("returnn-tf status and returnn-tf compare --no-plot print the scores")
    if os.path.exists(target) and not given.force:
        raise CommandError("report: %r exists already. --force replaces it; or choose another --output" % given.output)
    if not os.path.isdir(os.path.dirname(target)):
        raise CommandError("report: the folder of %r does not exist. Create it first." % given.output)
    found = find_run(given.run, args[first:])
    if not found.scored:
        raise CommandDataError("report: %r: %s" % (given.run, found.without_scores()))
    sections = [records.curves(found)]
    lead = found.path
    if not given.no_model:
        lead, of_model = _of_model_or_hint(found, given, args[first:])
        sections += of_model
    sections += [records.speed(found), records.settings(found), records.environment(found)]
    text = page("Report: %s" % _title(found), _lead(lead), records.head_facts(found), sections)
    try:
        write_text(target, text)
    except OSError as exc:
        raise not_writable("report: %r" % given.output, exc, topic="commands") from exc
    print("wrote %s (%.0f KB)" % (given.output, len(text.encode("utf8")) / 1000))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("report", _DOC)
    add = parser.add_argument
    add("run", metavar="RUN", help="model folder or prefix, learning-rate file, or config")
    add("--output", metavar="OUT.html", default=_DEFAULT, help="the file to write (%s)" % _DEFAULT)
    add("--data", metavar="NAME", help="dataset of the config; default: dev, else the first one")
    add("--num_seqs", metavar="N", type=positive, default=200, help="sequences to look at (200)")
    add("--examples", metavar="N", type=positive, default=3, help="sequences to draw (3)")
    add("--epoch", metavar="N", type=positive, help="of the checkpoint; default: the newest one")
    add(_NO_MODEL, action="store_true", help="only what the files tell; nothing is loaded")
    add("--force", action="store_true", help="replace an existing file")
    return parser


def _of_model_or_hint(found: Run, given: argparse.Namespace, overrides: Sequence[str]) -> tuple[str, list[Section]]:
    """Call `_of_model`; its error explains how to report without the network, unless an option is wrong."""
    try:
        return _of_model(found, given, overrides)
    except (ConfigError, DataError) as exc:
        if given.data or given.epoch or _NO_MODEL in str(exc):
            raise
        raise type(exc)("%s\n%s" % (exc, _WITHOUT_MODEL), topic=exc.topic) from exc
    except Exception as exc:
        place = error_in_config(exc)
        if place is None:
            raise
        raise CodeError("%s\n%s" % (place, _WITHOUT_MODEL)) from exc


def _of_model(found: Run, given: argparse.Namespace, overrides: Sequence[str]) -> tuple[str, list[Section]]:
    """Return the line below the title, and the sections about the network."""
    pairs = parse_arguments(["none.config", *overrides]).overrides if overrides else []
    config, folder = config_of(found, pairs, _INSTEAD)
    log.configure([], LoggingSettings(config).log_verbosity, LoggingSettings(config).log_format)
    with in_folder(folder):
        loaded = model.load(config, given.epoch, given.data)
        try:
            seqs = model.sequences(loaded, given.num_seqs)
        finally:
            loaded.dataset.close()
        if not seqs:
            raise CommandDataError("report: the dataset %r has no sequences" % loaded.data)
        parts = [
            details.worst(loaded, seqs),
            examples.examples(loaded, seqs, given.examples, config),
            details.confusion(loaded, seqs),
            details.network(loaded),
        ]
    lead = "%s, %d sequences of %s" % (loaded.checkpoint or "random parameters", len(seqs), loaded.data)
    return lead, [part for part in parts if part is not None]


def _title(found: Run) -> str:
    return os.path.relpath(found.model) if found.model else found.path


def _lead(text: str) -> str:
    return "%s; written %s" % (text, time.strftime("%Y-%m-%d %H:%M"))
