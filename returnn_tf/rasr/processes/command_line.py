"""Command-line arguments for RASR, from the forms that configs use."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any, Optional

from returnn_tf.config.errors import ConfigError, RasrDataError, RasrError, shown
from returnn_tf.config.user_code import error_in_config

#: The module that RASR imports, and its folder.
MODULE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "for_rasr")
MODULE_NAME = "rasr_side"
_LOG_FILE = re.compile(r"--(?:.*log-channel\.file|.*\bLOGFILE)=(.+)")


def command_words(given: Any, *, owner: str) -> list[str]:
    """Return the words of ``sprintConfigStr``: text, a function that returns some, or a list of these.

    Text is split like a line of a shell. A word that begins with "$" is replaced by the words of that environment
    variable, by none if it is not set.

    :param owner: of the option, for messages
    :raises ConfigError: it is something else, a function fails, or quotes are not closed
    """
    if callable(given):
        try:
            return command_words(given(), owner=owner)
        except ConfigError:
            raise
        except Exception as exc:
            text = error_in_config(exc) or "%s: %s" % (type(exc).__name__, exc)
            raise RasrError("%s: the function %s failed: %s" % (owner, shown(given), text)) from exc
    if isinstance(given, (list, tuple)):
        return [word for part in given for word in command_words(part, owner=owner)]
    if not isinstance(given, str):
        raise RasrError("%s: it must be text, a function that returns text, or a list, not %s" % (owner, shown(given)))
    words = []
    for word in _split(given, owner):
        words += _split(os.environ.get(word[1:], ""), owner) if word.startswith("$") else [word]
    return words


def _split(text: str, owner: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise RasrError("%s: %s in %r" % (owner, exc, text)) from None


def program_words(given: Any, *, owner: str) -> list[str]:
    """Return the program and its first arguments, from a path or a list.

    :raises ConfigError: it is something else
    :raises DataError: there is no such program
    """
    words = [given] if isinstance(given, str) else list(given) if isinstance(given, (list, tuple)) else []
    if not words or not all(isinstance(word, str) and word for word in words):
        raise RasrError(
            "%s: it must be the path of a program, or a list of this and arguments, not %r" % (owner, given)
        )
    program = os.path.expanduser(words[0])
    if shutil.which(program) is None:
        fault = "is not executable" if os.path.exists(program) else "does not exist"
        raise RasrDataError(
            "%s: the program %r %s (current directory: %s). Give the path of the program of RASR, such as "
            "'.../nn-trainer.linux-x86_64-standard'." % (owner, words[0], fault, os.getcwd())
        )
    return [program, *words[1:]]


def segment_order_words(config: Optional[str] = None) -> list[str]:
    """Return the words that make RASR ask our module for the order of its segments.

    :param config: text for the module, if it needs some
    """
    option = "--*.python-segment-order"
    words = [option + "=true", option + "-pymod-path=" + MODULE_FOLDER, option + "-pymod-name=" + MODULE_NAME]
    return words if config is None else [*words, option + "-config=" + config, option + "-allow-copy=false"]


def module_words(config: str) -> list[str]:
    """Return the words that make RASR use our module as trainer or Python control."""
    return ["--*.pymod-path=" + MODULE_FOLDER, "--*.pymod-name=" + MODULE_NAME, "--*.pymod-config=" + config]


def trainer_words(write_fd: int, read_fd: int) -> list[str]:
    """Return the words that make RASR send its sequences to us as if we were its trainer.

    :param write_fd: of the pipe on which RASR writes
    :param read_fd: of the pipe on which RASR reads
    """
    config = "action:ExternSprintDataset,c2p_fd:%d,p2c_fd:%d" % (write_fd, read_fd)
    return [*segment_order_words(), "--*.use-data-source=false", "--*.trainer=python-trainer", *module_words(config)]


def list_words(
    ordered: Optional[Iterable[str]], allowed: Optional[Iterable[str]], stack: contextlib.ExitStack
) -> list[str]:
    """Return the words for the sequences to choose.

    :param ordered: their tags in the order to keep
    :param allowed: where there is no order: the tags of those to keep
    :param stack: the file of the list is removed with it
    """
    if ordered is not None:
        path = _temporary_list(ordered, stack)
        return [
            "--*.corpus.segment-order-shuffle=false",
            "--*.corpus.segments.file=" + path,
            "--*.corpus.segment-order=" + path,
        ]
    return [] if allowed is None else ["--*.corpus.segments.file=" + _temporary_list(allowed, stack)]


def _temporary_list(tags: Iterable[str], stack: contextlib.ExitStack) -> str:
    """Write tags to a file, one per line, which is removed with the stack."""
    handle, path = tempfile.mkstemp(prefix="returnn-tf-segments-")
    stack.callback(_remove, path)
    with open(handle, "w", encoding="utf8") as file:
        file.writelines(tag + "\n" for tag in tags)
    return path


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def log_files(words: Iterable[str], since: float) -> list[str]:
    """Return the files which a command line names for the log of RASR, if they were written since then.

    :param since: seconds as of ``time.time``
    """
    found = (match.group(1) for match in map(_LOG_FILE.fullmatch, words) if match)
    return [path for path in found if os.path.isfile(path) and os.path.getmtime(path) >= since - 1]
