"""Writes a graph in the format that the extension of the file names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Union

from returnn_tf.config.errors import ExportDataError, ExportError, did_you_mean
from returnn_tf.engine.support.atomic_files import publish, staging
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.util.lazy_tf import tf

#: Extension -> what the file has.
EXTENSIONS = {
    ".meta": "MetaGraphDef: graph, saver and collections, for decoders",
    ".metatxt": "the same as text",
    ".pb": "GraphDef: the graph alone",
    ".pbtxt": "the same as text",
    ".logdir": "a folder for TensorBoard",
}


def check_output(path: str) -> str:
    """Return the extension of an output file.

    :raises ConfigError: it names no format, or the file can't be written there
    """
    extension = os.path.splitext(path)[1]
    if extension not in EXTENSIONS:
        raise ExportError(
            "--output_file: the extension of %r names no format of graphs. %s"
            % (path, did_you_mean(extension, EXTENSIONS))
        )
    check_place("--output_file", path, folder=extension == ".logdir")
    return extension


def check_place(option: str, path: str, *, folder: bool = False) -> None:
    """Check that a file, or a folder, can be written; one that exists is replaced.

    :raises ConfigError: there is something else, or its folder is missing
    """
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise ExportError("%s: there is no folder %s for %s. Make it first." % (option, parent, os.path.basename(path)))
    if os.path.exists(path) and os.path.isdir(path) != folder:
        kinds = ("folder", "file") if folder else ("file", "folder")
        raise ExportError("%s: %s must be a %s, but it is a %s." % (option, path, *kinds))


def graph_content(builder: GraphBuilder, extension: str) -> bytes:
    """Return the content of a file with a graph.

    :param extension: a key of `EXTENSIONS` other than ".logdir"
    :raises DataError: the graph is too large for its format
    """
    message = builder.meta_graph() if extension.startswith(".meta") else builder.graph_def()
    if extension.endswith("txt"):
        return str(message).encode("utf8")
    try:
        return bytes(message.SerializeToString())
    except ValueError as exc:
        raise ExportDataError("The graph can't be written, it has constants of more than 2 GB: %s" % exc) from None


def write_log(builder: GraphBuilder, folder: str) -> None:
    """Write a graph for TensorBoard."""
    event = tf.compat.v1.Event(wall_time=time.time(), graph_def=builder.graph_def().SerializeToString())
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(folder)
        try:
            writer.add_event(event)
        finally:
            writer.close()


def write_files(contents: Mapping[str, Union[bytes, memoryview]]) -> None:
    """Write several files: all, or none. The folder of a file is made if only that is missing.

    :param contents: by path
    :raises OSError: one can't be written
    """
    by_folder: dict[str, dict[str, Union[bytes, memoryview]]] = {}
    for path, content in contents.items():
        folder, name = os.path.split(os.path.abspath(path))
        by_folder.setdefault(folder, {})[name] = content
    _write_folders(list(by_folder.items()))


def _write_folders(folders: list[tuple[str, dict[str, Union[bytes, memoryview]]]]) -> None:
    """Write the files of each folder into a staging folder there; only when all are written, move them."""
    if not folders:
        return
    (folder, contents), rest = folders[0], folders[1:]
    if not os.path.isdir(folder):
        os.mkdir(folder)
    with staging(folder, next(iter(contents))) as temp:
        for name, content in contents.items():
            with open(os.path.join(temp, name), "wb") as file:
                file.write(content)
        _write_folders(rest)
        publish(temp, folder, list(contents))


def lines(names: Any) -> bytes:
    """Return a list as the text of a file, one name per line."""
    return "".join("%s\n" % name for name in names).encode("utf8")
