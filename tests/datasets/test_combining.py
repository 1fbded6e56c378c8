"""MetaDataset, ConcatDataset, MultiEpochDataset, ConcatSeqsDataset: recorded cases, their neighbours, and mistakes."""

from __future__ import annotations

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.combining_cases import cases, compare, literal_keys, with_paths

CASES = cases("MetaDataset", "ConcatDataset", "MultiEpochDataset", "ConcatSeqsDataset")


def _dataset(name):
    folder, case = CASES[name]
    options = with_paths(case["options"], folder)
    if "epoch_wise_filter" in options:
        options["epoch_wise_filter"] = literal_keys(options["epoch_wise_filter"])
    return Dataset.from_config(options)


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" not in case])
def test_recorded_cases(name):
    compare(_dataset(name), *CASES[name], features="data" if "oggzip" in name else "")


@pytest.mark.parametrize("name", [name for name, (_, case) in CASES.items() if "exception" in case])
def test_recorded_errors(name):
    with pytest.raises((ConfigError, DataError), match="dataset 'C|dataset 'M"):
        list(_dataset(name).sequences(1))
