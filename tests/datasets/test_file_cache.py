"""Copies of files on the local disk: made once, by one of several processes, whole or not at all, removed by age."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.user_files import import_for_configs
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.files import CachedFile, cache, local_copy, set_up_cache
from returnn_tf.datasets.files.cache import DAY, LOCK, PART, FileCache
from returnn_tf.tasks.setting_checks import check_all_settings
from tests.util.test_trust import made_by_another
from tests.waiting import LONG

module = sys.modules["returnn_tf.datasets.files.copying"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of the copies; nothing of the machine's own set-up."""
    for name in ("SLURM_JOB_ID", "DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module.socket, "gethostname", lambda: "desk")
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", str(tmp_path / "cache"))
    module._copy_by_program.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "data" / "corpus.zip"
    path.parent.mkdir()
    path.write_bytes(os.urandom(1 << 16))
    os.utime(path, (1e9, 1e9 + 0.25))
    return path


def _use(path, days):
    """Set the last use of a copy to some days ago."""
    os.utime(path + LOCK, (time.time() - days * DAY,) * 2)


def test_copies_once(source, folder, monkeypatch):
    copy = local_copy(str(source), wanted=True)
    assert copy == str(folder) + str(source)
    assert Path(copy).read_bytes() == source.read_bytes()
    assert os.stat(copy).st_mtime == 1e9 + 0.25
    monkeypatch.setattr(cache, "_write", None)
    assert local_copy(str(source), wanted=True) == copy
    assert local_copy(copy, wanted=True) == copy
    assert local_copy(str(source), wanted=False) == str(source)


@pytest.mark.parametrize("change", ["size", "time", "damaged copy"])
def test_copies_again_what_changed(change, source):
    copy = local_copy(str(source), wanted=True)
    if change == "size":
        source.write_bytes(b"new")
        os.utime(source, (1e9, 1e9 + 0.25))
    elif change == "time":
        source.write_bytes(bytes(1 << 16))
    else:
        Path(copy).write_bytes(b"short")
    assert local_copy(str(source), wanted=True) == copy
    assert Path(copy).read_bytes() == source.read_bytes()


def test_a_file_that_changes_meanwhile_is_read_where_it_is(source, folder, monkeypatch, caplog):
    write = cache._write

    def write_while_it_grows(origin, part):
        count = write(origin, part)
        source.write_bytes(bytes(5))
        return count

    monkeypatch.setattr(cache, "_write", write_while_it_grows)
    assert local_copy(str(source), wanted=True) == str(source)
    assert "changed while it was copied; the file is read where it is" in caplog.text
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [".cleaned", "corpus.zip" + LOCK]


@pytest.mark.parametrize(
    "environment, copied", [({"DEBUG": "1"}, False), ({"RETURNN_TF_FILE_CACHE": ""}, False), ({}, True)]
)
def test_switches(environment, copied, source, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (local_copy(str(source), wanted=True) != str(source)) == copied


@pytest.mark.parametrize("kind, copied", [("ext4", False), ("nfs4", True), ("lustre", True), ("fuse.sshfs", True)])
def test_without_a_folder_only_files_on_network_storage_are_copied(kind, copied, source, monkeypatch, tmp_path):
    monkeypatch.delenv("RETURNN_TF_FILE_CACHE")
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setattr(module, "_mount_point", lambda path: "/net")
    monkeypatch.setattr(module, "_filesystems", lambda: {"/net": kind})
    copy = local_copy(str(source), wanted=True)
    assert copy.startswith(str(tmp_path / "tmp")) == copied and (copy == str(source)) != copied


def test_file_systems_of_the_machine():
    assert not module.is_on_network("/proc/self/mounts")
    assert module._filesystems()[module._mount_point(os.path.realpath("/proc/self/status"))] == "proc"


# ---- several processes

_PROGRAM = """
import os, sys, time
from returnn_tf.datasets.files import cache, local_copy
how, source = sys.argv[1:]
write = cache._write
def slow(origin, part):
    with open(part, "wb") as file:
        file.write(b"half")
    print("writing", flush=True)
    time.sleep(1000 if how == "hangs" else 0.3)
    return write(origin, part)
cache._write = slow
copy = local_copy(source, wanted=True)
print(copy, flush=True)
"""


def _process(how, source):
    command = [sys.executable, "-c", _PROGRAM, how, str(source)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_two_processes_one_copies(source, folder):
    processes = [_process("", source) for _ in range(2)]
    outputs = [process.communicate(timeout=LONG)[0] for process in processes]
    assert sorted(outputs, key=len) == [
        "%s\n" % (str(folder) + str(source)),
        "writing\n%s\n" % (str(folder) + str(source)),
    ]
    assert Path(str(folder) + str(source)).read_bytes() == source.read_bytes()


@pytest.mark.slow
def test_a_killed_copy_blocks_nobody(source, folder):
    process = _process("hangs", source)
    assert process.stdout.readline() == "writing\n"
    copy = str(folder) + str(source)
    assert Path(copy + PART).read_bytes() == b"half" and not os.path.exists(copy)
    waiting = _process("", source)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    assert waiting.communicate(timeout=LONG)[0] == "writing\n%s\n" % copy
    assert Path(copy).read_bytes() == source.read_bytes() and not os.path.exists(copy + PART)
    process.communicate()


def test_a_hanging_copy_is_not_waited_for(source, monkeypatch, caplog):
    process = _process("hangs", source)
    assert process.stdout.readline() == "writing\n"
    monkeypatch.setattr(cache, "_STALLED_SECONDS", 0.3)
    assert local_copy(str(source), wanted=True) == str(source)
    assert "another process copies it, but has written nothing for 0.3 s" in caplog.text
    process.kill()
    process.communicate()


# ---- space and age


def _copies(tmp_path, count):
    paths = []
    for number in range(count):
        path = tmp_path / ("%d.hdf" % number)
        path.write_bytes(bytes(1000))
        paths.append(local_copy(str(path), wanted=True))
    return paths


def test_removes_what_is_not_used(tmp_path, folder):
    copies = _copies(tmp_path, 3)
    _use(copies[0], 40)
    _use(copies[1], 20)
    assert FileCache(str(folder)).remove_unused(31) == [copies[0]]
    assert [os.path.exists(copy) for copy in copies] == [False, True, True] and not os.path.exists(copies[0] + LOCK)


def test_old_copies_go_once_a_day(tmp_path, folder):
    copies = _copies(tmp_path, 2)
    _use(copies[0], 40)
    new = tmp_path / "new"
    new.write_bytes(b"new")
    local_copy(str(new), wanted=True)
    assert os.path.exists(copies[0])
    os.utime(folder / ".cleaned", (1, 1))
    os.remove(str(folder) + str(new))
    local_copy(str(new), wanted=True)
    assert not os.path.exists(copies[0]) and os.path.exists(copies[1])


def test_makes_space(tmp_path, folder, monkeypatch, source, caplog):
    copies = _copies(tmp_path, 4)
    for copy, days in zip(copies, (2, 5, 3, 0.5)):
        _use(copy, days)
    left = {"bytes": cache.RESERVE + (1 << 16) - 1500}
    monkeypatch.setattr(
        FileCache, "_free", lambda self: left["bytes"] + 1000 * sum(not os.path.exists(copy) for copy in copies)
    )
    assert local_copy(str(source), wanted=True) == str(folder) + str(source)
    assert [os.path.exists(copy) for copy in copies] == [True, False, False, True]  # the longest unused, no more
    left["bytes"] -= 10**7
    source.write_bytes(b"other")
    assert local_copy(str(source), wanted=True) == str(source)
    assert "are to stay free, but the disk has" in caplog.text
    assert os.path.exists(copies[3])  # used within the last day


def test_options_in_the_config(tmp_path, folder, monkeypatch, source):
    """They hold for this process and its children, until the next config."""
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE_OPTS", "")  # restored afterwards
    monkeypatch.setenv("HERE", str(tmp_path))
    size = 10 * cache.RESERVE
    monkeypatch.setattr(FileCache, "_size", lambda self: size)
    monkeypatch.setattr(FileCache, "_free", lambda self: size // 2)
    options = {"cache_directory": "$HERE/other", "cleanup_files_wanted_older_than_days": 3}
    for ratio, kept in [(0.4, True), (0.6, False)]:
        set_up_cache(Config({"file_cache_opts": {**options, "cleanup_disk_usage_wanted_free_ratio": ratio}}))
        old = tmp_path / "old"
        old.write_bytes(b"old")
        copy = local_copy(str(old), wanted=True)
        assert copy == str(tmp_path / "other") + str(old)
        _use(copy, 4)
        os.utime(source, (1e9, 1e9 + ratio))
        assert local_copy(str(source), wanted=True) == str(tmp_path / "other") + str(source)
        assert os.path.exists(copy) == kept
    assert CachedFile(str(source)).get_file() == str(tmp_path / "other") + str(source)
    set_up_cache(Config({}))
    assert CachedFile(str(source)).get_file() == str(folder) + str(source)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"cache_dir": "x"}, "file_cache_opts: unknown option 'cache_dir'"),
        ({"num_tries": 0}, "file_cache_opts: option 'num_tries' must be at least 1"),
    ],
)
def test_mistakes_in_the_options(options, message):
    with pytest.raises(ConfigError, match=message):
        check_all_settings(Config({"file_cache_opts": options}))


