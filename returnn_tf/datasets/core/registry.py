"""The table of dataset classes by the name which configs use; open to users."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Type, TypeVar

from returnn_tf.config import ConfigError, did_you_mean

_T = TypeVar("_T", bound=Type[Any])
_CLASSES: Dict[str, Type[Any]] = {}


def register_dataset(name: Optional[str] = None) -> Callable[[_T], _T]:
    """Class decorator: makes a dataset class available as ``{"class": name, ...}``.

    :param name: defaults to the name of the Python class

    >>> from returnn_tf.datasets import Dataset, register_dataset
    >>> @register_dataset()
    ... class MyDataset(Dataset):
    ...     pass
    """

    def register(cls: _T) -> _T:
        key = name or cls.__name__
        old = _CLASSES.get(key)
        # the same config may be executed twice, e.g. in the loading process; another class of that name is a mistake
        if old is not None and (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(
                "dataset class %r is registered already, by %s; choose another name" % (key, old.__module__)
            )
        _CLASSES[key] = cls
        return cls

    return register


def dataset_class(name: str) -> Type[Any]:
    """The class registered as ``name``, or as ``name + "Dataset"``; else a ConfigError with the nearest known name."""
    if not isinstance(name, str):
        raise ConfigError('dataset "class" must be a string, not %r' % (name,))
    for key in (name, name + "Dataset"):
        if key in _CLASSES:
            return _CLASSES[key]
    raise ConfigError("unknown dataset class %r. %s" % (name, did_you_mean(name, _CLASSES, max_listed=30)))


def dataset_class_names() -> List[str]:
    """Names of all registered dataset classes, sorted."""
    return sorted(_CLASSES)
