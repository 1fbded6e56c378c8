"""``returnn-tf data to-hdf CONFIG [NAME] --output OUT.hdf``: copies any dataset to an HDF file."""

from __future__ import annotations

import os
import sys
from typing import Any

from returnn_tf.cli.data import source
from returnn_tf.cli.data.conversion import Conversion
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config.errors import FileDataError

_DOC = """
Copy a dataset to an HDF file: what it computes, e.g. features of audio, is stored, and read fast from then on.

    returnn-tf data to-hdf my.config --output train.hdf                  all training sequences, in corpus order
    returnn-tf data to-hdf my.config dev --output dev.hdf --keys data,classes
    returnn-tf data to-hdf my.config --output epoch1.hdf --epoch 1       those of the first epoch, in its order

Parts are written to OUT.hdf.parts and joined at the end, so there has to be room for the data twice. After an
interruption, the same command continues after the last complete part.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("data to-hdf", _DOC)
    source.add_arguments(result)
    result.add_argument("--output", metavar="OUT.hdf", required=True, help="the file to write")
    result.add_argument("--replace", action="store_true", help="replace an existing file")
    result.add_argument("--restart", action="store_true", help="remove the parts of an earlier run, and start over")
    result.add_argument(
        "--processes", metavar="N", type=positive, help="processes which read; default: one per CPU, at most 8"
    )
    result.add_argument("--part", metavar="N", type=positive, default=1000, help="sequences of a part (1000)")
    return result


def run(args: list[str]) -> int:
    """Copy the dataset.

    :raises DataError: the output exists already, or a sequence can't be read or written
    """
    parsed, found = source.parse(parser(), args)
    if os.path.exists(parsed.output) and not parsed.replace:
        raise FileDataError("%r exists already; add --replace, or choose another --output" % parsed.output)
    conversion = Conversion(found, source.chosen_keys(found.dataset, parsed.keys), parsed.epoch, parsed.part)
    found.close()
    parts = conversion.parts(parsed.output, restart=parsed.restart)
    if parts.num_complete:
        print("%d parts of an earlier run are there already" % parts.num_complete, flush=True)
    conversion.write_parts(parts, parsed.processes or source.default_processes(), _progress)
    num_seqs = conversion.join(parts, parsed.output, replace=parsed.replace)
    print("wrote %s: %d sequences, keys %s" % (parsed.output, num_seqs, ", ".join(conversion.keys)))
    return 0


def _progress(done: int, total: Any) -> None:
    """Report on a terminal the number of complete parts, and of all if known."""
    if sys.stderr.isatty():
        print("%d%s parts" % (done, "" if total is None else " of %d" % total), file=sys.stderr)
