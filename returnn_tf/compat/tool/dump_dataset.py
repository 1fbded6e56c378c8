"""``returnn-tf tool dump-dataset``: sequences of a dataset as text, files or pictures, and statistics of it."""

from __future__ import annotations

import argparse
import ast
import code
import io
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.drawing import draw_sequence
from returnn_tf.cli.data.dump import as_text, describe
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, configure_log, last_seq, natural, parse
from returnn_tf.compat.tool.shared.datasets import OpenDataset, open_dataset, positions
from returnn_tf.compat.tool.shared.frame_statistics import FrameStatistics
from returnn_tf.compat.tool.shared.text_files import write_file
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.datasets.config import batch_options_from_config, without_auto
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.logging.text import printable


class DumpOptions(NamedTuple):
    """Options of all types."""

    prefix: str
    postfix: str
    key: str
    limit: int  # labels or frames to print
    as_bytes: bool


class DumpType:
    """One of the types; as such, reads the sequences and does nothing."""

    #: whether the data of the sequences is needed
    reads = True

    def __init__(self, opened: OpenDataset, options: DumpOptions) -> None:
        self.opened = opened
        self.options = options

    @property
    def _specs(self) -> dict[str, Any]:
        return self.opened.dataset.data_specs

    def add(self, reader: EpochReader, position: int) -> None:
        """Process a sequence."""

    def end(self) -> None:
        """Complete the output."""


class Stdout(DumpType):
    """Prints the data."""

    def add(self, reader: EpochReader, position: int) -> None:
        """Print a sequence."""
        sequence = reader.sequence(position)
        lines = describe(sequence, reader.keys, self._specs, self.options.limit)
        print("\n".join(map(printable, lines)))
        if self.options.as_bytes:
            for key in reader.keys:
                print("  %s as bytes: %r" % (printable(key), _as_bytes(sequence.data[key], self._specs[key])))


class PrintShape(DumpType):
    """Prints the shapes."""

    def add(self, reader: EpochReader, position: int) -> None:
        """Print the shapes of a sequence."""
        data = reader.sequence(position).data
        types = {key: "string" if value.dtype.kind in "OSU" else value.dtype.name for key, value in data.items()}
        shapes = ["%s %s %s" % (key, types[key], list(value.shape)) for key, value in data.items()]
        print(printable("seq %d %s: %s" % (position, reader.tag(position), ", ".join(shapes))))


class PrintTag(DumpType):
    """Prints the tags."""

    reads = False

    def add(self, reader: EpochReader, position: int) -> None:
        """Print the tag of a sequence."""
        print("seq %d %s" % (position, printable(reader.tag(position))))


class DumpTag(DumpType):
    """Writes the tags to a file, one a line."""

    reads = False

    def __init__(self, opened: OpenDataset, options: DumpOptions) -> None:
        super().__init__(opened, options)
        self._tags: list[str] = []

    def add(self, reader: EpochReader, position: int) -> None:
        """Collect the tag of a sequence."""
        self._tags.append(reader.tag(position))

    def end(self) -> None:
        """Write the file."""
        path = self.options.prefix + "seq-tags.txt"
        write_file(path, "".join(tag + "\n" for tag in self._tags))
        print("wrote %s: %d tags" % (path, len(self._tags)))


class DumpSeqLen(DumpType):
    """Writes the lengths to a file: a Python dict from tag to frames."""

    reads = False

    def __init__(self, opened: OpenDataset, options: DumpOptions) -> None:
        super().__init__(opened, options)
        opened.check_key(options.key)
        self._lengths: dict[str, int] = {}

    def add(self, reader: EpochReader, position: int) -> None:
        """Collect the length of a sequence."""
        self._lengths[reader.tag(position)] = int(reader.lengths(position)[self.options.key])

    def end(self) -> None:
        """Write the file."""
        path = self.options.prefix + "seq-lens.txt"
        write_file(path, "{\n%s}\n" % "".join("%r: %d,\n" % item for item in self._lengths.items()))
        print("wrote %s: %d lengths of %r" % (path, len(self._lengths), self.options.key))


class Numpy(DumpType):
    """Writes each key of a sequence to a text file that ``numpy.loadtxt`` reads."""

    def add(self, reader: EpochReader, position: int) -> None:
        """Write the files of a sequence."""
        for key, value in reader.sequence(position).data.items():
            name = "data" if key == "data" else "targets.%s" % key
            path = "%s%d.%s%s" % (self.options.prefix, position, name, self.options.postfix)
            write_file(path, self._content(reader.tag(position), key, value))

    def _content(self, tag: str, key: str, value: NDArray[Any]) -> str:
        text = as_text(value, self._specs[key])
        if text is not None:
            return text + "\n"
        if value.ndim > 2:
            shape = list(value.shape)
            raise CommandDataError(
                "%s: %r of %r has the shape %s, no table for numpy" % (self.opened.title, key, tag, shape)
            )
        buffer = io.StringIO()
        np.savetxt(buffer, np.atleast_1d(value), fmt="%i" if value.dtype.kind in "iub" else "%.18e")
        return buffer.getvalue()


