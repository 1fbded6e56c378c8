"""The files that an installed package has in one archive, which is half as large.

These are the native sources, the folder ``i6``, and texts of the package. A checkout has them as folders and files, and
no archive. ``setup.py`` writes it.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARCHIVE = os.path.join(_PACKAGE, "files.tar.xz")


@functools.cache
def packed(name: str, archive: str = ARCHIVE) -> Mapping[str, bytes]:
    """Return the contents of the files below a folder of the archive, by their paths relative to it.

    :param name: "native_ops", "i6", or a folder of the package
    :return: empty if there is no archive, as in a checkout
    :raises OSError: it can't be read, or this Python was built without lzma
    """
    if not os.path.exists(archive):
        return {}
    try:
        with tarfile.open(archive, "r:xz") as tar:
            files = [(info.name, tar.extractfile(info)) for info in tar if info.name.startswith(name + "/")]
            return {path[len(name) + 1 :]: (file or io.BytesIO()).read() for path, file in files}
    except tarfile.TarError as exc:  # also if there is no module lzma
        raise OSError(errno.EIO, "the package's archive can't be read: %s" % exc, archive) from exc


def unpack(name: str, folder: str, archive: str = ARCHIVE) -> None:
    """Write the files below a folder of the archive into another folder, which is created.

    :raises OSError: see `packed`; or they can't be written
    """
    for path, content in packed(name, archive).items():
        to = os.path.join(folder, *path.split("/"))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "wb") as file:
            file.write(content)


@functools.cache
def texts(module_file: str, suffix: str, archive: str = ARCHIVE) -> Mapping[str, str]:
    """Return the texts that stand in the folder of a module, by their names without the suffix.

    :param module_file: ``__file__`` of the module, which is in this package
    :raises OSError: see `packed`
    """
    folder = os.path.dirname(os.path.abspath(module_file))
    name = os.path.relpath(folder, os.path.dirname(_PACKAGE)).replace(os.sep, "/")
    files = dict(packed(name, archive))
    if not os.path.exists(archive):
        for path in Path(folder).glob("*" + suffix):
            files[path.name] = path.read_bytes()
    return {
        path[: -len(suffix)]: files[path].decode("utf8")
        for path in sorted(files)
        if path.endswith(suffix) and "/" not in path
    }
