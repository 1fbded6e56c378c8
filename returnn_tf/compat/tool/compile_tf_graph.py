"""``returnn-tf tool compile-tf-graph``: the graph of a config for decoders."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Union

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, configure_log
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import CommandError
from returnn_tf.engine.support import devices
from returnn_tf.export.compile_graph import CompiledGraph, GraphRequest, compile_graph
from returnn_tf.export.meta import graph_files
from returnn_tf.export.meta.names import op_name
from returnn_tf.export.native_libraries import beside_graph
from returnn_tf.logging.log import log

_DOC = """
Write the graph of the network of a config for decoders that restore a checkpoint into it. No checkpoint is read.

    returnn-tf tool compile-tf-graph my.config --output_file graph.meta
    returnn-tf tool compile-tf-graph lm.config --eval 1 --output_file lm.meta --output_file_state_vars_list states
    returnn-tf tool compile-tf-graph my.config --rec_step_by_step output --output_file steps.meta \\
        --rec_step_by_step_output_file steps.json

Names of ops, collections, and how a decoder loads the graph: the page "Meta graphs" of the documentation. Files that
exist are replaced.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool compile-tf-graph", _DOC)
    add = result.add_argument
    add("config", metavar="CONFIG", help="the config")
    add("--epoch", metavar="N", type=positive, help="calls get_network(epoch=N) of the config")
    add(
        "--train", type=int, choices=(0, 1, -1), default=0, help="1: dropout etc. are on; -1: a placeholder decides (0)"
    )
    add("--eval", type=int, choices=(0, 1), default=0, help="1: with losses and errors (0)")
    add("--search", type=int, choices=(0, 1), default=0, help="1: with the beam search (0)")
    add("--device", choices=("cpu", "gpu"), default="cpu", help="where the graph is to run (cpu)")
    add_verbosity(result)
    add("--summaries_tensor_name", metavar="NAME", default="", help="name of an op with all summaries")
    add("--output_file", metavar="FILE", help="by extension: %s" % "; ".join(
        "%s, %s" % item for item in graph_files.EXTENSIONS.items()))  # fmt: skip
    add("--output_file_model_params_list", metavar="FILE", help="names of all parameters, one per line")
    add("--output_file_state_vars_list", metavar="FILE", help="names of all state variables, one per line")
    add("--rec_step_by_step", metavar="LAYER", default="", help="single steps of this rec layer, for a search outside")
    add("--rec_step_by_step_output_file", metavar="FILE", help="description of the steps as JSON; default: printed")
    add(
        "--update_i_in_graph", action=argparse.BooleanOptionalAction,
        help="the graph counts the steps; --no-update_i_in_graph: the decoder does; default: the graph, unless each "
        "step belongs to a frame",
    )  # fmt: skip
    add("--portable", action="store_true", help="no native ops, so that the graph needs no library")
    return result


@register_tool("compile-tf-graph", parser)
def run(args: list[str]) -> int:
    """Write the graph.

    :param args: the arguments of the tool
    :raises ConfigError: an option is wrong, or the network of the config
    """
    given = parser().parse_args(args)
    extension = _check_outputs(given)
    configure_log(given.verbosity)
    config = _read(given)
    devices.set_up(config)
    request = GraphRequest(
        epoch=given.epoch,
        train={0: False, 1: True, -1: None}[given.train],
        losses=bool(given.eval),
        search=bool(given.search),
        summaries=given.summaries_tensor_name,
        steps=given.rec_step_by_step,
        graph_counts=given.update_i_in_graph,
        portable=given.portable,
    )
    compiled = compile_graph(config, request)
    beside = {}
    if compiled.files and extension and extension != ".logdir":
        beside = beside_graph(given.output_file, compiled.libraries.values(), compiled.files)
    _write(compiled, given, extension, beside)
    libraries = [path for path in beside if os.path.basename(path) not in compiled.files] or compiled.libraries.values()
    if libraries:
        log.write(3, "A program must load these libraries first: %s" % ":".join(libraries))
    if compiled.steps is not None and not given.rec_step_by_step_output_file:
        print(compiled.steps.as_json(), end="")
    return 0


def _read(given: argparse.Namespace) -> Config:
    """Read the config; its device and log do not count."""
    if given.config.startswith("+"):
        raise CommandError("compile-tf-graph: which config? Settings of it, as %s, can't be given here." % given.config)
    return derived(read_config([given.config]), {"device": given.device})


def _check_outputs(given: argparse.Namespace) -> str:
    """Check the output files before anything is computed; return the extension of that of the graph."""
    if given.rec_step_by_step_output_file and not given.rec_step_by_step:
        raise CommandError("--rec_step_by_step_output_file needs --rec_step_by_step LAYER.")
    lists = (
        "output_file_model_params_list", "output_file_state_vars_list", "rec_step_by_step_output_file"
    )  # fmt: skip
    for option in lists:
        if getattr(given, option):
            graph_files.check_place("--" + option, getattr(given, option))
    return graph_files.check_output(given.output_file) if given.output_file else ""


def _write(
    compiled: CompiledGraph, given: argparse.Namespace, extension: str, beside: Mapping[str, Union[bytes, memoryview]]
) -> None:
    """Write all files.

    :param beside: further ones, by path
    """
    builder = compiled.builder
    contents: dict[str, Union[bytes, memoryview]] = {}
    if given.output_file_model_params_list:
        contents[given.output_file_model_params_list] = graph_files.lines(map(op_name, builder.plan.params))
    if given.output_file_state_vars_list:
        contents[given.output_file_state_vars_list] = graph_files.lines(builder.state_names())
    if compiled.steps is not None and given.rec_step_by_step_output_file:
        contents[given.rec_step_by_step_output_file] = compiled.steps.as_json().encode("utf8")
    if extension == ".logdir":
        graph_files.write_log(builder, given.output_file)
    elif extension:
        contents[given.output_file] = graph_files.graph_content(builder, extension)
    graph_files.write_files({**contents, **beside})
    for path in [*contents, *([given.output_file] if extension == ".logdir" else [])]:
        log.write(3, "Wrote %s" % path)
