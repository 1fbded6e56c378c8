"""What others could have changed is not trusted."""

from __future__ import annotations

import os
import pathlib
import tempfile

import pytest

from returnn_tf.util.trust import close_to_others, is_ours


def made_by_another(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file, folder or link be another user's: by its owner where this user may do that, else by his number."""
    if os.getuid() == 0:
        os.chown(path, 65534, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr("returnn_tf.util.trust.os.getuid", lambda: 12345)


@pytest.mark.parametrize("mode, ours", [(0o700, True), (0o755, True), (0o775, False), (0o707, False), (0o720, False)])
def test_modes(mode: int, ours: bool, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    path.chmod(mode)
    assert is_ours(str(path)) == ours
    close_to_others(str(path))
    assert is_ours(str(path)) and path.stat().st_mode & 0o777 == mode & ~0o022


@pytest.mark.parametrize("of_another", ["file", "link", ""])
def test_owners(of_another: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a link, both it and what it leads to count."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch(mode=0o600)
    link.symlink_to(file)
    if of_another:
        made_by_another(tmp_path / of_another, monkeypatch)
    assert is_ours(str(link)) == (of_another == "")


def test_missing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert not is_ours(str(tmp_path / "link")) and not is_ours(str(tmp_path / "none"))
    assert is_ours(tempfile.mkdtemp(dir=tmp_path))
