"""``returnn-tf export``: write the graph of a trained network for other programs."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any

from returnn_tf.cli.check import take_option
from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config import Config
from returnn_tf.config.errors import ExportError
from returnn_tf.config.options import OptionInfo, own_options_first
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.export.error_rates import ErrorCheck
from returnn_tf.export.export import check_folder, make_exporter, write_export
from returnn_tf.export.exporters import EXPORTERS, Exporter
from returnn_tf.logging.log import log
from returnn_tf.tasks.search import output_layers
from returnn_tf.tasks.setting_checks import check_all_settings

_DEFAULT = "saved_model"
_DOC = """
Write the graph of a trained network for programs that load it without returnn_tf. What was written is loaded in the
same way, run on a sample, and compared with the network; only then the folder appears. How to load it:
returnn-tf explain export.

    returnn-tf export my.config --output model                           the newest checkpoint, as a SavedModel
    returnn-tf export my.config --output model --epoch 12 --portable     no native ops: no library needed
    returnn-tf export my.config --output model --load out/net.012        this checkpoint
    returnn-tf export my.config --output model --search                  the graph searches: labels, lengths, scores
    returnn-tf export my.config --output model --outputs encoder,ctc     these layers
    returnn-tf export my.config --output model --quantize int8           matrices of int8, ...
    returnn-tf export my.config --output model --quantize int8 --check dev       ..., unless "dev" has more errors
"""


def help_text(_: list[str]) -> str:
    """Return the text of ``--help``: the options of the command, then those of each target."""
    parts = [_parser().format_help().rstrip(), "", "targets, and their options:"]
    for name, cls in EXPORTERS.items():
        parts += ["", "  --to %s" % name, "    %s" % (cls.__doc__ or "").strip().partition("\n")[0]]
        for info in _own_options(cls):
            default = "" if info.default in (None, "", False, []) else " (default: %s)" % _shown(info.default)
            parts.append("    --%s  %s%s" % (_usage(info), info.help, default))
    return "\n".join(parts)


@register_command(
    "export",
    "CONFIG ... --output FOLDER [--to TARGET] [--load PREFIX | --epoch N] [--search] [++key value ...]",
    "write the graph of a trained network for other programs",
    own_help=help_text,
    group="use",
)
def run(args: list[str]) -> int:
    """Export the network of a config.

    :param args: config files, options, ``++key value``
    :raises ConfigError: wrong arguments; an output folder with files; a layer that the target can't express
    :raises DataError: the checkpoint is damaged or does not fit; the graph computes something else
    """
    rest, target = take_option(args, "--to")
    target = _DEFAULT if target is None else target
    cls = EXPORTERS.get(target, "--to")
    own, overrides = _split(rest)
    _check_target_of_options(own, target)
    parser = _parser()
    for info in _own_options(cls):
        flag: dict[str, Any] = {"nargs": "?", "const": "True"} if info.type is bool else {}
        parser.add_argument("--" + info.name.replace("_", "-"), dest="option:" + info.name, **flag)
    given = parser.parse_args(own)
    options = {info.name: _value(info, text) for info in _own_options(cls)
               if (text := getattr(given, "option:" + info.name)) is not None}  # fmt: skip
    if given.outputs:
        options["outputs"] = _names(given.outputs)
    exporter = make_exporter(target, options)
    check_folder(given.output)
    config = _config(given, overrides)
    log.configure([], LoggingSettings(config).log_verbosity, LoggingSettings(config).log_format)
    check_all_settings(config)
    return _export(exporter, config, given)


def _export(exporter: Exporter, config: Config, given: argparse.Namespace) -> int:
    of_search = exporter.outputs_of_search and TaskSettings(config).search_output_layer
    if not exporter.outputs and (of_search or (given.search and not exporter.searches)):
        exporter.outputs = output_layers(config)
    search = given.search or exporter.searches
    net, _ = load_network(
        exporter.config_to_load(config),
        search=search,
        losses=False,
        outputs=exporter.outputs,
        random=not exporter.needs_params,
    )
    if given.search and not any(node.output.beam for node in net.plan.all_nodes()):
        raise ExportError(
            "export --search: the network does not search, as no layer is of class 'choice', so the graph would be the "
            "same without it. Omit --search."
        )
    check = None if given.check is None else ErrorCheck(given.check, given.max_loss, given.check_seqs)
    write_export(exporter, net, given.output, check)
    log.write(1, "Wrote %s" % given.output)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("export", _DOC)
    parser.add_argument("config", metavar="CONFIG", nargs="+", help="config files")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="the folder to write, which must not exist")
    parser.add_argument("--to", metavar="TARGET", help="what to write: %s; default: %s" % (_targets(), _DEFAULT))
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--load", metavar="PREFIX", help="path prefix of the checkpoint")
    model.add_argument("--epoch", metavar="N", type=positive, help="epoch of the checkpoint; default: the newest one")
    parser.add_argument("--outputs", metavar="A,B", help="paths of the layers whose values are outputs")
    parser.add_argument("--check", metavar="DATASET", help="also compare the error rates of export and network on it")
    parser.add_argument(
        "--max-loss", metavar="SHARE", type=_share, default=ErrorCheck.most,
        help="with --check: largest increase of an error rate, relative to that of the network; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--check-seqs", metavar="N", type=positive, default=ErrorCheck.sequences,
        help="with --check: number of sequences; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--search", action="store_true", help="the network as it searches, with labels and scores")
    return parser


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("expected a number such as 0.02, not %r" % text)
    return value


def _targets() -> str:
    return ", ".join(name for name, _ in EXPORTERS.items())


def _split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before the first ``++key``, and the rest."""
    first = next((index for index, text in enumerate(args) if text.startswith("++")), len(args))
    return list(args[:first]), list(args[first:])


def _config(given: argparse.Namespace, overrides: Sequence[str]) -> Config:
    """Read the config with the checkpoint of the command line; as a task that does not train, it loads the newest."""
    more = ["++task", "search" if given.search else "forward"]
    more += [] if given.load is None else ["++load", given.load]
    more += [] if given.epoch is None else ["++load_epoch", str(given.epoch), "++load", ""]
    return read_config([*given.config, *overrides, *more])


def _own_options(cls: type[Exporter]) -> list[OptionInfo]:
    """Return the options of a target, but those that every target has."""
    return [info for info in own_options_first(cls) if info.name != "outputs"]


def _check_target_of_options(args: Sequence[str], target: str) -> None:
    """Check that no option of another target is given.

    :raises ConfigError: one is; names the targets that have it
    """
    known = {info.name for info in _own_options(EXPORTERS.get(target, "--to"))}
    for text in args:
        name = text[2:].partition("=")[0].replace("-", "_") if text.startswith("--") else ""
        others = [other for other, cls in EXPORTERS.items() if name in {info.name for info in _own_options(cls)}]
        if others and name not in known:
            raise ExportError(
                "export to %s has no option %s; %s."
                % (target, text, ", ".join("--to %s has it" % other for other in others))
            )


def _usage(info: OptionInfo) -> str:
    name = info.name.replace("_", "-")
    return name if info.type is bool else "%s %s" % (name, info.type_name)


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise ExportError("export: --outputs names no layer.")
    return names


def _value(info: OptionInfo, text: str) -> Any:
    """Return the value of an option from its text: a Python literal, names with commas for a list, else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if info.fault(value) is None:
        return value
    if info.fault([]) is None and isinstance(text, str):
        return [part for part in text.split(",") if part]
    flags = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if info.type is bool and text.lower() in flags:
        return flags[text.lower()]
    return text if info.fault(text) is None else value
