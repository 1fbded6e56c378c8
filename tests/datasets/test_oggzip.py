"""OggZipDataset: all recorded corpora and options, their neighbours, and corpora which are not what they should be."""

from __future__ import annotations

import ast
import itertools
import os

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from tests.datasets.recorded import ROOT, array_info, by_name, load_json

CASES = {
    "%s/%s" % (folder, name): (folder, case)
    for folder, file in (("oggzip", "oggzip.json"), ("oggzip2", "oggzip2.json"))
    for name, case in by_name(load_json("%s/%s" % (folder, file))["cases"]).items()
}
# of these only the first sequences were recorded
CUT_SHORT = {
    case["name"]
    for _, case in CASES.values()
    if any(len(seqs) < case["dataset"]["total_num_seqs"] for seqs in case.get("epochs", {}).values())
    and not {"partition_epoch", "epoch_wise_filter", "seq_list_filter_file"} & set(case["options"])
}
FILES = ("vocab_file", "bpe_file", "segment_file", "seq_list_filter_file")


def located(options, folder):
    """The options with the paths of the files of a recording."""
    options = dict(options)
    for name, value in options.items():
        if isinstance(value, dict):
            value = located(value, folder)
            if name == "epoch_wise_filter":
                value = {ast.literal_eval(key): entry for key, entry in value.items()}
        elif name in FILES:
            value = str(folder / value)
        elif name == "path":
            value = [str(folder / path) for path in value] if isinstance(value, list) else str(folder / value)
        options[name] = value
    return options


def check_dataset(dataset, expected):
    """What is recorded under "dataset"."""
    labels = {key: {"len": len(value)} if key == "orth" else value for key, value in dataset.labels.items()}
    wanted = dict(expected["labels"])
    if "orth" not in wanted:
        labels.pop("orth", None)
    assert labels == wanted
    outputs = {key: list(value) if isinstance(value, tuple) else value for key, value in dataset.num_outputs.items()}
    assert outputs.pop("raw") == {"dtype": "string", "shape": ()}
    assert outputs == {key: value for key, value in expected["num_outputs"].items() if key != "raw"}
    assert dataset.num_inputs == expected["num_inputs"]
    for name, value in (("data_keys", dataset.data_keys), ("target_list", dataset.target_list)):
        assert value == expected.get(name, value)
    if "total_num_seqs" in expected:
        assert dataset.num_seqs == expected["total_num_seqs"]
    if "all_tags" in expected:
        assert [dataset.tag(index) for index in range(dataset.num_seqs)] == expected["all_tags"]
    for key, info in expected.get("per_key", {}).items():
        spec = dataset.data_specs[key]
        got = {"dtype": spec.dtype, "sparse": spec.sparse, "dim": spec.dim, "shape": list(spec.shape)}
        assert {name: got[name] for name in info if not isinstance(info[name], dict)} == {
            name: value for name, value in info.items() if not isinstance(value, dict)
        }, key


def check_sequences(got, expected, npz, prefix):
    """Tags, lengths and data; features within the recorded tolerance."""
    assert [seq.tag for seq in got] == [seq["tag"] for seq in expected]
    for number, (seq, info) in enumerate(zip(got, expected)):
        assert list(seq.data) == list(info["data"]) or set(seq.data) == set(info["data"])
        for key, facts in info["data"].items():
            place = "%s of %s" % (key, seq.tag)
            array = seq.data[key]
            assert seq.lengths[key] == info["seq_len"][key], place
            if key == "raw":
                assert array.shape == () and array_info(array)["sha256"] == facts["sha256"], place
            elif facts["dtype"] == "float32":
                assert array.dtype == np.float32 and list(array.shape) == facts["shape"], place
                if npz is not None:
                    np.testing.assert_allclose(array, npz["%s/%d/%s" % (prefix, number, key)], rtol=1e-4, atol=1e-4)
                else:
                    np.testing.assert_allclose(array.ravel()[:8], facts["first"], rtol=1e-4, atol=1e-4)
            else:
                assert array_info(array) == {name: facts[name] for name in ("shape", "dtype", "sha256")}, place


def check_case(case, folder, options):
    """One recorded case, with the paths of its options."""
    if "exception" in case:
        with pytest.raises((ConfigError, DataError)):
            list(Dataset.from_config(options).sequences(1))
        return
    dataset = Dataset.from_config(options)
    check_dataset(dataset, case["dataset"])
    npz = np.load(folder / case["npz"]) if "npz" in case else None
    for epoch, expected in case.get("epochs", {}).items():
        read = len(expected) if case["name"] in CUT_SHORT else None
        check_sequences(list(itertools.islice(dataset.sequences(int(epoch)), read)), expected, npz, "ep%s" % epoch)
    for run in case.get("runs", []):
        if "exception" in run:
            with pytest.raises(DataError):
                list(dataset.sequences(**run["args"]))
        else:
            check_sequences(list(dataset.sequences(**run["args"])), run["seqs"], None, "")


@pytest.mark.parametrize("name", CASES)
def test_recorded(name, tmp_path):
    folder, case = CASES[name]
    options = located(case["options"], ROOT / folder)
    if os.path.basename(str(options["path"])) == "link.zip":
        os.symlink(ROOT / folder / "partA.zip", tmp_path / "link.zip")
        options["path"] = str(tmp_path / "link.zip")
    check_case(case, ROOT / folder, options)
