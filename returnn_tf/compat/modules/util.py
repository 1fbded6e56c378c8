"""``from returnn.util.basic import ...``: small helpers for configs."""

from __future__ import annotations

import getpass
import os
import pprint
import sys
from typing import Any, Optional

import numpy as np

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.numbers_dict import NumbersDict
from returnn_tf.config.errors import CodeError
from returnn_tf.config.user_files import load_user_file
from returnn_tf.datasets.core.safe_files import read_text
from returnn_tf.datasets.files import local_copy

register_compat(__name__, "returnn.util.basic", "Util")
register_compat(__name__, "returnn.util")

__all__ = [
    "BOM_UTF8",
    "BackendEngine",
    "NumbersDict",
    "PY3",
    "better_repr",
    "cf",
    "cleanup_env_var_path",
    "generic_import_module",
    "get_login_username",
    "load_txt_vector",
    "py2_utf8_str_to_unicode",
    "simple_obj_repr",
    "to_bool",
    "unicode",
]

PY3 = True
BOM_UTF8 = b"\xef\xbb\xbf"
unicode = str


class BackendEngine:
    """Which backend computes the networks: always that of layer dicts in TensorFlow."""

    Default = 0
    TensorFlowNetDict = TensorFlow = 1
    Torch = 2

    @classmethod
    def select_engine(cls, *, engine: Optional[int] = None, **others: Any) -> None:
        """Accept TensorFlow, the only backend.

        :param engine: the requested backend
        :param others: the config, and what it falls back to
        :raises ConfigError: another backend is requested
        """
        del others
        if engine not in (None, cls.Default, cls.TensorFlow):
            raise CodeError("BackendEngine.select_engine: there is no backend but TensorFlow, with layer dicts.")

    @classmethod
    def get_selected_engine(cls) -> int:
        """Return the backend of layer dicts."""
        return cls.TensorFlowNetDict

    @classmethod
    def is_tensorflow_selected(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def is_torch_selected(cls) -> bool:
        """Return False."""
        return False


def cleanup_env_var_path(env_var: str, path_prefix: str) -> None:
    """Remove the entries with a prefix from a variable such as LD_LIBRARY_PATH."""
    if env_var in os.environ:
        entries = os.environ[env_var].split(":")
        os.environ[env_var] = ":".join(entry for entry in entries if not entry.startswith(path_prefix))


def cf(filename: str) -> str:
    """Return the path of a copy of a file on the local disk, see `local_copy`."""
    return local_copy(filename, wanted=True)


def py2_utf8_str_to_unicode(text: Any) -> Any:
    """Return the text unchanged: strings are Unicode in Python 3."""
    return text


def load_txt_vector(filename: str) -> list[float]:
    """Read a text file with one number per line; comments begin with "#"."""
    lines = [line.split("#")[0].strip() for line in read_text(filename).splitlines()]
    return [float(line) for line in lines if line]


def get_login_username() -> str:
    """Return the login name of the user."""
    return getpass.getuser()


def to_bool(value: Any) -> bool:
    """Convert a number or a word such as "yes" to a bool.

    :raises ValueError: neither true nor false
    """
    words = {"0": False, "no": False, "off": False, "false": False, "1": True, "yes": True, "on": True, "true": True}
    if isinstance(value, (bool, int, float)):
        return bool(int(value))
    if str(value).lower() not in words:
        raise ValueError("%r is neither true nor false" % (value,))
    return words[str(value).lower()]


def better_repr(value: Any) -> str:
    """Return a value as Python code over several lines, with a comma after each entry; arrays in full."""
    if isinstance(value, list):
        return "[\n%s]" % "".join("%s,\n" % better_repr(item) for item in value)
    if isinstance(value, dict):
        return "{\n%s}" % "".join("%s: %s,\n" % (better_repr(key), better_repr(item)) for key, item in value.items())
    if isinstance(value, np.ndarray):
        with np.printoptions(threshold=sys.maxsize):
            return repr(value)
    return repr(value) if isinstance(value, str) else pprint.pformat(value, compact=True)


def simple_obj_repr(value: Any) -> str:
    """Return the class and the attributes of an object."""
    attributes = ", ".join("%s=%r" % item for item in sorted(vars(value).items()))
    return "%s(%s)" % (type(value).__name__, attributes)


def generic_import_module(filename: str) -> Any:
    """Import a file of the user, or a module by its name.

    :param filename: path of a .py file, or of a folder with an ``__init__.py``, or a name such as "a.b"
    :raises ConfigError: there is none
    """
    path = os.path.join(filename, "__init__.py") if os.path.isdir(filename) else filename
    if not os.path.exists(path):
        path = filename.replace(".", os.sep) + ".py"
        found = [os.path.join(folder, path) for folder in sys.path if os.path.exists(os.path.join(folder, path))]
        if not found:
            raise CodeError("generic_import_module: there is no file or module %r." % filename)
        path = found[0]
    name = "_returnn_tf_file_%s" % os.path.splitext(os.path.abspath(path))[0].replace(os.sep, "_").replace(".", "_")
    return load_user_file(name, path)
