"""`tf` for code in configs: TensorFlow 2, with the names of TensorFlow 1 that configs still use."""

from __future__ import annotations

from typing import Any, Callable, Optional

from returnn_tf.util.lazy_tf import tf

#: The modules inside of both versions that code of configs uses.
SUBMODULES = ("nn", "math", "random", "train", "layers", "summary", "strings", "linalg", "sparse")


def where(condition: Any, x: Any = None, y: Any = None, name: Optional[str] = None) -> Any:
    """Extend ``tf.where`` by TensorFlow 1's selection along the first axis with a vector as condition.

    Old configs select sequences of a batch this way, e.g. in SpecAugment. If the size of the vector is known to be that
    of the last axis, it denotes that one, as in TensorFlow 2.
    """
    if x is None or y is None:
        return tf.where(condition, x, y, name=name)
    condition, x, y = tf.convert_to_tensor(condition), tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    rank = x.shape.rank
    if condition.shape.rank == 1 and rank is not None and rank > 1 and y.shape.rank == rank:
        size = condition.shape[0]
        if size != 1 and (size is None or size not in (x.shape[-1], y.shape[-1])):
            condition = tf.reshape(condition, [-1] + [1] * (rank - 1))
    return tf.where(condition, x, y, name=name)


def of_either_version(module: Any, old: Any, name: str, prefix: str = "") -> Any:
    """Return an attribute of a module of TensorFlow 2, else of the same module of TensorFlow 1.

    :param prefix: of the name in an error, e.g. "nn."
    :raises AttributeError: neither has it
    """
    for each in (module, old):
        if hasattr(each, name):
            return _with_old_keywords(name, getattr(each, name))
    raise AttributeError("TensorFlow has no name %r, neither in version 2 nor in tf.compat.v1" % (prefix + name))


def _with_old_keywords(name: str, value: Any) -> Any:
    """Return the function, extended by ``keep_dims`` and ``reduction_indices`` if it is a reduction."""
    if not name.startswith("reduce_"):
        return value

    def reduce(*args: Any, **kwargs: Any) -> Any:
        return value(*args, **{_OLD_KEYWORDS.get(key, key): given for key, given in kwargs.items()})

    return reduce


class Tf1Names:
    """Attributes of TensorFlow 2, else of ``tf.compat.v1``; random ops are seeded by layer and step.

    :param module: the module, e.g. tensorflow
    :param seed: returns the seed for stateless random ops
    :param old: the same module of TensorFlow 1
    """

    def __init__(self, module: Any, seed: Callable[[str], Any], old: Optional[Any] = None, prefix: str = "") -> None:
        self._module = module
        self._seed = seed
        self._old = module.compat.v1 if old is None else old
        self._prefix = prefix
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        if not self._prefix and name in _CASTS:
            dtype = _CASTS[name]
            return lambda x, name=None: self._module.cast(x, dtype)
        if not self._prefix and name == "where":
            return where
        random = _RANDOM.get(self._prefix + name)
        if random is not None:
            return self._random(name, random)
        if name in SUBMODULES and hasattr(self._old, name):
            module = getattr(self._module, name, None)
            return Tf1Names(module or getattr(self._old, name), self._seed, getattr(self._old, name), name + ".")
        return of_either_version(self._module, self._old, name, self._prefix)

    def _random(self, name: str, stateless_name: str) -> Callable[..., Any]:
        self._count += 1
        seed = self._seed("%s%d" % (name, self._count))

        def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop("seed", None)
            names = ("minval", "maxval", "dtype") if "uniform" in stateless_name else ("mean", "stddev", "dtype")
            kwargs.update(zip(names, args))
            return getattr(self._stateless(), stateless_name)(shape, seed, **kwargs)

        return draw

    def _stateless(self) -> Any:
        return self._module.random if hasattr(self._module, "random") else self._module


_RANDOM: dict[str, str] = {
    "random_uniform": "stateless_uniform",
    "random_normal": "stateless_normal",
    "truncated_normal": "stateless_truncated_normal",
    "random.uniform": "stateless_uniform",
    "random.normal": "stateless_normal",
    "random.truncated_normal": "stateless_truncated_normal",
}

_OLD_KEYWORDS: dict[str, str] = {"keep_dims": "keepdims", "reduction_indices": "axis"}

# TensorFlow's versions print deprecation warnings.
_CASTS: dict[str, str] = {
    "to_float": "float32",
    "to_double": "float64",
    "to_int32": "int32",
    "to_int64": "int64",
}
