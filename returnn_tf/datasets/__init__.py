"""Datasets: corpora of sequences, their order in an epoch, batches, and loading in a separate process.

No TensorFlow here: numpy and h5py only.
"""

from returnn_tf.datasets.config import batch_options_from_config, dataset_from_config, dataset_from_config_file
from returnn_tf.datasets.core.base import Dataset, dataset_class
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.datasets.core.batches.batch_options import BatchOptions, GivenBatchOptions
from returnn_tf.datasets.core.batches.batching import BatchStats
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.generating import GeneratingDataset
from returnn_tf.datasets.core.registry import dataset_class_names, register_dataset
from returnn_tf.datasets.hdf.dataset import HDFDataset
from returnn_tf.datasets.hdf.writer import HDFWriter
from returnn_tf.datasets.loading.loader import BatchLoader
from returnn_tf.datasets.synthetic.static import StaticDataset

__all__ = [
    "Batch",
    "BatchLoader",
    "BatchOptions",
    "BatchStats",
    "DataSpec",
    "Dataset",
    "GeneratingDataset",
    "GivenBatchOptions",
    "HDFDataset",
    "HDFWriter",
    "Example",
    "StaticDataset",
    "batch_options_from_config",
    "dataset_class",
    "dataset_class_names",
    "dataset_from_config",
    "dataset_from_config_file",
    "register_dataset",
]
