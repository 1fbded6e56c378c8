"""``returnn-tf native``: compile native ops ahead of time, list them, or remove those that were compiled."""

from __future__ import annotations

import argparse
import os

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import NativeDataError, NativeError, did_you_mean
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.native.build import Compilers, compile_into, find_compilers
from returnn_tf.native.cache import CacheEntry, cache_folders, clean
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS
from returnn_tf.util.temporary import Temporary

_DOC = """
Compile a native op ahead of time for a given kind of CPU, and write the library to a file.

For machines without a compiler, and for decoders in C++ that load it by TF_LoadLibrary before an exported graph. A
graph with large LSTMs that was saved on a CPU on which product is used needs lstm and product.

    returnn-tf native build lstm --output rtf_lstm.so                             for the CPU of this machine
    returnn-tf native build lstm --output rtf_lstm.so --target=-march=x86-64-v3   for any x86 CPU since about 2013
    returnn-tf native build lstm --output rtf_lstm.so --cuda-arch sm_80,sm_90     plus these GPUs
    returnn-tf native list                                                        list all ops
    returnn-tf native clean                            remove what was compiled on first use, also for older versions
"""
_ACTIONS = ("build", "list", "clean")


@register_command(
    "native",
    "build OP --output FILE | list | clean",
    "compile native ops ahead of time, list them, or empty their cache",
    own_help=lambda _: _parser().format_help(),
    group="use",
)
def run(args: list[str]) -> int:
    """Compile an op, list all of them, or remove those in the cache.

    :param args: ``build OP --output FILE ...``, ``list`` or ``clean``
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
