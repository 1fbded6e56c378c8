"""Text files that tools write: whole or not at all."""

from __future__ import annotations

import gzip
import os
import stat

from returnn_tf.config.errors import CommandDataError
from returnn_tf.engine.support.atomic_files import write_bytes


def write_file(path: str, content: str) -> None:
    """Write a text file, compressed if its name ends in ``.gz``; it gets its name when it is complete.

    What is no regular file, as ``/dev/stdout``, is written as it is.

    :raises DataError: it can't be written
    """
    data = content.encode("utf8")
    if path.endswith(".gz"):
        data = gzip.compress(data, mtime=0)  # the same content gives the same file
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as file:
                file.write(data)
            return
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        write_bytes(path, data)
    except OSError as exc:
        raise CommandDataError("%r can't be written: %s" % (path, exc.strerror or exc)) from exc


def check_is_new(path: str, option: str) -> None:
    """Refuse to replace a file that holds something; an empty one, as of mktemp, does not.

    :raises DataError: it exists
    """
    if os.path.isdir(path) or (os.path.isfile(path) and os.path.getsize(path)):
        raise CommandDataError("%s: %r exists already. Remove it, or choose another name" % (option, path))
