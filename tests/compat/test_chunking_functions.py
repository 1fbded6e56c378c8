"""Functions for chunking that use the names of RETURNN, and sizes of batches as `NumbersDict`."""

import pytest

from returnn_tf.compat.numbers_dict import NumbersDict
from returnn_tf.config import ConfigError
from tests.datasets.test_batching import SIZES, _dataset, _same, _tags, _unknown


def test_chunking_by_function():
    seen = {}

    def chunks(*, dataset, seq_idx_start, recurrent_net, used_data_keys, **_):
        seen.update(recurrent_net=recurrent_net, used_data_keys=used_data_keys)
        position = seq_idx_start
        while dataset.is_less_than_num_seqs(position):
            dataset.load_seqs(position, position + 1)
            end = dataset.get_seq_length(position)["data"]
            assert dataset.get_data(position, "data").shape == (end, 1)
            assert dataset.get_tag(position) == "seq-%d" % position
            yield position, 0, {"data": end, "classes": min(end, 2)}
            position += 1

    dataset = _dataset(_same(3, 5), chunking=chunks)
    (batch,) = dataset.batches(epoch=1, batch_size=100)
    assert batch.slices == {"data": [(0, 0, 3), (1, 0, 5)], "classes": [(0, 0, 2), (1, 0, 2)]}
    assert seen == {"recurrent_net": True, "used_data_keys": ["data", "classes"]}


def test_chunking_by_function_with_numbers_dicts():
    def chunks(*, dataset, seq_idx_start, **_):
        position = seq_idx_start
        while dataset.is_less_than_num_seqs(position):
            length = dataset.get_seq_length(position)
            start = NumbersDict.constant_like(0, numbers_dict=length)
            while start["data"] < length["data"]:
                end = NumbersDict.min([start + NumbersDict({"data": 4, "classes": 2}), length])
                yield position, start, end
                start = end
            position += 1

    dataset = _dataset([{"data": 6, "classes": 3}, {"data": 4, "classes": 2}], chunking=chunks)
    (batch,) = dataset.batches(epoch=1, batch_size=100)
    assert batch.slices == {"data": [(0, 0, 4), (0, 4, 6), (1, 0, 4)], "classes": [(0, 0, 2), (0, 2, 3), (1, 0, 2)]}


@pytest.mark.parametrize("end, ok", [(NumbersDict(3), True), (NumbersDict({"data": 3}, broadcast_value=2.5), False)])
def test_chunking_function_yields_one_number_for_all_keys(end, ok):
    dataset = _dataset(_same(3), chunking=lambda **_: iter([(0, NumbersDict(0), end)]))
    if ok:
        (batch,) = dataset.batches(epoch=1)
        assert batch.slices == {"data": [(0, 0, 3)], "classes": [(0, 0, 3)]}
    else:
        with pytest.raises(ConfigError, match="option 'chunking': 'classes': 2.5 must be an integer"):
            list(dataset.batches(epoch=1))


@pytest.mark.parametrize("name, value", [("batch_size", 60), ("max_seq_length", 25), ("max_pad_size", 9)])
def test_one_number_for_all_keys(name, value, monkeypatch):
    """It means what the number alone means."""
    for dataset in (_dataset(SIZES), _unknown(_dataset(SIZES), monkeypatch)):
        plain, as_numbers = (
            _tags(dataset.batches(used_data_keys=["data"], **{"batch_size": 10000, name: given}))
            for given in (value, NumbersDict(value))
        )
        assert plain == as_numbers
