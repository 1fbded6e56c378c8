#!/usr/bin/env python3
"""Compiles native ops ahead of time for a given kind of CPU, and copies the library.

For machines without a compiler, and for decoders in C++ which load it by ``TF_LoadLibrary`` before an exported graph.
A graph with large LSTMs that was saved on a CPU with a tile unit needs lstm and product.

    tools/compile_native_op.py lstm --output rtf_lstm.so                            for the CPU of this machine
    tools/compile_native_op.py lstm --output rtf_lstm.so --target=-march=x86-64-v3   for any x86 CPU since about 2013
    tools/compile_native_op.py lstm --output rtf_lstm.so --cuda-arch sm_80,sm_90     and for these GPUs
    tools/compile_native_op.py --list
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from returnn_tf.native.build import Compilers, compile_into, find_compilers  # noqa: E402
from returnn_tf.native.cache import Entry  # noqa: E402
from returnn_tf.native.errors import NativeOpError  # noqa: E402
from returnn_tf.native.sources import OPS  # noqa: E402


def main() -> int:
    """The command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", nargs="?", choices=sorted(OPS), help="name of the op")
    parser.add_argument("--list", action="store_true", help="print the names of all ops")
    parser.add_argument("--output", help="where the library goes; an existing file is replaced")
    parser.add_argument("--target", action="append", help="flag for the instruction set; default: this machine's")
    parser.add_argument(
        "--cuda-arch", default="", help="GPUs to compile for too, as sm_80,sm_90; newer ones run it too"
    )
    args = parser.parse_args()
    if args.list:
        print("\n".join(sorted(OPS)))
        return 0
    if not args.op or not args.output:
        parser.error("give the name of an op and --output, or --list")
    folder = os.path.dirname(os.path.abspath(args.output))
    try:
        with tempfile.TemporaryDirectory(dir=folder) as temp:
            entry = Entry(temp, args.op, "prebuilt")
            os.makedirs(entry.folder)
            compilers = _compilers(args)
            compile_into(entry, OPS[args.op], compilers)
            shutil.move(entry.library, args.output)
    except (NativeOpError, OSError) as exc:
        print("error: %s" % exc, file=sys.stderr)
        return 1
    print(
        "%s: compiled by %s with %s"
        % (args.output, compilers.description, " ".join(compilers.cpu.target) or "no target flag")
    )
    return 0


def _compilers(args: argparse.Namespace) -> Compilers:
    """The compilers for what the command line asks for.

    :raises NativeOpError: one is missing, or the op has no kernels for GPUs
    """
    archs = [arch for arch in args.cuda_arch.split(",") if arch]
    if archs and not OPS[args.op].cuda:
        raise NativeOpError("%s has no kernels for GPUs; leave --cuda-arch away" % args.op)
    return find_compilers(OPS[args.op], archs, args.target)


if __name__ == "__main__":
    sys.exit(main())
