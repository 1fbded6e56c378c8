"""``returnn-tf native``: compile native ops ahead of time, list them, or remove those that were compiled."""

from __future__ import annotations

import argparse
import os

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import NativeDataError, NativeError, did_you_mean
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.checks import plan_of
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.search.errors import decided_layers
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.engine.support import devices
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.native.build import Compilers, compile_into, find_compilers
from returnn_tf.native.cache import CacheEntry, cache_folders, clean
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import SWITCH, switched_off, used_ops
from returnn_tf.native.sources import OPS
from returnn_tf.tasks.search import search_plan, why_nothing_searches
from returnn_tf.util.temporary import Temporary

_DOC = """
Compile native ops ahead of time: into the cache, those that the training and search of a config need on this machine,

    returnn-tf native build --for my.config [++key value ...]

or one into a file, for a given kind of CPU. That is for machines without a compiler, and for decoders in C++ that load
it by TF_LoadLibrary before an exported graph. A graph with large LSTMs that was saved on a CPU on which product is used
needs lstm and product.

    returnn-tf native build lstm --output rtf_lstm.so                             for the CPU of this machine
    returnn-tf native build lstm --output rtf_lstm.so --target=-march=x86-64-v3   for any x86 CPU since about 2013
    returnn-tf native build lstm --output rtf_lstm.so --cuda-arch sm_80,sm_90     plus these GPUs
    returnn-tf native list                                                        list all ops
    returnn-tf native clean                            remove what was compiled on first use, also for older versions
"""
_ACTIONS = ("build", "list", "clean")
_FOR = "--for"


@register_command(
    "native",
    "build --for CONFIG | build OP --output FILE | list | clean",
    "compile native ops ahead of time, list them, or empty their cache",
    own_help=lambda _: _parser().format_help(),
    group="use",
)
def run(args: list[str]) -> int:
    """Compile an op, list all of them, or remove those in the cache.

    :param args: ``build --for CONFIG ...``, ``build OP --output FILE ...``, ``list`` or ``clean``
    :raises ConfigError: wrong arguments
    :raises DataError: the op cannot be compiled here, or a file of the cache can't be removed
    """
    if not args or args[0] not in _ACTIONS:
        hint = did_you_mean(args[0], _ACTIONS) if args else "returnn-tf native build OP --output FILE"
        raise NativeError("native: build, list or clean? %s" % hint)
    if args[0] != "build" and args[1:]:
        raise NativeError("native %s: takes no arguments, got %s" % (args[0], " ".join(args[1:])))
    if args[0] == "list":
        print("\n".join(OPS.names()))
        return 0
    if args[0] == "clean":
        return _clean()
    if _FOR in args:
        return _build_for([arg for arg in args[1:] if arg != _FOR])
    return _build(_parser().parse_args(args[1:]))


def _parser() -> CommandParser:
    parser = CommandParser("native build", _DOC)
    parser.add_argument("op", metavar="OP", help="name of the op: %s" % ", ".join(OPS.names()))
    parser.add_argument("--output", metavar="FILE", required=True, help="the library; an existing file is replaced")
    parser.add_argument(
        "--target", metavar="FLAG", action="append", help="flag for the instruction set; default: this machine's"
    )
    parser.add_argument(
        "--cuda-arch", metavar="ARCHS", default="", help="also compile for these GPUs and newer ones: sm_80,sm_90"
    )
    return parser


def _build(args: argparse.Namespace) -> int:
    if args.op not in OPS.names():
        raise NativeError("native build: there is no op %r. %s" % (args.op, did_you_mean(args.op, OPS.names())))
    try:
        with Temporary(args.output, folder=True) as temporary:
            entry = CacheEntry(temporary.path, args.op, "prebuilt")
            os.makedirs(entry.folder)
            compilers = _compilers(args)
            compile_into(entry, OPS[args.op], compilers)
            os.replace(entry.library, args.output)
    except OSError as exc:
        raise not_writable("native build: %r" % args.output, exc, topic="native-ops") from exc
    except NativeOpError as exc:
        raise NativeDataError(str(exc)) from exc
    flags = " ".join(compilers.cpu.target) or "no target flag"
    print("%s: compiled by %s with %s" % (args.output, compilers.description, flags))
    return 0


def _build_for(args: list[str]) -> int:
    """Compile and test what the graphs of a config need.

    :param args: config files and ``++key value``
    :raises ConfigError: the config is wrong
    :raises DataError: an op can't be used
    """
    if not args:
        raise NativeError("native build --for: name a config")
    if switched_off():
        raise NativeError("native build --for: native ops are switched off: %s=0. Unset it." % SWITCH)
    config = read_config(args)
    devices.set_up(config)
    trains = TaskSettings(config).task == "train"
    if trains:
        _trace_training(config)
    _trace_search(config, needed=not trains)
    used = used_ops()
    failed = [name for name, works in used.items() if not works]
    if failed:
        text = "%s can't be used here; why is said above. The form in plain TensorFlow would take over"
        raise NativeDataError("native build --for: " + text % ", ".join(failed))
    print("ready: %s" % (", ".join(used) or "no native op is needed"))
    return 0


def _trace_training(config: Config) -> None:
    """Trace the step and the evaluation of all networks that are trained."""
    schedule = NetworkSchedule(config)
    last = max(TrainingSettings(config).num_epochs, schedule.pretrain_epochs + 1)
    for entry in schedule.distinct(1, last):
        net = Network(plan_of(entry), entry.config)
        StepTrainer(net, entry.config, World()).function.trace()
        Evaluator(net, entry.config).trace()


def _trace_search(config: Config, *, needed: bool) -> None:
    """Trace the search of the last network, if it searches.

    :param needed: the network is not trained: without a search, there is nothing to compile for
    :raises ConfigError: it does not search, though needed
    """
    plan = search_plan(without_fine_tuning(config))
    reason = why_nothing_searches(plan)
    chosen = [node.path for node in plan.roots() if node.output.sparse or node.output.beam]
    if not reason:
        layers = dict.fromkeys([*(entry.layer for entry in decided_layers(plan)), *chosen])
        Searcher(Network(plan, config), list(layers), with_losses=False).trace()
    elif needed:
        raise NativeError("native build --for: %s" % reason)


def _clean() -> int:
    for folder in cache_folders():
        try:
            count, size = clean(folder)
        except (OSError, NativeOpError) as exc:
            raise NativeDataError("native clean: %s" % exc) from exc
        print("%s: removed %d compiled op%s, %.1f MB" % (folder, count, "" if count == 1 else "s", size / 1e6))
    return 0


def _compilers(args: argparse.Namespace) -> Compilers:
    """Find the compilers that the command line requires.

    :raises NativeOpError: one is missing, or the op has no kernels for GPUs
    """
    archs = [arch for arch in args.cuda_arch.split(",") if arch]
    if archs and not OPS[args.op].cuda:
        raise NativeOpError("%s has no kernels for GPUs; omit --cuda-arch" % args.op)
    return find_compilers(OPS[args.op], archs, args.target)
