"""The dataset classes by the name that configs use; open to users."""

from __future__ import annotations

from typing import Any, Callable, Optional, TypeVar

from returnn_tf.config.registry import Registry

_T = TypeVar("_T", bound=type[Any])
_SUFFIX = "Dataset"


def _key(name: str) -> str:
    return name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) else name


_OF_HDF = "turn its data to an HDF file, e.g. by HDFWriter, and use HDFDataset"
_OF_AUDIO = "make a zip file of audio and transcriptions with `returnn-tf data oggzip`, and use OggZipDataset"
_ABSENT = {
    "ChunkShuffleDataset": "it does not work in RETURNN either; use the order 'random' and the option chunking",
    "NumpyDumpDataset": "it does not work in RETURNN either; " + _OF_HDF,
    "NextGenHDFDataset": "it does not work with today's h5py in RETURNN either; " + _OF_HDF,
    "SiameseHDFDataset": "triplets can be drawn by a class for MapDatasetWrapper; " + _OF_HDF,
    "TimitDataset": _OF_AUDIO,
    "NltkTimitDataset": "nothing is downloaded here; " + _OF_AUDIO,
    "HuggingFaceDataset": "make a class for MapDatasetWrapper whose __getitem__ reads the dataset of that package, or "
    + _OF_HDF,
}
_ABSENT.update({_key(name): text for name, text in _ABSENT.items()})

#: Names are known with and without "Dataset" at the end.
DATASETS: Registry[type[Any]] = Registry(
    "dataset class", "returnn_tf.datasets", plugins="returnn_tf.datasets", key=_key, max_listed=30, absent=_ABSENT
)


def register_dataset(name: Optional[str] = None) -> Callable[[_T], _T]:
    """Register a dataset class as ``{"class": name, ...}``; a class decorator.

    :param name: defaults to the name of the Python class

    >>> from returnn_tf.datasets import Dataset, register_dataset
    >>> @register_dataset()
    ... class MyDataset(Dataset):
    ...     pass
    """
    return lambda cls: DATASETS.register(name or cls.__name__)(cls)


def dataset_class_names() -> list[str]:
    """Return the names of all registered dataset classes, sorted."""
    return DATASETS.names()
