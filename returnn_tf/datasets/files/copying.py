"""The choice between reading a file in place and copying it to the local disk first, and the means of copying."""

from __future__ import annotations

import dataclasses
import functools
import glob
import json
import os
import shutil
import socket
import subprocess
import tempfile
from typing import Any, Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.errors import FileDataError
from returnn_tf.config.option_values import map_values
from returnn_tf.config.options import from_options
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.datasets.files.cache import CacheOptions, CopyError, FileCache
from returnn_tf.datasets.files.remote import RemoteFile, is_url
from returnn_tf.logging.log import log

#: The environment variable with the folder of the copies. If it is empty, nothing is copied.
FOLDER = "RETURNN_TF_FILE_CACHE"
#: That with the setting ``file_cache_opts``, as JSON, for this process and those that it starts.
_OPTIONS = "RETURNN_TF_FILE_CACHE_OPTS"

_PROGRAM = "cf"
_PROGRAM_SECONDS = 6 * 3600
_CLUSTER_HOSTS = ("cluster-cn-", "cn-")
_NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "panfs",
            "pvfs2", "orangefs", "smb", "smb3", "smbfs", "sshfs", "wekafs")  # fmt: skip


def local_copy(path: str, *, wanted: bool) -> str:
    """Return the path under which a file is read: that of a copy on the local disk if one is wanted and useful.

    On a node of a cluster where the program ``cf`` is installed, it makes the copy. Elsewhere files on network storage
    are copied to the cache folder; with all other files if ``file_cache_opts`` or ``$RETURNN_TF_FILE_CACHE`` names one.
    If a copy is impossible, the path itself is returned, and the reason logged. ``DEBUG=1`` in the environment turns
    copies off.

    A file of a store or server, such as ``s3://bucket/name``, is always copied to that folder.

    :param wanted: the option ``use_cache_manager`` of the dataset
    :raises ConfigError: a package for this kind of address is missing
    :raises DataError: a remote file is not there, cannot be read, or cannot be copied
    """
    if is_url(path):
        return copy_to_cache(path)
    if not wanted or os.environ.get("DEBUG") == "1":
        return path
    program = _program()
    if program is not None:
        return _copy_by_program(program, path)
    if _options().cache_directory or os.environ.get(FOLDER) or is_on_network(path):
        return copy_to_cache(path)
    return path


def cache_options(config: Config) -> dict[str, Any]:
    """Return the setting ``file_cache_opts``.

    :raises ConfigError: there is a mistake in it
    """
    given = dict(DataSettings(config).file_cache_opts or {})
    from_options(CacheOptions, given, where="file_cache_opts")
    return given


def set_up_cache(config: Config) -> None:
    """Set the folder of the copies, and how long they are kept, for this process and those that it starts.

    Those of an earlier run in this process no longer hold.
    """
    options = cache_options(config)
    os.environ.pop(_OPTIONS, None)
    if options:
        os.environ[_OPTIONS] = json.dumps(options)


def copy_to_cache(path: str) -> str:
    """Return the path of a copy in the cache folder; the path itself if that is impossible or there is no folder.

    :raises ConfigError: of a remote file, for which the path is of no use; see `local_copy`
    :raises DataError: likewise
    """
    if is_url(path):
        return _copy_of_remote(path, os.getpid())
    cache = _cache()
    return cache.get(path) if cache else path


@functools.lru_cache(maxsize=4096)
def _copy_of_remote(url: str, process: int) -> str:
    """Return the path of a copy, for which a process asks the store once.

    :param process: its id: of the copies that a process uses, those are not removed for which it has asked itself
    """
    cache = _cache()
    if cache is None:
        raise FileDataError("file %r needs a local copy, but $%s is empty: set it to a folder" % (url, FOLDER))
    try:
        return cache.copy(RemoteFile(url), url)
    except (CopyError, OSError) as exc:
        reason = str(exc) if isinstance(exc, CopyError) else exc.strerror or str(exc)
        text = "file %r cannot be copied to %r: %s. file_cache_opts or $%s chooses another folder"
        raise FileDataError(text % (url, cache.folder, reason, FOLDER)) from exc


