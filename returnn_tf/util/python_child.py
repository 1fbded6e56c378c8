"""Commands of other Python processes that run code of this package."""

from __future__ import annotations

import os
import sys

_INIT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py")
# What a terminal can't show is written as an escape, as by the program itself. The package is loaded from its file: in
# an editable install its folder is not in sys.path, and a returnn_tf.py beside the config would be found in its place.
_START = """\
import sys
sys.path[:] = %s
if sys.stdout and sys.stdout.errors == "strict":
    sys.stdout.reconfigure(errors="backslashreplace")
import importlib.util
_spec = importlib.util.spec_from_file_location("returnn_tf", %s)
sys.modules["returnn_tf"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["returnn_tf"])
%s
"""


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a Python process that imports what this process would import.

    Python would first look into the working directory, where others may write: a ``json.py`` there would be executed.

    :param code: run after this package is loaded
    :param arguments: its ``sys.argv[1:]``
    """
    flags = ["-P"] if sys.version_info >= (3, 11) else []  # older ones import nothing before they run the code
    paths = [os.path.abspath(path) for path in sys.path]
    return [sys.executable, *flags, "-c", _START % (ascii(paths), ascii(_INIT), code), *arguments]