class Plot(DumpType):
    """Draws each sequence to a file."""

    def add(self, reader: EpochReader, position: int) -> None:
        """Draw a sequence."""
        path = "%s%d.png" % (self.options.prefix, position)
        draw_sequence(reader.sequence(position), reader.keys, self._specs, path)
        print("seq %d %s: drawn to %s" % (position, printable(reader.tag(position)), path))


class Interactive(DumpType):
    """Opens a Python console for each sequence, with the variables ``dataset``, ``sequence`` and ``data``."""

    def add(self, reader: EpochReader, position: int) -> None:
        """Open the console; its end leads to the next sequence."""
        sequence = reader.sequence(position)
        names = {"dataset": self.opened.dataset, "sequence": sequence, "data": sequence.data}
        banner = "seq %d %s: dataset, sequence, data. The end of the input leads on." % (position, sequence.tag)
        code.interact(banner=banner, local=names, exitmsg="")


def _as_bytes(value: NDArray[Any], spec: Any) -> bytes:
    """Return a value as bytes: text in UTF-8, labels below 256 one byte each, else the memory of the array."""
    text = as_text(value, spec)
    if text is not None:
        return text.encode("utf8")
    if spec.sparse and value.size and value.min() >= 0 and value.max() < 256:
        return value.astype(np.uint8).tobytes()
    return value.tobytes()


TYPES: dict[str, type[DumpType]] = {
    "stdout": Stdout,
    "print_shape": PrintShape,
    "print_tag": PrintTag,
    "dump_tag": DumpTag,
    "dump_seq_len": DumpSeqLen,
    "numpy": Numpy,
    "plot": Plot,
    "interactive": Interactive,
    "null": DumpType,
}


_DOC = """
Show sequences of a dataset, write them to files, or compute statistics over all frames.

    returnn-tf tool dump-dataset my.config                                     the first sequences of train
    returnn-tf tool dump-dataset my.config --dataset dev --endseq -1 --type null       reads all of dev
    returnn-tf tool dump-dataset train.hdf --type print_shape --seqtags seq-3,seq-7
    returnn-tf tool dump-dataset my.config --endseq -1 --type null --dump_stats stats  stats.mean.txt etc.

Types: stdout (values), print_shape, print_tag; dump_tag and dump_seq_len write <prefix>seq-tags.txt and
<prefix>seq-lens.txt; numpy writes <prefix><n>.data<postfix> and <prefix><n>.targets.<key><postfix>; plot draws
<prefix><n>.png; interactive opens a Python console for each sequence; null only reads.
"""
_SHOWN = 10  # the last sequence by default
_LIMIT = 20


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool dump-dataset", _DOC)
    add = result.add_argument
    add("source", metavar="CONFIG", help="a config, an HDF file, or a dataset as text")
    add("--dataset", metavar="NAME", help="in the config: train (default), dev, ..., or a dataset as text")
    add("--epoch", metavar="N", type=positive, default=1, help="whose sequences, in its order (1)")
    add("--startseq", metavar="N", type=natural, default=0, help="first sequence (0)")
    add("--endseq", metavar="N", type=last_seq, help="last one, inclusive; -1: all; default 10, with --seqtags all")
    add("--seqtags", metavar="TAG,TAG", help="these sequences")
    add("--get_num_seqs", action="store_true", help="only print the number of sequences")
    add("--type", choices=TYPES, default="stdout", help="what to do with each sequence")
    add("--stdout_limit", metavar="N", type=_limit, default=_LIMIT, help="values of a sequence to print, or inf (20)")
    add("--stdout_as_bytes", action="store_true", help="also print the data as bytes")
    add_verbosity(result)
    add("--dump_prefix", metavar="PREFIX", default="/tmp/returnn.dump-dataset.", help="start of names of files")
    add("--dump_postfix", metavar="SUFFIX", default=".txt.gz", help="end of names of files (.txt.gz)")
    add("--key", default="data", help="data key for statistics and lengths (data)")
    add("--stats", action="store_true", help="print statistics of the key over all frames")
    add(
        "--dump_stats",
        metavar="PREFIX",
        help="write them: PREFIX.mean.txt, .std_dev.txt, .min.txt, .max.txt, .info.txt",
    )
    for name, what in (("max", "longer"), ("min", "shorter")):
        text = 'skip %s sequences: a number, a dict by key, or "config": the setting' % what
        add("--%s_seq_length" % name, metavar="N", help=text)
    return result


