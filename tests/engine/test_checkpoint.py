"""Checkpoints are whole or absent, say what is wrong with them, and fit what other programs write and read."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.checkpoints import checkpoint, model_dir
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.bundle import write_bundle
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.support import atomic_files as checkpoint_files
from returnn_tf.engine.support.fingerprint import fingerprint
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.temporary import Temporary

FOREIGN = pathlib.Path(__file__).parent.parent / "data/engine/foreign_checkpoint/network.012"
INFO = CheckpointInfo(epoch=3, step=17, random_seed=42, config_sha256="abc")


def write(prefix: Any, value: float = 1.0, info: CheckpointInfo = INFO) -> str:
    params = {"output/W": np.full((2, 3), value, "float32"), "output/b": np.zeros(3, "float32")}
    checkpoint.save(str(prefix), params, {"output/W/adam_m": np.ones((2, 3), "float32")}, info, retry_waits=())
    return str(prefix)


def test_states_of_random_layers_by_their_earlier_name(tmp_path: pathlib.Path) -> None:
    prefix, params = (
        str(tmp_path / "net.003"),
        {"a/state_var": np.array([1, 2, 3]), "b/state_var": np.ones(3, "float32")},
    )
    checkpoint.save(prefix, params, {}, INFO, retry_waits=())
    name = "a/random_generator/StateVar"
    assert list(checkpoint.read(prefix)) == [name, "b/state_var", "global_step"]
    assert checkpoint.read(prefix, [name])[name].tolist() == [1, 2, 3]


def test_values_that_are_read_one_by_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Types and shapes are known before; a checkpoint that is deleted meanwhile is still read, and names are known."""
    prefix = write(tmp_path / "net.003", 2.5)
    values = checkpoint.StoredValues(prefix + ".index", checked=True)
    checkpoint.delete(prefix)
    found: list[str] = []
    read = values._data.read
    monkeypatch.setattr(values._data, "read", lambda name: found.append(name) or read(name))
    assert (values.specs["output/W"].shape, values.specs["output/W"].dtype) == ((2, 3), np.float32)
    assert len(values) == 3 and "output/W" in values and "W" not in values and values.get("W") is None
    renamed = values.renamed({"W": "output/W"})
    assert list(renamed) == ["W"] and not found
    np.testing.assert_array_equal(renamed["W"], np.full((2, 3), 2.5))
    variables = {"output/b": tf.Variable(tf.ones([3]))}
    checkpoint_params.assign(variables, values, source="it")
    assert found == ["output/W", "output/b"] and not variables["output/b"].numpy().any()


def test_numbers_that_are_read_without_tensorflow(tmp_path: pathlib.Path) -> None:
    """All types and shapes of numbers are as TensorFlow reads them, of many names."""
    rng, prefix = np.random.RandomState(1), str(tmp_path / "many")
    kinds = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")
    values = {
        "layer_%d/%s" % (i, kind): rng.normal(0, 9, (i % 4, 3)).astype(kind) for i in range(300) for kind in kinds
    }
    values.update(scalar=np.float32(3), bfloat16=tf.constant([1.5, 2.5], tf.bfloat16), text=np.array("said"))
    write_bundle(prefix, values)
    for path in (prefix, str(FOREIGN)):
        plain, raw = checkpoint.StoredValues(path), checkpoint.StoredValues(path, checked=True)
        assert list(plain) == list(raw) and raw.specs == plain.specs
        assert set(raw._data.places) == set(raw) - {"text"}
        for name in raw:
            np.testing.assert_array_equal(raw[name], plain[name])


def test_data_that_ends_too_early(tmp_path: pathlib.Path) -> None:
    prefix = write(tmp_path / "net.003")
    data = prefix + ".data-00000-of-00001"
    os.truncate(data, os.path.getsize(data) - 5)
    values = checkpoint.StoredValues(prefix, checked=True)
    with pytest.raises(DataError, match="net.003 is damaged: net.003.data-00000-of-00001 ends too early"):
        dict(values)


def test_a_saved_checkpoint_is_read_back(tmp_path: pathlib.Path) -> None:
    prefix = write(tmp_path / "net.003", 2.5)
    assert checkpoint.validate(prefix) is None
    values = checkpoint.read(prefix)
    assert sorted(values) == ["global_step", "output/W", "output/b"] and values["global_step"] == 17
    np.testing.assert_array_equal(values["output/W"], 2.5)
    assert all(value.flags.owndata for value in values.values() if value.ndim), "TensorFlow would keep the memory"
    assert list(checkpoint.read_state(prefix)) == ["output/W/adam_m"]
    assert checkpoint.info(prefix) == INFO
    assert not [entry for entry in os.listdir(str(tmp_path)) if ".tmp-" in entry]


def test_tensorflow_reads_it_by_the_parameter_names(tmp_path: pathlib.Path) -> None:
    prefix = write(tmp_path / "net.003", 2.5)
    model_dir.write_index(str(tmp_path / "net"))
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    assert tf.train.load_checkpoint(prefix).get_variable_to_shape_map()["output/W"] == [2, 3]


