"""Datasets: corpora of sequences, their order in an epoch, batches, and loading in a process of its own.

No TensorFlow here: numpy and h5py only.
"""

from returnn_tf.datasets.base import Dataset
from returnn_tf.datasets.batch import Batch
from returnn_tf.datasets.batch_options import BATCH_OPTIONS, BatchOptions
from returnn_tf.datasets.batching import BatchStats
from returnn_tf.datasets.config import batch_options_from_config, dataset_from_config, dataset_from_config_file
from returnn_tf.datasets.copy_tasks import CopyTaskDataset, TaskEpisodicCopyDataset
from returnn_tf.datasets.data_spec import DataSpec, Sequence
from returnn_tf.datasets.dummy import DummyDataset, DummyDatasetMultipleDataKeys, DummyDatasetMultipleSequenceLength
from returnn_tf.datasets.generating import GeneratingDataset
from returnn_tf.datasets.hdf import HDFDataset
from returnn_tf.datasets.hdf_writer import HDFWriter
from returnn_tf.datasets.loader import BatchLoader
from returnn_tf.datasets.number_task import TaskNumberBaseConvertDataset
from returnn_tf.datasets.options import Option
from returnn_tf.datasets.registry import dataset_class, dataset_class_names, register_dataset
from returnn_tf.datasets.static import StaticDataset
from returnn_tf.datasets.task12ax import Task12AXDataset
from returnn_tf.datasets.text_tasks import TaskVariableAssignmentDataset, TaskXmlModelingDataset

__all__ = [
    "BATCH_OPTIONS",
    "Batch",
    "BatchLoader",
    "BatchOptions",
    "BatchStats",
    "CopyTaskDataset",
    "DataSpec",
    "Dataset",
    "DummyDataset",
    "DummyDatasetMultipleDataKeys",
    "DummyDatasetMultipleSequenceLength",
    "GeneratingDataset",
    "HDFDataset",
    "HDFWriter",
    "Option",
    "Sequence",
    "StaticDataset",
    "Task12AXDataset",
    "TaskEpisodicCopyDataset",
    "TaskNumberBaseConvertDataset",
    "TaskVariableAssignmentDataset",
    "TaskXmlModelingDataset",
    "batch_options_from_config",
    "dataset_class",
    "dataset_class_names",
    "dataset_from_config",
    "dataset_from_config_file",
    "register_dataset",
]
