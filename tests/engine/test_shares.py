"""``save_sharded``: several processes write a checkpoint together; it is read like any other."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.engine.checkpoints import checkpoint, shares
from returnn_tf.engine.checkpoints.saver import Saver
from returnn_tf.engine.checkpoints.shares import Shares
from returnn_tf.engine.passes.progress import PassState, Progress
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.util.lazy_tf import tf

NAMES = ["rank %d on node" % rank for rank in range(8)]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_each_value_has_one_writer_and_all_write_as_much(size: int) -> None:
    rng = np.random.default_rng(1)
    params = {"p%d" % number: np.zeros(rng.integers(1, 100), "float32") for number in range(60)}
    state = {"s%d" % number: np.zeros((rng.integers(1, 100), 2), "float64") for number in range(60)}
    parts = [Shares(rank, NAMES[:size]).own({"": params, ".state": state}) for rank in range(size)]
    assert sorted(name for part in parts for name in part[""]) == sorted(params)
    assert sorted(name for part in parts for name in part[".state"]) == sorted(state)
    loads = [sum(value.nbytes for values in part.values() for value in values.values()) for part in parts]
    assert max(loads) - min(loads) <= 100 * 2 * 8


@pytest.mark.parametrize("size", [2, 5])
def test_what_stays_whole_is_of_the_chief(size: int) -> None:
    bundles = {"": {"a": np.zeros(50), "b": np.zeros(50)}, ".state": {str(i): np.zeros(20) for i in range(20)}}
    parts = [Shares(rank, NAMES[:size]).own(bundles, [""]) for rank in range(size)]
    assert [sorted(part[""]) for part in parts] == [["a", "b"]] + [[]] * (size - 1)
    assert len(parts[0][".state"]) < len(parts[1][".state"])


@pytest.fixture(scope="module")
def trainer() -> StepTrainer:
    layer = {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"}
    network = {
        "a": layer,
        "b": {**layer, "from": "a"},
        "output": {**layer, "from": "b", "loss": "mse", "target": "data"},
    }
    config = Config(
        {
            "network": network,
            "extern_data": {"data": {"dim": 5}},
            "optimizer": {"class": "adam"},
            "behavior_version": 21,
        }
    )
    made = StepTrainer(Network.from_config(config, train=True), config)
    made.step({"data": np.ones((2, 3, 5), "float32"), "data/size0": np.array([3, 2], "int32")})
    return made


def save(trainer: StepTrainer, model: str, size: int, *, within: bool) -> str:
    """Write one by all processes, which are threads here; return its prefix."""
    config = Config({"model": model, "write_meta_graph": False})
    savers = [
        Saver(config, writes=rank == 0, shares=Shares(rank, NAMES[:size]) if size > 1 else None) for rank in range(size)
    ]
    for saver in reversed(savers):
        if within:
            saver.save_within(trainer, Progress(1, 0, PassState(steps=1)), {})
        else:
            saver.save(trainer, 1, {})
    for saver in savers:
        saver.close()
    return model + (".001.step1" if within else ".001")


def all_values(prefix: str) -> dict[str, Any]:
    return {**checkpoint.read(prefix), **checkpoint.read_state(prefix)}


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_written_together(trainer: StepTrainer, tmp_path: pathlib.Path, size: int, within: bool) -> None:
    expected = all_values(save(trainer, str(tmp_path / "one"), 1, within=within))
    prefix = save(trainer, str(tmp_path / "net"), size, within=within)
    found = all_values(prefix)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    data = sorted(name for name in os.listdir(tmp_path) if ".data-" in name and name.startswith("net"))
    assert sum(".state" in name for name in data) == size
    params = [name for name in data if ".state" not in name]
    assert params == (["net.001.data-00000-of-00001"] if not within else params) and len(params) == (
        size if within else 1
    )
    assert checkpoint.validate(prefix) is None and not [name for name in os.listdir(tmp_path) if ".tmp-" in name]
    assert tf.train.load_checkpoint(prefix).get_variable_to_shape_map()["a/W"] == [5, 5]
    assert all(checkpoint.strip_suffix(str(tmp_path / name)) == prefix for name in params)
    values = checkpoint.StoredValues(prefix, checked=True)
    assert set(values._data.places) == set(values)
    for name in values:
        np.testing.assert_array_equal(values[name], expected[name], err_msg=name)
    for name in data:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        assert "the checksum of %s is wrong" % name in str(checkpoint.validate(prefix))
        (tmp_path / name).write_bytes(content)
    checkpoint.delete(prefix)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(os.path.basename(prefix))]


def test_a_share_that_never_comes(
    trainer: StepTrainer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E.g. the folder is on a disk of one machine: nothing is written, and a checkpoint of before stays."""
    model = str(tmp_path / "net")
    before = all_values(save(trainer, model, 1, within=False))
    monkeypatch.setattr(shares, "PATIENCE_SECONDS", 0.2)
    saver = Saver(Config({"model": model, "write_meta_graph": False}), shares=Shares(0, NAMES[:3]))
    other = Saver(Config({"model": model}), writes=False, shares=Shares(1, NAMES[:3]))
    for each in (other, saver):
        each.save(trainer, 1, {})
    other.close()
    with pytest.raises(DataError, match="net.001 lacks the share of rank 2 on node, .* all processes see"):
        saver.close()
    assert sorted(all_values(model + ".001")) == sorted(before) and checkpoint.validate(model + ".001") is None


def test_a_full_disk_after_the_shares_are_merged_is_told_at_once(
    trainer: StepTrainer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt would wait for shares that are gone."""
    model = str(tmp_path / "net")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.files, "publish", full)
    with pytest.raises(DataError, match="net.001 can't be written: No space left on device"):
        save(trainer, model, 2, within=False)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("net")]


def test_a_disk_that_is_full_for_a_moment(
    trainer: StepTrainer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of each process is written again."""
    before, failed = shares.write_bundle, []

    def full_at_first(prefix: str, values: Any) -> None:
        if prefix not in failed:
            failed.append(prefix)
            raise OSError(errno.ENOSPC, "No space left on device")
        before(prefix, values)

    monkeypatch.setattr(shares, "write_bundle", full_at_first)
    monkeypatch.setattr(checkpoint.time, "sleep", lambda _: None)
    prefix = save(trainer, str(tmp_path / "net"), 2, within=True)
    assert len(failed) == 4 and checkpoint.validate(prefix) is None
