#!/usr/bin/env python3
"""Composes lines of 3 - 8 handwritten digits into HDF files to train and test a recogniser with.

    python tools/compose_digit_lines.py demos/digits/out

reads the 1797 scanned digits of demos/digits/digits.hdf and writes train.hdf, dev.hdf and heldout.hdf. The digits vary
in width, slant, height on the line and strength, the gaps between them vary, too. No scanned digit is used in two of
the files. In train.hdf the strokes are bent, as if more hands had written the digits (--bend). The same options give
the same files, byte by byte. Each file is written under another name first and then renamed, so it is whole or not
there.

A file holds ``inputs`` float32 [all columns of all lines, 12]: the columns of the picture are the frames, their pixels
from top to bottom the features, 0 is paper, 1 is ink; ``targets/data/classes``: the digits; ``seqLengths`` [lines, 2]
and ``seqTags``. ``sourceImages`` says for each digit which image it was drawn from.
"""

from __future__ import annotations

import argparse
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(ROOT, "demos", "digits")
sys.path.insert(0, DEMO)

import lines  # noqa: E402  (lies beside the demo which it belongs to)


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="where the three files go; made if it is not there")
    parser.add_argument("--digits", default=os.path.join(DEMO, "digits.hdf"), help="file with the scanned digits")
    parser.add_argument("--train", type=int, default=18000, metavar="N", help="lines to train on (default %(default)s)")
    parser.add_argument("--dev", type=int, default=200, metavar="N", help="lines to steer training by (%(default)s)")
    parser.add_argument("--heldout", type=int, default=400, metavar="N", help="lines to test on (default %(default)s)")
    parser.add_argument("--min-digits", type=int, default=3, metavar="N", help="shortest line (default %(default)s)")
    parser.add_argument("--max-digits", type=int, default=8, metavar="N", help="longest line (default %(default)s)")
    parser.add_argument("--bend", type=float, default=0.5, metavar="X", help="of training digits (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default %(default)s)")
    args = parser.parse_args()
    counts = {name: getattr(args, name) for name in lines.SETS}
    if min(counts.values()) < 1 or not 1 <= args.min_digits <= args.max_digits:
        parser.error("numbers of lines must be at least 1, and 1 <= --min-digits <= --max-digits")
    if not os.path.isfile(args.digits):
        parser.error("--digits: there is no file %r" % args.digits)

    digits = lines.load_digits(args.digits)
    sources = lines.split_sources(len(digits.labels), args.seed)
    os.makedirs(args.directory, exist_ok=True)
    num_digits = (args.min_digits, args.max_digits)
    for number, name in enumerate(lines.SETS):
        bend = args.bend if name == "train" else 0.0
        composed = lines.compose(digits, sources[name], counts[name], (args.seed, number), num_digits, bend)
        path = os.path.join(args.directory, name + ".hdf")
        lines.write_hdf(path, composed, name, {"source": "UCI Optical Recognition of Handwritten Digits, CC BY 4.0"})
        num_labels, num_frames = sum(len(line.labels) for line in composed), sum(len(line.pixels) for line in composed)
        print(
            "%s: %d lines, %d digits drawn from %d images, %d frames"
            % (path, len(composed), num_labels, len(sources[name]), num_frames)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