def test_a_checkpoint_of_another_program_is_read() -> None:
    assert checkpoint.validate(str(FOREIGN)) is None
    assert checkpoint.info(str(FOREIGN)) is None
    values = checkpoint.read(str(FOREIGN) + ".index")
    assert {name: value.shape for name, value in values.items()} == {
        "global_step": (),
        "hidden/W": (27, 6),
        "hidden/b": (6,),
        "output/W": (6, 2),
        "output/b": (2,),
    }


def some_variables() -> dict[str, Any]:
    shapes = {"hid/W": (3, 4), "hid/b": (4,), "output/b": (3,)}
    return {name: tf.Variable(np.zeros(shape, "float32")) for name, shape in shapes.items()}


def _flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


def _truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES = [(_flip, "checksum"), (_truncate, "bytes, written were"), (os.remove, "is missing")]
SUFFIXES = [".data-00000-of-00001", ".index", ".state.data-00000-of-00001", ".state.index"]


@pytest.mark.parametrize("damage, message", DAMAGES, ids=["flip", "truncate", "remove"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_newest_checkpoint_is_explained_and_the_one_before_taken(
    tmp_path: pathlib.Path, suffix: str, damage: Any, message: str
) -> None:
    model = str(tmp_path / "net")
    good = write(model + ".002")
    bad = write(model + ".003")
    damage(pathlib.Path(bad + suffix))
    reports: list[tuple[str, str]] = []
    choice = model_dir.choose_intact(Config({"model": model}), lambda *args: reports.append(args))
    assert (choice.epoch, choice.path, choice.start_epoch) == (2, good, 3)
    assert [prefix for prefix, _ in reports] == [bad] and message in reports[0][1]
    for asked in ({"load_epoch": 3}, {"start_epoch": 4}, {"task": "eval", "load_epoch": 3}):
        with pytest.raises(DataError, match="The checkpoint %s can't be used: .*" % re.escape(bad)) as info:
            model_dir.choose_intact(Config({"model": model, **asked}), lambda *args: reports.append(args))
        assert message in str(info.value) and len(reports) == 1  # it is not said that another one is used


def test_a_digit_which_changes_in_the_manifest_is_found(tmp_path: pathlib.Path) -> None:
    prefix = write(tmp_path / "net.003")
    path = pathlib.Path(prefix + ".manifest.json")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "step": manifest["step"] + 1}))
    reason = checkpoint.validate(prefix)
    assert reason is not None and "checksum of %s is wrong" % path in reason
    del manifest["manifest_sha256"]  # as earlier versions wrote it
    path.write_text(json.dumps(manifest))
    assert checkpoint.validate(prefix) is None


@pytest.mark.parametrize("damage", [_flip, _truncate])
def test_damage_is_found_without_manifest_too(tmp_path: pathlib.Path, damage: Any) -> None:
    prefix = write(tmp_path / "net.003")
    os.remove(prefix + ".manifest.json")
    assert checkpoint.validate(prefix) is None
    damage(pathlib.Path(prefix + ".data-00000-of-00001"))
    reason = checkpoint.validate(prefix)
    assert reason is not None and "damaged" in reason


def test_if_all_are_damaged_nothing_is_started_anew(tmp_path: pathlib.Path) -> None:
    _truncate(pathlib.Path(write(tmp_path / "net.001") + ".index"))
    with pytest.raises(DataError, match="None of the checkpoints net.001 can be used"):
        model_dir.choose_intact(Config({"model": str(tmp_path / "net")}), lambda prefix, reason: None)
    other = Config({"model": str(tmp_path / "other")})
    assert model_dir.choose_intact(other, lambda prefix, reason: None).path is None
    asked = Config({"task": "eval", "load": str(tmp_path / "net.001")})
    with pytest.raises(DataError, match="net.001 can't be used: net.001.index has"):
        model_dir.choose_intact(asked, lambda prefix, reason: None)


