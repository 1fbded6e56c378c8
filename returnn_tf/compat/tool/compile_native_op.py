"""``returnn-tf tool compile-native-op``: libraries of native ops for decoders, under the names of RETURNN's ops."""

from __future__ import annotations

import os
import shutil
import tempfile

from returnn_tf.cli import native
from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, check_sources, configure_log, parse
from returnn_tf.compat.tool.shared.text_files import write_file
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.export.graph_ops import op_types
from returnn_tf.logging.log import log
from returnn_tf.native.build import build, build_without_ops
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import libraries_with
from returnn_tf.native.sources import OPS, op_by_any_name
from returnn_tf.util.lazy_tf import tf

_DOC = """
Compile native ops for this machine, for decoders in C++, and list the libraries: two for each op.

    returnn-tf tool compile-native-op --native_op NativeLstm2 --output_file libraries.txt
    returnn-tf tool compile-native-op --config my.config --output_file libraries.txt     what the network needs

The first library of an op has the op and its gradient. The second one, for programs that expect the gradient in
another library, has no ops: no program may load the same op twice. They are in a new folder beside the list (without
one, in the current folder) and belong to the caller, who may move them.

The script also takes the arguments of returnn-tf native: lstm --output rtf_lstm.so, --list.
"""
_NO_BLAS = "has no effect: the ops multiply matrices by code of their own, without BLAS"
_OPTIONS = (
    *("--config", "--native_op", "--blas_lib", "--search_for_numpy_blas", "--no_search_for_numpy_blas"),
    *("--verbosity", "--output_file"),
)


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool compile-native-op", _DOC)
    result.add_argument("--config", metavar="CONFIG", help="compile all ops that its network needs")
    result.add_argument("--native_op", metavar="NAME", help="NativeLstm2, lstm, ...: " + _names())
    result.add_argument("--output_file", metavar="FILE", help="list of the libraries, a path a line")
    result.add_argument("--blas_lib", metavar="FILE", help=_NO_BLAS)
    for name in ("--search_for_numpy_blas", "--no_search_for_numpy_blas"):
        result.add_argument(name, action="store_true", help=_NO_BLAS)
    add_verbosity(result)
    return result


def _names() -> str:
    """Return the names of all ops, each with those of the ops that it replaces."""
    replaced = [(name, " for %s" % ", ".join(op.replaces) if op.replaces else "") for name, op in OPS.items()]
    return "; ".join(name + others for name, others in replaced)


@register_tool("compile-native-op", parser)
def run(args: list[str]) -> int:
    """Compile the ops.

    :param args: the arguments of the tool, or those of ``returnn-tf native``
    :raises DataError: there is no such op, or it can't be compiled here
    """
    if not any(argument.partition("=")[0] in _OPTIONS for argument in args):
        return native.run(["list"] if args == ["--list"] else ["build", *args])
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    check_sources("compile-native-op", {"--native_op": parsed.native_op, "--config": parsed.config})
    for option in ("blas_lib", "search_for_numpy_blas"):
        if getattr(parsed, option):
            log.write(2, "--%s %s" % (option, _NO_BLAS))
    try:
        if parsed.native_op:
            found = {parsed.native_op: build(op_by_any_name(parsed.native_op))[0]}
        else:
            found = _needed(read_config([parsed.config, *overrides]))
        paths = _private_copies(found, os.path.dirname(os.path.abspath(parsed.output_file or "x"))) if found else []
    except NativeOpError as exc:
        raise CommandDataError(str(exc)) from exc
    for path in paths:
        print(path)
    if not paths:
        print("the network needs no native op")
    if parsed.output_file:
        write_file(parsed.output_file, "".join(path + "\n" for path in paths))
    return 0


def _needed(config: Config) -> dict[str, str]:
    """Return the libraries of the ops in the graph of the network, after all pretraining: name -> path in the cache."""
    schedule = NetworkSchedule(config)
    last = max(TrainingSettings(config).num_epochs, schedule.pretrain_epochs + 1)
    net = Network.from_config(schedule.at(last).config, train=True)

    def emit(feed: dict[str, tf.Tensor]) -> None:
        net.lower(feed)

    graph = tf.function(emit, autograph=False).get_concrete_function(net.input_signature()).graph
    return libraries_with(op_types(graph.as_graph_def()))


def _private_copies(libraries: dict[str, str], folder: str) -> list[str]:
    """Copy libraries to a new folder, each with one that has no ops; return all paths."""
    try:
        os.makedirs(folder, exist_ok=True)
        target = tempfile.mkdtemp(prefix="native-ops-", dir=folder)
    except OSError as exc:
        raise CommandDataError("%r can't be written: %s" % (folder, exc.strerror or exc)) from exc
    paths = []
    try:
        for name, path in libraries.items():
            own, second = (os.path.join(target, "%s%s.so" % (prefix, name)) for prefix in ("", "GradOf"))
            shutil.copyfile(path, own)
            os.chmod(own, 0o755)
            build_without_ops(second)
            paths += [own, second]
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return paths
