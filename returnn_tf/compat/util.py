"""``from returnn.util.basic import ...``: small helpers for configs."""

from __future__ import annotations

import os
from typing import Any

from returnn_tf.config.compat_modules import register_compat

register_compat(__name__, "returnn.util.basic", "Util")

PY3 = True


def cleanup_env_var_path(env_var: str, path_prefix: str) -> None:
    """Remove the entries with a prefix from a variable such as LD_LIBRARY_PATH."""
    if env_var in os.environ:
        entries = os.environ[env_var].split(":")
        os.environ[env_var] = ":".join(entry for entry in entries if not entry.startswith(path_prefix))


def cf(filename: str) -> str:
    """Return the path unchanged: there is no file cache here."""
    return filename


def py2_utf8_str_to_unicode(text: Any) -> Any:
    """Return the text unchanged: strings are Unicode in Python 3."""
    return text


def load_txt_vector(filename: str) -> list[float]:
    """Read a text file with one number per line; comments begin with "#"."""
    with open(filename, encoding="utf8") as file:
        lines = [line.split("#")[0].strip() for line in file]
    return [float(line) for line in lines if line]