def test_all_that_a_killed_training_leaves_is_removed(tmp_path: pathlib.Path) -> None:
    for name, owner in (
        ("checkpoint", "net"),
        (".net.status.json", ""),
        (".net.settings.json", ""),
        (".net.batches.json", ""),
    ):
        Temporary(str(tmp_path / name), owner=owner)
    for name in ("net.001", "net.001.step7", "net.pretrain.001"):
        Temporary(str(tmp_path / name), folder=True)
    assert len(os.listdir(tmp_path)) == 7
    model_dir.prepare(str(tmp_path / "net"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("deletes", ["validate", "StoredValues"])
def test_what_is_deleted_meanwhile_is_chosen_anew(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, deletes: str
) -> None:
    """By a training, for example, with newer ones after it."""
    model, reports = str(tmp_path / "net"), []
    write(model + ".003")
    function = getattr(checkpoint, deletes)

    def deleting(prefix: str, **options: Any) -> Any:
        number = int(prefix[-3:])
        if number < 6:
            write("%s.%03d" % (model, number + 1))
            checkpoint.delete(prefix)
        return function(prefix, **options)

    monkeypatch.setattr(checkpoint, deletes, deleting)
    config = Config({"task": "eval", "model": model})
    choice, values = model_dir.open_intact(config, lambda *args: reports.append(args))
    assert choice.epoch == 6 and values and not reports
    asked = Config({"task": "eval", "model": model, "load_epoch": 5})
    with pytest.raises(ConfigError, match="there is no checkpoint of epoch 5; there are checkpoints of: 6"):
        model_dir.open_intact(asked, lambda *args: None)


@pytest.mark.parametrize("leads", ["nowhere", "to itself"])
def test_links_that_lead_nowhere_are_a_damaged_checkpoint(tmp_path: pathlib.Path, leads: str) -> None:
    """As of a checkpoint on another disk that is gone; nobody is writing or deleting it."""
    model, reports = str(tmp_path / "net"), []
    good, bad = write(model + ".002"), model + ".003"
    for suffix in (".index", ".data-00000-of-00001"):
        os.symlink((bad if leads == "to itself" else str(tmp_path / "gone")) + suffix, bad + suffix)
    choice = model_dir.choose_intact(Config({"model": model}), lambda *args: reports.append(args))
    assert choice.path == good and [prefix for prefix, _ in reports] == [bad]
    checkpoint.delete(bad)
    checkpoint.delete(good)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("stop_at", range(1, 6))
def test_interrupted_writing_leaves_a_whole_checkpoint_or_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    old = write(tmp_path / "net.001", 1.0)
    replace, calls = os.replace, []

    def dying_replace(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(checkpoint_files.os, "replace", dying_replace)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "net.002", 2.0)
    monkeypatch.undo()
    prefix = str(tmp_path / "net.002")
    if checkpoint.validate(prefix) is None:  # all but the manifest was in place
        assert stop_at == 5 and checkpoint.read(prefix)["output/W"][0, 0] == 2.0
    assert checkpoint.validate(old) is None and checkpoint.read(old)["output/W"][0, 0] == 1.0
    write(tmp_path / "net.002", 3.0)
    assert checkpoint.validate(prefix) is None and checkpoint.read(prefix)["output/W"][0, 0] == 3.0


def test_a_full_disk_ends_after_bounded_retries_with_the_old_state_intact(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write(tmp_path / "net.001", 1.0)
    before = sorted(os.listdir(str(tmp_path)))
    attempts: list[int] = []

    def full(folder: str, names: Any) -> dict[str, Any]:
        attempts.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "describe", full)
    with pytest.raises(DataError, match="net.001 can't be written: .*No space left"):
        checkpoint.save(prefix, {"a": np.zeros(1)}, {}, INFO, retry_waits=(0.0, 0.0))
    assert len(attempts) == 3 and sorted(os.listdir(str(tmp_path))) == before
    assert checkpoint.validate(prefix) is None


def test_parameters_which_do_not_fit_are_all_named() -> None:
    variables = some_variables()
    values = {name: var.numpy() + 1 for name, var in variables.items()}
    values["hid/weights"] = values.pop("hid/W")
    values["output/b"] = np.zeros(5, "float32")
    with pytest.raises(DataError) as info:
        checkpoint_params.assign(variables, values, source="net.003")
    text = str(info.value)
    assert "net.003 does not fit" in text and "missing: hid/W [3, 4]" in text
    assert "shape: output/b is [3] here, stored [5]" in text and "unknown to the network: hid/weights" in text
    np.testing.assert_array_equal(variables["hid/b"].numpy(), 0.0)


def test_further_stored_values_are_no_problem() -> None:
    variables = some_variables()
    values = {name: var.numpy() + 1 for name, var in variables.items()}
    values.update({"other/W": np.zeros(2), "global_step": np.zeros((), "int64")})
    checkpoint_params.assign(variables, values, source="x")
    np.testing.assert_array_equal(variables["hid/b"].numpy(), values["hid/b"])


def test_deleting_removes_all_files(tmp_path: pathlib.Path) -> None:
    prefix = write(tmp_path / "net.001")
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert checkpoint.delete(prefix) == size and os.listdir(str(tmp_path)) == []


def test_a_folder_which_cannot_be_written_is_an_error_before_training(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="can't be written"):
        model_dir.prepare(str(tmp_path / "file/net"))
    for name in ("004", "pretrain.004", "004.step70", "probe"):
        (tmp_path / (".net.%s.tmp-1" % name)).mkdir()
    for name in ("checkpoint", "lock", "status.json", "settings.json", "batches.json"):
        (tmp_path / (".net.%s.tmp-1" % name)).touch()
    (tmp_path / ".net.other.004.tmp-1").mkdir()  # of another model, which may be trained at the moment
    model_dir.prepare(str(tmp_path / "net"))
    assert sorted(os.listdir(str(tmp_path))) == [".net.other.004.tmp-1", "file"]


def test_the_fingerprint_follows_values_and_code() -> None:
    def config(value: Any) -> str:
        return fingerprint(Config({"network": {"a": 1, "b": value}}))

    assert config(1) == config(1) != config(2)
    assert config(lambda x: x + 1) == config(lambda x: x + 1) != config(lambda x: x + 2)
