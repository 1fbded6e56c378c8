"""``from returnn.datasets.basic import Dataset, DatasetSeq, init_dataset, ...``."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.compat.modules.datasets.view import DatasetView
from returnn_tf.compat.user_datasets.base import UserDatasetBase
from returnn_tf.compat.user_datasets.cached import DatasetSeq
from returnn_tf.compat.user_datasets.reader import UserDataset
from returnn_tf.datasets.core.base import Dataset as _Dataset
from returnn_tf.datasets.core.registry import DATASETS

register_compat(__name__, "returnn.datasets.basic", "Dataset")
register_compat(__name__, "returnn.datasets")

__all__ = ["Dataset", "DatasetSeq", "get_dataset_class", "init_dataset", "init_dataset_via_str"]


class _IsDataset(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or (
            cls is Dataset and isinstance(instance, (DatasetView, UserDatasetBase, _Dataset))
        )


class Dataset(UserDatasetBase, metaclass=_IsDataset):
    """Base of datasets in configs; every dataset is an instance."""


def init_dataset(
    kwargs: Any, extra_kwargs: Optional[dict[str, Any]] = None, default_kwargs: Optional[dict[str, Any]] = None
) -> Union[DatasetView, UserDatasetBase]:
    """Return the dataset of a dict, text or function, with RETURNN's interface.

    :param extra_kwargs: options that replace those in a dict
    :param default_kwargs: options for those that it does not set
    """
    if isinstance(kwargs, (DatasetView, UserDatasetBase)):
        return kwargs
    if extra_kwargs and isinstance(kwargs, dict):
        kwargs = {**kwargs, **extra_kwargs}
    dataset = _Dataset.from_config(kwargs, **(default_kwargs or {}))
    if isinstance(dataset, UserDataset):
        user: UserDatasetBase = dataset.user
        return user
    return DatasetView(dataset)


def init_dataset_via_str(config_str: str, config: Any = None, **options: Any) -> Union[DatasetView, UserDatasetBase]:
    """Return the dataset of a text, see `init_dataset`."""
    del config
    return init_dataset(config_str, default_kwargs=options)


def get_dataset_class(name: Any) -> Optional[type]:
    """Return the class of this name, or None; a class is returned unchanged."""
    return name if isinstance(name, type) else DATASETS.find(name)
