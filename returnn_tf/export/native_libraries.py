"""The libraries of native ops that an exported graph needs: private copies, described in the side file."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.export.graph_ops import all_ops, op_types
from returnn_tf.native.library import libraries_with
from returnn_tf.native.portable import portable_ops
from returnn_tf.native.shared_files import files_of
from returnn_tf.native.toolchain import cpu_features
from returnn_tf.ops.cells.fused_lstm import BLOCK_LSTM
from returnn_tf.util.lazy_tf import tf

#: Help text of the option of exporters to which `maybe_portable` belongs.
PORTABLE = "no native ops: the graph needs no library and runs on other machines, but recurrent layers are slower"
#: Folder of the libraries, within that of the export.
FOLDER = "native"


@contextlib.contextmanager
def maybe_portable(portable: bool) -> Iterator[None]:
    """Let what is traced use the ops that the graph may have."""
    if not portable:
        yield
        return
    with portable_ops(lstm=BLOCK_LSTM):
        yield


def beside_graph(path: str, libraries: Iterable[str], files: Mapping[str, NDArray[np.uint8]]) -> dict[str, Any]:
    """Return the content of private copies of libraries, and of files that they look for, by path: as in an export.

    :param path: of the file with the graph
    """
    folder = os.path.join(os.path.dirname(os.path.abspath(path)), FOLDER)
    contents: dict[str, Any] = {os.path.join(folder, name): content.data for name, content in files.items()}
    for library in libraries:
        with open(library, "rb") as file:
            contents[os.path.join(folder, os.path.basename(library))] = file.read()
    return contents


def copy_libraries(graph_def: Any, folder: str) -> dict[str, Any]:
    """Copy the libraries of native ops and the files of these into an export, and describe them for the side file.

    :param folder: of the export
    :return: "libraries": relative paths; what they were compiled for: "tensorflow", "machine", "cpu" (its features);
        "files", if there are any: paths of those that ops look for beside their library
    """
    facts: dict[str, Any] = {"libraries": [], "tensorflow": tf.version.VERSION}
    for path in libraries_with(op_types(graph_def)).values():
        relative = os.path.join(FOLDER, os.path.basename(path))
        os.makedirs(os.path.join(folder, FOLDER), exist_ok=True)
        shutil.copyfile(path, os.path.join(folder, relative))
        facts["libraries"].append(relative)
    if facts["libraries"]:
        facts.update(machine=platform.machine(), cpu=cpu_features())
    for name, content in files_of(all_ops(graph_def)).items():
        relative = os.path.join(FOLDER, name)
        content.tofile(os.path.join(folder, relative))
        facts.setdefault("files", []).append(relative)
    return facts