def _limit(text: str) -> int:
    return sys.maxsize if text.strip().lower() == "inf" else positive(text)


@register_tool("dump-dataset", parser)
def run(args: list[str]) -> int:
    """Go through the sequences.

    :param args: the arguments of the tool
    :raises DataError: a sequence can't be read, or there is none
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    opened = open_dataset(parsed.source, parsed.dataset, overrides)
    try:
        if parsed.get_num_seqs:
            _print_num_seqs(opened, parsed.epoch)
        else:
            _dump(opened, parsed)
    finally:
        opened.close()
    return 0


def _print_num_seqs(opened: OpenDataset, epoch: int) -> None:
    order = None if opened.dataset.endless or opened.dataset.is_stream else opened.dataset.seq_order(epoch)
    print("total_num_seqs: %s" % ("unknown" if opened.dataset.num_seqs is None else opened.dataset.num_seqs))
    print("num_seqs of epoch %d: %s" % (epoch, "unknown" if order is None else len(order)))


def _dump(opened: OpenDataset, parsed: argparse.Namespace) -> None:
    options = DumpOptions(
        parsed.dump_prefix, parsed.dump_postfix, parsed.key, parsed.stdout_limit, parsed.stdout_as_bytes
    )
    dump = TYPES[parsed.type](opened, options)
    statistics = _statistics(opened, parsed, reads=dump.reads)
    limits = _limits(opened, parsed)
    tags = [tag.strip() for tag in parsed.seqtags.split(",")] if parsed.seqtags else None
    last = parsed.endseq if parsed.endseq is not None else -1 if tags else _SHOWN
    keys = opened.dataset.data_keys
    count = skipped = 0
    which = {"first": parsed.startseq, "last": None if last < 0 else last, "tags": tags}
    for reader, position in positions(opened, parsed.epoch, keys, **which):
        if not _fits(reader, position, limits):
            skipped += 1
            continue
        count += 1
        if dump.reads:
            reader.sequence(position)
        dump.add(reader, position)
        if statistics is not None:
            statistics.add(reader.sequence(position).data[parsed.key])
    if not count:
        raise CommandDataError("%s has no sequences %s" % (opened.title, "within the limits" if skipped else "there"))
    dump.end()
    print("%d sequences%s" % (count, ", %d others are too long or too short" % skipped if skipped else ""))
    if statistics is not None:
        if parsed.stats:
            print("\n".join(statistics.lines()))
        if parsed.dump_stats:
            print("wrote %s" % ", ".join(statistics.write(parsed.dump_stats)))


def _statistics(opened: OpenDataset, parsed: argparse.Namespace, *, reads: bool) -> Optional[FrameStatistics]:
    if not (parsed.stats or parsed.dump_stats):
        return None
    if not reads:
        raise CommandError("--type %s reads no data, so there are no statistics; use --type null" % parsed.type)
    opened.check_key(parsed.key)
    return FrameStatistics("%r of %s" % (parsed.key, opened.title))


def _limits(opened: OpenDataset, parsed: argparse.Namespace) -> Optional[BatchOptions]:
    """Return the limits of lengths; None without any.

    :raises ConfigError: a limit is not of one of the allowed forms
    """
    of_config = batch_options_from_config(without_auto(opened.config), train=True, epoch=parsed.epoch)
    given: dict[str, Any] = {}
    for name in ("max_seq_length", "min_seq_length"):
        text = getattr(parsed, name)
        if text == "config":
            given[name] = of_config.get(name, 0)
        elif text is not None:
            given[name] = _literal("--" + name, text)
    return BatchOptions.make("dump-dataset", opened.dataset.data_keys, given) if given else None


def _literal(option: str, text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if isinstance(value, bool) or not isinstance(value, (int, float, Mapping)):
        raise CommandError(
            "%s: %r is neither a number, nor a dict from data key to number, nor config" % (option, text)
        )
    return value


def _fits(reader: EpochReader, position: int, limits: Optional[BatchOptions]) -> bool:
    if limits is None:
        return True
    frames = reader.lengths(position)
    longest = all(limit is None or frames[key] <= limit for key, limit in limits.max_seq_length.items())
    return longest and all(not limit or frames[key] >= limit for key, limit in limits.min_seq_length.items())