def test_a_copy_in_use_stays(tmp_path, folder, monkeypatch):
    (copy,) = _copies(tmp_path, 1)
    _use(copy, 40)
    cache.renew()  # as the thread does from time to time
    assert FileCache(str(folder)).remove_unused(1) == []


def test_failures_are_told_and_the_file_is_read_where_it_is(source, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", str(blocked))
    assert local_copy(str(source), wanted=True) == str(source)
    assert "no local copy of %r in %r" % (str(source), str(blocked)) in caplog.text
    monkeypatch.setenv("RETURNN_TF_FILE_CACHE", str(tmp_path / "cache"))
    for path in (str(tmp_path / "nowhere"), str(tmp_path)):
        assert local_copy(path, wanted=True) == path
    assert "No such file" in caplog.text and "it is not a regular file" in caplog.text


@pytest.mark.parametrize("how", ["of another", "open to the group", "open to all", "link of another", "good"])
def test_a_default_folder_that_others_can_change_is_not_used(how, source, tmp_path, monkeypatch, caplog):
    """Nor is a link followed that another user made: files would appear in a folder that he chooses."""
    monkeypatch.delenv("RETURNN_TF_FILE_CACHE")
    monkeypatch.setattr(module, "is_on_network", lambda path: True)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    target, default = tmp_path / "target", tmp_path / ("returnn_tf_files_%d" % os.getuid())
    target.mkdir(mode=0o700)
    if how == "link of another":
        default.symlink_to(target)
    else:
        default.mkdir()
        default.chmod({"open to the group": 0o770, "open to all": 0o777}.get(how, 0o700))
    if how.endswith("of another"):
        made_by_another(default, monkeypatch)
    copy = local_copy(str(source), wanted=True)
    assert (copy == str(source)) == (how != "good") and not list(target.iterdir())
    assert ("the folder belongs to another user" in caplog.text) == (how != "good")


# ---- the program of a cluster


def _install(tmp_path, monkeypatch, script):
    program = tmp_path / "bin" / "cf"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n" + script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent) + os.pathsep + os.environ["PATH"])


@pytest.mark.parametrize("how", ["cluster-cn-17", "cn-1", "SLURM_JOB_ID"])
def test_program_of_a_cluster(how, source, tmp_path, monkeypatch):
    (tmp_path / "local").write_bytes(b"")
    _install(tmp_path, monkeypatch, "echo copying $1 >&2\necho %s/local\n" % tmp_path)
    assert local_copy(str(source), wanted=True) != str(tmp_path / "local")  # not on this machine
    if how == "SLURM_JOB_ID":
        monkeypatch.setenv(how, "1")
    else:
        monkeypatch.setattr(module.socket, "gethostname", lambda: how)
    assert local_copy(str(source), wanted=True) == str(tmp_path / "local")
    monkeypatch.setenv("DEBUG", "1")
    assert local_copy(str(source), wanted=True) == str(source)


@pytest.mark.parametrize(
    "script, reason",
    [("echo no disk >&2\nexit 3\n", "exit code 3, output 'no disk"), ("echo /no/file\n", "'/no/file'")],
)
def test_failing_program(script, reason, source, tmp_path, monkeypatch, caplog):
    _install(tmp_path, monkeypatch, script)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert local_copy(str(source), wanted=True) == str(source)
    assert reason in caplog.text


# ---- in configs


def _hdf(path):
    with h5py.File(path, "w") as file:
        file["inputs"] = np.ones((5, 2), "float32")
        file["seqLengths"] = np.array([(5, 0)], "int32")
        file["seqTags"] = np.array([b"a"])


@pytest.mark.parametrize("form", ["option", "CachedFile", "list"])
def test_dataset_reads_the_copy(form, tmp_path, folder):
    path = str(tmp_path / "a.hdf")
    _hdf(path)
    files = {"option": [path], "CachedFile": CachedFile(path), "list": [CachedFile(path)]}[form]
    dataset = Dataset.from_config({"class": "HDFDataset", "files": files, "use_cache_manager": form == "option"})
    assert dataset.file_of(0) == str(folder) + path
    assert len(list(dataset.sequences(1))) == 1


def test_names_of_configs(source, folder):
    modules = [import_for_configs(name, fromlist=("cf",)) for name in ("Util", "returnn.util.basic")]
    assert [module.cf(str(source)) for module in modules] == [str(folder) + str(source)] * 2
    names = import_for_configs("returnn.util.file_cache", fromlist=("CachedFile",))
    assert names.CachedFile is CachedFile
    assert names.FileCache().get_file(str(source)) == os.fspath(CachedFile(str(source))) == str(folder) + str(source)
