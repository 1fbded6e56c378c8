"""``from returnn.util.basic import ...``: small helpers for configs."""

from __future__ import annotations

import copy
import getpass
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pprint import pformat as _pformat
from typing import Any, Optional

import numpy as np

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.behavior_version import BehaviorVersion
from returnn_tf.compat.modules.math import next_power_of_two
from returnn_tf.compat.numbers_dict import NumbersDict
from returnn_tf.config.errors import CodeError
from returnn_tf.config.user_files import load_user_file
from returnn_tf.datasets.core.safe_files import read_text
from returnn_tf.datasets.files import local_copy
from returnn_tf.logging.text import hms

register_compat(__name__, "returnn.util.basic", "Util")
register_compat(__name__, "returnn.util")

__all__ = [
    "BOM_UTF8",
    "BackendEngine",
    "BehaviorVersion",
    "NotSpecified",
    "NumbersDict",
    "OptionalNotImplementedError",
    "PY3",
    "RefIdEq",
    "as_str",
    "better_repr",
    "camel_case_to_snake_case",
    "cf",
    "cleanup_env_var_path",
    "deepcopy",
    "dict_joined",
    "generic_import_module",
    "get_login_username",
    "get_temp_dir",
    "hms",
    "hms_fraction",
    "human_bytes_size",
    "human_size",
    "load_txt_vector",
    "long",
    "make_hashable",
    "next_power_of_two",
    "prod",
    "progress_bar_with_time",
    "py2_utf8_str_to_unicode",
    "simple_obj_repr",
    "snake_case_to_camel_case",
    "sysexec_out",
    "sysexecOut",
    "to_bool",
    "try_run",
    "unicode",
    "uniq",
]

PY3 = True
BOM_UTF8 = b"\xef\xbb\xbf"
unicode = str
long = int
deepcopy = copy.deepcopy


class NotSpecified:
    """Stands for an argument that is not given, where None is a value."""

    @classmethod
    def resolve(cls, value: Any, default: Any) -> Any:
        """Return a value, or the default in place of this class."""
        return default if value is cls else value


class OptionalNotImplementedError(NotImplementedError):
    """Raised by an optional method that a class lacks."""


class RefIdEq:
    """Wraps an object in one that equals only wrappers of the same object.

    :param obj: may be of a kind that has no hash
    """

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefIdEq) and self.obj is other.obj

    def __hash__(self) -> int:
        return id(self.obj)

    def __repr__(self) -> str:
        return "<RefIdEq %r>" % (self.obj,)


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
    return repr(value) if isinstance(value, str) else _pformat(value, compact=True)


def hms_fraction(seconds: float, decimals: int = 4) -> str:
    """Return hours, minutes and seconds with decimals, as ``0:00:01.5000``."""
    whole = math.floor(seconds)
    return hms(whole) + ("%.*f" % (decimals, seconds - whole))[1:]


def human_size(number: float, factor: int = 1000, frac: float = 0.8, prec: int = 1) -> str:
    """Return a number with one of the units K, M, G and T, as ``1.5M``.

    :param factor: between units
    :param frac: a unit is used from this part of it on
    :param prec: number of decimals
    """
    power = sum(number > frac * factor**i for i in range(1, 5))
    return "%.*f%s" % (prec, number / factor**power, " KMGT"[power]) if power else str(number)


def human_bytes_size(number: float, factor: int = 1024, frac: float = 0.8, prec: int = 1) -> str:
    """Return a number of bytes with a unit, as ``1.5MB``; see `human_size`."""
    return human_size(number, factor, frac, prec) + "B"


def camel_case_to_snake_case(name: str) -> str:
    """Return a name such as ``SelfAttention`` as ``self_attention``."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[^_])(?=[A-Z][a-z])", "_", name).lower()


def snake_case_to_camel_case(name: str) -> str:
    """Return a name such as ``self_attention`` as ``SelfAttention``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def as_str(text: Any) -> str:
    """Return bytes or a string as a string."""
    return text.decode("utf8") if isinstance(text, bytes) else str(text)


def prod(numbers: Iterable[Any]) -> Any:
    """Return the product of numbers; 1 if there are none."""
    result: Any = 1
    for number in numbers:
        result = result * number
    return result


def uniq(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values without successive repetitions."""
    last: Any = NotSpecified
    for value in values:
        if last is NotSpecified or value != last:
            yield value
        last = value


def dict_joined(*dicts: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the entries of all dicts; of equal keys the last one counts."""
    return {key: value for entries in dicts for key, value in entries.items()}


def make_hashable(value: Any) -> Any:
    """Return a value of dicts, lists and sets in a form that can be a key of a dict."""
    if isinstance(value, Mapping):
        return frozenset((make_hashable(key), make_hashable(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(make_hashable, value))
    if isinstance(value, (set, frozenset)):
        return frozenset(map(make_hashable, value))
    return value.tobytes() if isinstance(value, np.ndarray) else value


def try_run(func: Any, args: Any = (), kwargs: Any = None, catch_exc: Any = Exception, default: Any = None) -> Any:
    """Return the result of a function, or a default if it raises.

    :param kwargs: its keywords
    :param catch_exc: the exceptions that give the default
    """
    try:
        return func(*args, **(kwargs or {}))
    except catch_exc:
        return default


def get_temp_dir() -> str:
    """Return the folder for temporary files."""
    return tempfile.gettempdir()


def sysexec_out(*args: str, **options: Any) -> str:
    """Return what a program writes to its standard output.

    :raises CalledProcessError: it fails
    """
    return str(subprocess.run(list(args), stdout=subprocess.PIPE, check=True, text=True, **options).stdout)


sysexecOut = sysexec_out


def progress_bar_with_time(complete: float = 1.0, prefix: str = "", **options: Any) -> None:
    """Do nothing: the log of a run says how far it is.

    :param complete: part that is done, from 0 to 1
    """


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
