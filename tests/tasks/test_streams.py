"""Tasks over streams: the same results as over a corpus with the same sequences."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.search.search_pass import searched
from returnn_tf.tensor import parse_data_key
from tests.run_tasks import run_task
from tests.tasks import test_forward_forms as forwarding
from tests.tasks import test_search as searching
from tests.tasks.test_search import with_the_trained_model  # noqa: F401  for all tests here

#: Evaluation data is sorted otherwise.
IN_ORDER = {**forwarding.SET, "seq_ordering": "default"}


def stream(dataset: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return a stream with the sequences of a dataset."""
    options = {"map_seq_stream": lambda sequences: sequences, **options}
    return {"class": "PostprocessingDataset", "dataset": dataset, **options}


@pytest.mark.slow
def test_search() -> None:
    """Hypotheses in the order of the stream; one that never ends is refused."""
    expected = searching.run(search_output_layer="decision")
    assert expected
    assert (
        searching.run(search_output_layer="decision", eval=stream(searching.DATASET), search_output_file="2")
        == expected
    )
    with pytest.raises(ConfigError, match="'x' is endless, so a search in it would never end; give it num_seqs"):
        searched(Dataset.from_config({**stream({"class": "Task12AX"}), "name": "x"}), 1)


def test_forward_and_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    """Forwarded values and scores; a stream also has a progress."""
    found = []
    for number, dataset in enumerate((IN_ORDER, stream(IN_ORDER))):
        forwarding.run("forward", eval=dataset, output_file="%d.hdf" % number, forward_override_hdf_output=True)
        with h5py.File("%d.hdf" % number) as file:
            found.append([file["inputs"][:].tobytes(), list(file["seqTags"][:])])
    assert found[0] == found[1] and len(found[0][1]) == 4
    scores = []
    for dataset in (IN_ORDER, stream(IN_ORDER)):
        capsys.readouterr()
        forwarding.run("eval", eval=dataset, log_verbosity=3)
        scores.append([line for line in capsys.readouterr().out.splitlines() if "score" in line])
    assert scores[0] == scores[1] and scores[0]


class _Rank(World):
    """One of several processes, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["stream", "corpus"])
@pytest.mark.parametrize("shared", [[], [[2, 1]]])
def test_each_sequence_is_read_by_one_process(dataset: str, shared: list[list[int]]) -> None:
    """Also if the number of processes has changed within the epoch."""
    corpus = {"class": "StaticDataset", "data": [{"data": np.full((1, 4), i, "float32")} for i in range(9)]}
    train = stream(corpus, map_seq=lambda data: data, map_seq_stream=None) if dataset == "stream" else corpus
    if dataset == "stream":
        train = {"class": "MultiProcDataset", "dataset": train, "num_workers": 1, "buffer_size": 2}
        train["sharding_method"] = "dedicated"
    extern_data = {"data": {"dim": 4}}
    settings = {"train": train, "extern_data": extern_data, "batch_size": 2, "use_horovod": True}
    config = Config({**settings, "horovod_dataset_distribution": "shard", "in_python": lambda: None})
    used = {"data": parse_data_key("data", extern_data["data"])}
    parts = []
    for rank in range(3):
        source = DataSource(config, "train", used, _Rank(rank, 3))
        assert source.dataset.is_stream == (dataset == "stream")
        parts.append([tag for batch in source.batches(1, shared=shared) for tag in batch.seq_tags])
        source.close()
    done = ["seq-0", "seq-1", "seq-2"] if shared else []
    assert sorted(done + [tag for part in parts for tag in part]) == ["seq-%d" % i for i in range(9)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.slow
def test_training_on_a_stream(tmp_path: pathlib.Path) -> None:
    """The same scores as on the corpus itself, with an evaluation that is a stream, too."""
    found = []
    for number, convert in enumerate((lambda dataset: dataset, stream)):
        file = "rates%d" % number
        settings = {**forwarding.SETTINGS, "train": convert(forwarding.SET), "dev": convert(IN_ORDER)}
        settings.update(num_epochs=2, model="model%d/net" % number, learning_rate_file=file, device="cpu")
        assert run_task(Config({**settings, "task": "train", "random_seed": 3})) == 0
        text = pathlib.Path(file).read_text()
        found.append([line for line in text.splitlines() if "score" in line])
    assert found[0] == found[1] and found[0]
