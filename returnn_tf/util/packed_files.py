"""The files that an installed package has in one archive, which is half as large: native sources, the folder ``i6``.

A checkout has them as folders beside the package and no archive. ``setup.py`` writes it.
"""

from __future__ import annotations

import functools
import io
import os
import tarfile
from collections.abc import Mapping

ARCHIVE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "files.tar.xz")


@functools.cache
def packed(name: str, archive: str = ARCHIVE) -> Mapping[str, bytes]:
    """Return the contents of the files below a folder of the archive, by their paths relative to it.

    :param name: "native_ops" or "i6"
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
        raise OSError("%s can't be read: %s" % (archive, exc)) from exc


def unpack(name: str, folder: str, archive: str = ARCHIVE) -> None:
    """Write the files below a folder of the archive into another folder, which is created.

    :raises OSError: see `packed`; or they can't be written
    """
    for path, content in packed(name, archive).items():
        to = os.path.join(folder, *path.split("/"))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "wb") as file:
            file.write(content)
