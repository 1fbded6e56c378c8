"""``returnn-tf tool calculate-word-error-rate``: the word error rate of the output of a search."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.compat.settings import ToolSettings
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import (
    add_verbosity,
    check_sources,
    configure_log,
    last_seq,
    natural,
    parse,
)
from returnn_tf.compat.tool.shared.datasets import OpenDataset, dataset_of_options, of_config, texts_of
from returnn_tf.compat.tool.shared.text_files import write_file
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.datasets.core.safe_files import read_text_dict
from returnn_tf.engine.transcripts.edit_distance import Errors, align
from returnn_tf.logging.log import log

_DOC = """
Compute the word error rate of hypotheses: the edit distance over all sequences, per word of the references.

    returnn-tf tool calculate-word-error-rate --hyps search.py.gz --refs references.py --out wer
    returnn-tf tool calculate-word-error-rate --hyps search.py --config my.config --dataset dev --key raw

Hypotheses and references are Python dicts from tag to text, or to a list of (score, text), of which the first counts.
Words are separated by blanks. Each reference needs a hypothesis. The file --out gets the rate in percent.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool calculate-word-error-rate", _DOC)
    result.add_argument("--hyps", metavar="FILE", required=True, help="hypotheses, .gz allowed")
    result.add_argument("--refs", metavar="FILE", help="references in a file, .gz allowed")
    result.add_argument("--dataset", metavar="DATASET", help="references in a dataset: a name in the config, or a text")
    result.add_argument(
        "--config", metavar="CONFIG", help="config with the dataset; by default that of its setting wer_data"
    )
    result.add_argument("--key", default="raw", help="data key of the dataset with the references (raw)")
    result.add_argument("--startseq", metavar="N", type=natural, default=0, help="first reference (0)")
    result.add_argument("--endseq", metavar="N", type=last_seq, default=-1, help="last one, inclusive; -1: all")
    result.add_argument("--expect_full", action="store_true", help="each hypothesis needs a reference, too")
    result.add_argument("--out", metavar="FILE", help="file for the rate in percent, with two decimals")
    add_verbosity(result)
    return result


@register_tool("calculate-word-error-rate", parser)
def run(args: list[str]) -> int:
    """Compute the rate.

    :param args: the arguments of the tool
    :raises DataError: a file is damaged, a reference has no hypothesis, or there are no references
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    sources = {"--refs": parsed.refs, "--dataset or --config": parsed.dataset or parsed.config}
    check_sources("calculate-word-error-rate", sources)
    hypotheses = read_text_dict(parsed.hyps)
    errors = Errors()
    used = set()
    for tag, reference in _references(parsed, overrides):
        if tag not in hypotheses:
            raise CommandDataError("%r has no hypothesis for the sequence %r" % (parsed.hyps, tag))
        used.add(tag)
        pairs = align(reference.split(), _first(parsed.hyps, tag, hypotheses[tag]).split())
        errors.add(pairs)
        if log.shows(5):
            one = Errors()
            one.add(pairs)
            log.write(5, "%s: %s" % (tag, one.text()))
    if parsed.expect_full:
        _check_all_used(parsed.hyps, hypotheses, used)
    if not errors.reference:
        raise CommandDataError("the references of %d sequences have no words, so there is no rate" % len(used))
    print("word error rate of %d sequences: %s" % (len(used), errors.text()))
    if parsed.out:
        write_file(parsed.out, "%.2f\n" % (100 * errors.rate))
    return 0


def _check_all_used(path: str, hypotheses: Mapping[str, Any], used: set[str]) -> None:
    others = [tag for tag in hypotheses if tag not in used]
    if others:
        raise CommandDataError("%r has %d hypotheses without reference, e.g. of %r" % (path, len(others), others[0]))


def _references(parsed: argparse.Namespace, overrides: list[str]) -> Iterable[tuple[str, str]]:
    """Yield tag and text of each reference."""
    first, last = parsed.startseq, parsed.endseq
    if parsed.refs:
        rows = list(read_text_dict(parsed.refs).items())[first : None if last < 0 else last + 1]
        yield from ((tag, _first(parsed.refs, tag, value)) for tag, value in rows)
        return
    if parsed.config and not parsed.dataset:
        opened = _chosen_by(read_config([parsed.config, *overrides]), parsed.config)
    else:
        opened = dataset_of_options(parsed.config, parsed.dataset, overrides)
    try:
        yield from texts_of(opened, parsed.key, first=first, last=last)
    finally:
        opened.close()


def _chosen_by(config: Config, place: str) -> OpenDataset:
    """Return the dataset of ``wer_data``, else that of ``search_data``.

    :raises ConfigError: the config has neither
    """
    settings, wer_data = TaskSettings(config), ToolSettings(config).wer_data
    for value in (wer_data, settings.search_data):
        if value and (not _is_name(value) or value in config or value in (DataSettings(config).eval_datasets or {})):
            return of_config(config, value, place)
    raise CommandError("%s has no dataset %r: set wer_data, or give --dataset" % (place, wer_data))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _first(path: str, tag: str, value: Any) -> str:
    """Return the text of an entry of a file; the first one of a list of (score, text)."""
    if isinstance(value, str):
        return value
    best = value[0] if isinstance(value, (list, tuple)) and value else None
    if isinstance(best, (list, tuple)) and len(best) == 2 and isinstance(best[1], str):
        return best[1]
    raise CommandDataError("%r: the entry of %r is neither a text nor a list of (score, text)" % (path, tag))
