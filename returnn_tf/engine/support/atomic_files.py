"""Atomic file writes: to a temporary place, synced to disk, then renamed; and checksums of files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config.errors import SettingDataError
from returnn_tf.datasets.core.safe_files import check_regular, open_regular
from returnn_tf.util.temporary import Temporary

_BLOCK = 1 << 20
_MAX_MANIFEST = 1 << 28  # it holds all settings of the config
_CHECKSUM = "manifest_sha256"


def sync(path: str) -> None:
    """Flush a file or directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(path: str) -> str:
    """Return the SHA-256 of the content, hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def write_text(path: str, text: str, *, owner: str = "") -> None:
    """Replace a text file atomically, see `write_bytes`."""
    write_bytes(path, text.encode("utf8"), owner=owner)


def write_bytes(path: str, content: bytes, *, owner: str = "") -> None:
    """Replace a file atomically; a reader sees the old or the new content, never a part.

    :param owner: name of the model whose runs clean up after a kill; default: the name of the file
    """
    with Temporary(path, owner=owner) as temporary:
        temporary.write(content)
        temporary.publish()
    sync(os.path.dirname(temporary.target))


def describe(folder: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return size and checksum of files of a folder, for a manifest."""
    return {
        name: {"size": os.path.getsize(os.path.join(folder, name)), "sha256": checksum(os.path.join(folder, name))}
        for name in names
    }


def diff(folder: str, described: dict[str, dict[str, Any]]) -> Optional[str]:
    """Return the first difference of the files of a folder from the record of `describe`, or None."""
    for name, facts in described.items():
        path = os.path.join(folder, name)
        try:
            check_regular(path)
            size = os.path.getsize(path)
            if size != facts["size"]:
                return "%s has %i bytes, written were %i" % (name, size, facts["size"])
            if checksum(path) != facts["sha256"]:
                return "the checksum of %s is wrong, so its content has changed since it was written" % name
        except FileNotFoundError:
            return "%s is missing" % name
        except OSError as exc:
            return "%s can't be read: %s" % (name, exc.strerror or exc)
    return None


def with_checksum(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with its own checksum, which detects e.g. a flipped bit in the position in the epoch."""
    content = {key: value for key, value in manifest.items() if key != _CHECKSUM}
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return {**content, _CHECKSUM: hashlib.sha256(text.encode("ascii")).hexdigest()}


def read_json(path: str, max_bytes: int) -> Any:
    """Return the content of a small JSON file.

    :raises OSError: it can't be read
    :raises ValueError: it is longer, or is not JSON; RecursionError: it is nested too deep
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError("it has more than %d bytes" % max_bytes)
    found = json.loads(content.decode("utf8"))
    # of names that are no text, as in command lines, JSON keeps halves of characters, which can't be written anywhere
    return json.loads(json.dumps(found, ensure_ascii=False).encode("utf8", "replace")) if b"\\u" in content else found


def read_manifest(path: str) -> Optional[dict[str, Any]]:
    """Return the manifest, or None if the file does not exist.

    :raises DataError: the file exists but is not a manifest
    """
    try:
        manifest = read_json(path, _MAX_MANIFEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise SettingDataError("%s can't be read as manifest of a checkpoint: %s" % (path, reason)) from None
    if not isinstance(manifest, dict) or not _describes_files(manifest.get("files")):
        raise SettingDataError("%s is not the manifest of a checkpoint." % path)
    if _CHECKSUM in manifest and with_checksum(manifest) != manifest:  # those of earlier versions have none
        raise SettingDataError("The checksum of %s is wrong, so its content has changed since it was written." % path)
    return manifest


def _describes_files(described: Any) -> bool:
    """Return whether the value is what `describe` returns, for files of the same folder."""
    return isinstance(described, dict) and all(
        os.path.basename(name) == name
        and "\0" not in name
        and name.isprintable()
        and isinstance(facts, dict)
        and type(facts.get("size")) is int
        and isinstance(facts.get("sha256"), str)
        for name, facts in described.items()
    )


@contextlib.contextmanager
def staging(folder: str, name: str) -> Iterator[str]:
    """Provide a new temporary folder inside ``folder``; it is removed at the end in any case.

    :param name: of what is staged; what killed processes left of it is removed
    """
    with Temporary(os.path.join(folder, name), folder=True) as temporary:
        yield temporary.path


def publish(source: str, folder: str, names: list[str]) -> None:
    """Move synced files in the given order from the staging folder into place; the last one makes them valid."""
    for name in names:
        sync(os.path.join(source, name))
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, names[-1]))  # this invalidates the old version
    for name in names:
        os.replace(os.path.join(source, name), os.path.join(folder, name))
    sync(folder)