def path_or_content(path: str, *, wanted: bool) -> Union[str, bytes]:
    """Return the content of a small file of a store or server, of any other the path under which it is read.

    :param wanted: make local copies, of both, see `local_copy`
    :raises DataError: a remote file cannot be read
    """
    return RemoteFile(path).read() if is_url(path) and not wanted else local_copy(path, wanted=wanted)


def exists(path: str) -> bool:
    """Return whether there is such a file, also of a store or server."""
    return RemoteFile(path).exists() if is_url(path) else os.path.exists(path)


def file_size(path: str) -> int:
    """Return the bytes of a file, also of a store or server.

    :raises OSError: it is not there
    :raises DataError: likewise, of a remote file
    """
    return RemoteFile(path).size if is_url(path) else os.path.getsize(path)


def matching_files(pattern: str) -> list[str]:
    """Return the files that match a pattern, sorted, also of a store or server."""
    return RemoteFile(pattern).matching() if is_url(pattern) else sorted(glob.glob(pattern))


def _cache() -> Optional[FileCache]:
    """Return the folder with the copies, None if there are to be none."""
    options = _options()
    folder = options.cache_directory or os.environ.get(FOLDER)
    if folder == "":
        return None
    own = os.path.join(tempfile.gettempdir(), "returnn_tf_files_%d" % os.getuid())
    place = own if folder is None else os.path.abspath(os.path.expandvars(os.path.expanduser(folder)))
    return FileCache(place, options, private=folder is None)


def _options() -> CacheOptions:
    given = json.loads(os.environ.get(_OPTIONS) or "{}")
    return from_options(CacheOptions, given, where="file_cache_opts")


def is_on_network(path: str) -> bool:
    """Return whether a file lies on network storage; False if that is unknown."""
    kind = _filesystems().get(_mount_point(os.path.realpath(path)), "")
    return kind.rstrip("234") in _NETWORK or kind.rpartition(".")[2] in _NETWORK


def _mount_point(path: str) -> str:
    while not os.path.ismount(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _filesystems() -> dict[str, str]:
    """Return the kinds of the mounted file systems by mount point; the last one mounted there counts."""
    try:
        with open("/proc/self/mounts", encoding="utf8", errors="surrogateescape") as file:
            fields = [line.split() for line in file]
    except OSError:  # not Linux
        return {}
    return {place.replace("\\040", " "): kind for _, place, kind, *_ in fields}


def _program() -> Optional[str]:
    """Return the program that copies files on the nodes of a cluster, if this is one that has it."""
    host = socket.gethostname()
    if not host.startswith(_CLUSTER_HOSTS) and "SLURM_JOB_ID" not in os.environ:
        return None
    return shutil.which(_PROGRAM)


@functools.lru_cache(maxsize=4096)  # a process asks for the same file in every epoch
def _copy_by_program(program: str, path: str) -> str:
    try:
        result = subprocess.run(
            [program, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        reason = str(exc)
    else:
        lines = os.fsdecode(result.stdout).split("\n")
        copy = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if result.returncode == 0 and os.path.isfile(copy):
            return copy
        reason = "exit code %d, output %r" % (result.returncode, (os.fsdecode(result.stderr) or copy)[-300:])
    log.warn("%s %r gives no local copy (%s); the file is read where it is" % (program, path, reason))
    return path


@dataclasses.dataclass(frozen=True)
class CachedFile:
    """Stands for a copy of a file on the local disk, anywhere in the options of a dataset.

    :param filename: of the original
    """

    filename: str

    def __fspath__(self) -> str:
        return self.get_file()

    def get_file(self) -> str:
        """Return the path of the copy, which is made on demand; that of the original if copying is impossible."""
        return copy_to_cache(os.fspath(self.filename))


def with_local_copies(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a dataset with each `CachedFile` replaced by the path of its copy."""
    return {name: map_values(value, CachedFile, CachedFile.get_file) for name, value in options.items()}
