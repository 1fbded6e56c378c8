"""Compiles programs of the tests, and keeps what came out in the user's cache, as ccache does.

The key is what the compiler reads: its version, the flags, the macros that they define (also by ``-march=native``) and
the preprocessed sources. The native ops themselves are compiled by the package, which has a cache of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

#: What no run used for so long is deleted.
_DAYS = 30


def compile_cached(command: Sequence[str], sources: Sequence[str], to: str = "") -> subprocess.CompletedProcess[str]:
    """Run a compiler, unless the cache has what it would make of the same code; return how it ended.

    :param command: the compiler and its flags, without sources and ``-o``
    :param to: path of the result; by default the sources are only checked
    """
    kept = _folder() / _key(command, sources)
    if kept.exists():
        os.utime(kept)
        if to:
            shutil.copy(kept, to)
        return subprocess.CompletedProcess([*command, *sources], 0, "", "")
    libraries = [word for word in command if _for_linker(word)]
    flags = [word for word in command if not _for_linker(word)]
    done = _run([*flags, *sources, *(["-o", to] if to else []), *libraries])
    if done.returncode == 0:
        _keep(kept, lambda path: shutil.copy(to, path) if to else None)
    return done


def text_cached(command: Sequence[str], make: Callable[[], str], folders: Sequence[str]) -> str:
    """Return what a command says, made once for the same files.

    :param make: called if the cache has no text; it fails where the command does
    :param folders: the command reads only files below them, and what comes with its program
    """
    parts = [*command, _run([command[0], "--version"]).stdout]
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*.*")):
            if path.suffix in (".h", ".cu", ".cuh", ".cc"):
                parts += [path.name, path.read_text("utf8")]
    kept = _folder() / hashlib.sha256("\0".join(parts).encode("utf8")).hexdigest()
    if not kept.exists():
        text = make()
        _keep(kept, lambda path: path.write_text(text, "utf8"))
    os.utime(kept)
    return kept.read_text("utf8")


def _keep(kept: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    """Put a file into the cache, whole or not at all, and delete the old ones.

    :param write: fills the file, which is renamed after that
    """
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        pass
    write(pathlib.Path(file.name))
    os.replace(file.name, kept)
    for path in kept.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process renames and deletes, too
            if path.stat().st_mtime < time.time() - _DAYS * 24 * 60 * 60:
                path.unlink()


def _folder() -> pathlib.Path:
    """Return the folder of the cache: in that of the user or, where none can be written, in the temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = pathlib.Path(home) / "returnn_tf_tests"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        pass
    if not os.access(folder, os.W_OK):
        folder = pathlib.Path(tempfile.gettempdir()) / ("returnn_tf_tests_%d" % os.getuid())
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError("%s belongs to somebody else" % folder)
    return folder


def _for_linker(word: str) -> bool:
    return word.startswith(("-L", "-l", "-Wl,")) or ".so" in word


def _key(command: Sequence[str], sources: Sequence[str]) -> str:
    flags = [word for word in command if word != "-shared" and not _for_linker(word)]
    parts = [
        *(word for word in command if not os.path.isabs(word) and not word.startswith("-I/")),
        _run([flags[0], "--version"]).stdout,
        _run([*flags, "-E", "-dM", "-x", "c++", os.devnull]).stdout,
        _run([*flags, "-E", "-P", *sources]).stdout,
    ]
    return hashlib.sha256("\0".join(parts).encode("utf8", "surrogateescape")).hexdigest()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=False)


def main(words: list[str]) -> int:
    """Take the place of a compiler: ``CXX='python compiling.py g++'``; what compiles no sources is not kept."""
    sources = [word for word in words if word.endswith((".c", ".cc"))]
    if not sources or "-o" not in words:
        return subprocess.call(words)
    to = words[words.index("-o") + 1]
    done = compile_cached([word for word in words if word not in ("-o", to, *sources)], sources, to)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
