"""What ``dump-dataset`` does with each sequence: the values of ``--type``."""

from __future__ import annotations

import code
import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.drawing import draw_sequence
from returnn_tf.cli.data.dump import as_text, describe
from returnn_tf.compat.tool.shared.datasets import OpenDataset
from returnn_tf.compat.tool.shared.text_files import write_file
from returnn_tf.config import DataError
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
        """Take a sequence."""

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
        """Note the tag of a sequence."""
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
        """Note the length of a sequence."""
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
            raise DataError("%s: %r of %r has the shape %s, no table for numpy" % (self.opened.title, key, tag, shape))
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
