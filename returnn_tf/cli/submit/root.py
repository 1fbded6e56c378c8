"""``returnn-tf root``: write a folder which job managers name as the checkout of RETURNN."""

from __future__ import annotations

import os
import re
import shutil
import sys

from returnn_tf.cli.commands import register_command
from returnn_tf.config.errors import ClusterError, DataError
from returnn_tf.engine.support.atomic_files import staging
from returnn_tf.util.shipped import shipped_folder

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LOADER = os.path.join("returnn_tf", "__init__.py")
_PLACE = re.compile(r"(?m)^_PACKAGE = .*$")

_DOC = """
The folder has rnn.py, tools/ and a package returnn without TensorFlow; jobs name it as returnn_root. They use the
package returnn_tf from which this command is run. In a checkout, the folder i6 is such a one already.
More: returnn-tf explain clusters.
"""


@register_command(
    "root",
    "FOLDER",
    "write a folder for job managers: rnn.py, tools/, package returnn",
    details=_DOC,
    group="use",
)
def root(args: list[str]) -> int:
    """Write the folder.

    :raises ConfigError: wrong arguments, or it exists
    :raises DataError: it can't be written
    """
    if len(args) != 1 or args[0].startswith("-"):
        raise ClusterError("usage: returnn-tf root FOLDER")
    folder = os.path.abspath(args[0])
    if os.path.exists(folder):
        raise ClusterError("%s exists already. Remove it, or choose another folder." % args[0])
    try:
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with staging(os.path.dirname(folder), os.path.basename(folder)) as temp:
            _fill(temp)
            os.chmod(temp, 0o755)
            os.rename(temp, folder)
    except OSError as exc:
        raise DataError("%s can't be written: %s" % (args[0], exc.strerror or exc), topic="clusters") from exc
    print("Wrote %s: returnn_root of jobs whose returnn_python_exe is %s" % (args[0], sys.executable))
    return 0


def _fill(folder: str) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    source = shipped_folder("i6")
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
    if os.path.dirname(source) != _PACKAGE:  # in a checkout, its scripts only run those of the folder tools
        for name in os.listdir(os.path.join(folder, "tools")):
            shutil.copy(os.path.join(os.path.dirname(source), "tools", name), os.path.join(folder, "tools", name))
    with open(os.path.join(folder, _LOADER), encoding="utf8") as file:
        text = file.read()
    with open(os.path.join(folder, _LOADER), "w", encoding="utf8") as file:
        file.write(_PLACE.sub(lambda _: "_PACKAGE = %r" % _PACKAGE, text, count=1))
