"""The program: selects the subcommand, and turns errors into messages and exit codes.

Exit codes: 0 success; 2 the user's mistake in a config or on the command line (ConfigError); 1 bad data (DataError),
something missing on the machine, or a bug of ours, with traceback; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import shutil
import sys
import traceback
from typing import Optional

from returnn_tf._version import shown_version
from returnn_tf.cli.commands import COMMANDS, RUN, WIDTH, fitted, usage
from returnn_tf.cli.explain.pages import pointer
from returnn_tf.cli.shared.locator import Locator
from returnn_tf.cli.shared.snippet import columns_of_terminal
from returnn_tf.config.errors import CommandError, ConfigError, DataError, UserError, nearest_name
from returnn_tf.config.user_code import config_in_use, error_in_config
from returnn_tf.logging.levels import STEP_LEVEL
from returnn_tf.logging.log import log
from returnn_tf.logging.text import paint, printable, wants_color
from returnn_tf.util.installing import install_command
from returnn_tf.util.lazy_tf import freeze_after_import
from returnn_tf.util.temporary import NO_SPACE

EXIT_BAD_CONFIG = 2
EXIT_BAD_DATA = 1
EXIT_BUG = 1
EXIT_INTERRUPTED = 130
_MORE_MEMORY = "Raise the limit (ulimit -v, --mem of the job), or use less: lower batch_size or max_seqs"


def main(argv: Optional[list[str]] = None) -> int:
    """Run the program.

    :param argv: the arguments after the program name; by default those of the process, which then runs nothing else
    :return: the exit code
    """
    if argv is None:
        freeze_after_import()
    open_standard_streams()
    log.attach()
    return _flushed(_guarded(list(sys.argv[1:] if argv is None else argv)))


def _guarded(args: list[str]) -> int:
    """Run a command; turn its exceptions into a message and an exit code."""
    try:
        return _dispatch(args)
    except ConfigError as exc:
        return _failed(_with_text(exc), EXIT_BAD_CONFIG, cause=exc.__cause__, topic=exc.topic)
    except DataError as exc:
        return _failed(_with_text(exc), EXIT_BAD_DATA, cause=exc.__cause__, topic=exc.topic)
    except KeyboardInterrupt:
        return _failed("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return 0  # "returnn-tf layers | head"
    except SystemExit as exc:
        # no other exit code than ours: schedulers, and those that start several processes, go by what they mean
        place = error_in_config(exc) if exc.code else None
        if place is None:
            raise
        return _failed_in_config(place, exc)
    except MemoryError as exc:
        text = "out of memory: %s. %s" % (str(exc) or "allocation failed", _MORE_MEMORY)
        return _failed(text, EXIT_BUG, cause=exc, topic="memory")
    except (ImportError, OSError) as exc:
        place = error_in_config(exc)
        return (
            _failed_import_or_file(exc)
            if place is None
            else _failed(place, EXIT_BAD_CONFIG, cause=exc, topic="code-in-configs")
        )
    except Exception as exc:
        place = error_in_config(exc)
        if place is not None:
            return _failed_in_config(place, exc)
        full = _full_disk(exc)
        return _crashed() if full is None else _failed(full, EXIT_BAD_DATA, cause=exc)


def _with_text(exc: UserError) -> str:
    """Return the message of an error, with the line of the config that it is about."""
    config = config_in_use()
    if exc.shows_text or config is None:
        return str(exc)
    return Locator(config).shown(str(exc), exc.network, width=columns_of_terminal())


def _full_disk(exc: Exception) -> Optional[str]:
    """Return the message for an error of TensorFlow that could not write a file; it only has the reason in its text."""
    if not type(exc).__module__.startswith("tensorflow"):
        return None
    reasons = {os.strerror(number): fix for number, fix in NO_SPACE.items()}
    return next(("%s, while writing. %s" % (text, fix) for text, fix in reasons.items() if text in str(exc)), None)


def _failed_in_config(place: str, exc: BaseException) -> int:
    return _failed(place, EXIT_BAD_CONFIG, cause=exc, topic="code-in-configs")


def _failed_import_or_file(exc: Exception) -> int:
    """Report what is missing: a package, memory to load one, a file or space for one; return the exit code."""
    if isinstance(exc, ModuleNotFoundError):
        if exc.name in ("numpy", "h5py"):
            return _failed(
                "%s is not installed. Install the requirements: %s" % (exc.name, install_command()),
                EXIT_BUG,
                topic="installation",
            )
        if exc.name != "tensorflow":
            return _crashed()
        text = "TensorFlow is not installed. Install it: %s (with an NVIDIA GPU: %s)" % (
            install_command("cpu"),
            install_command("gpu"),
        )
        return _failed(text, EXIT_BUG, topic="installation")
    if isinstance(exc, ImportError):
        if "memory" not in str(exc) and "failed to map" not in str(exc):
            return _crashed()
        return _failed("out of memory: %s. %s" % (exc, _MORE_MEMORY), EXIT_BUG, cause=exc, topic="memory")
    assert isinstance(exc, OSError)
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        text = "%s. Raise the limit of the process (ulimit -n)" % os.strerror(exc.errno)
        return _failed(text, EXIT_BUG, cause=exc)
    if exc.filename is None and exc.errno == errno.ENOMEM:
        return _failed("out of memory: %s. %s" % (exc.strerror, _MORE_MEMORY), EXIT_BUG, cause=exc, topic="memory")
    if exc.filename is None and exc.errno == errno.ENOENT and not _has_working_directory():
        text = (
            "the working directory does not exist any more. Change to another one, or to the new one of this name: cd ."
        )
        return _failed(text, EXIT_BUG, cause=exc)
    if exc.filename is None and exc.errno == errno.EAGAIN:
        text = "%s. Raise the limit on processes and threads (ulimit -u)" % os.strerror(exc.errno)
        return _failed(text, EXIT_BUG, cause=exc)
    if exc.filename is None and (exc.errno in NO_SPACE or exc.errno == errno.EIO):
        fix = ". " + NO_SPACE[exc.errno] if exc.errno in NO_SPACE else ""
        return _failed("%s, while writing%s" % (os.strerror(exc.errno), fix), EXIT_BAD_DATA, cause=exc)
    if exc.filename is None:
        return _crashed()
    return _failed("%s: %s" % (exc.filename, exc.strerror or exc), EXIT_BAD_DATA, cause=exc, topic="data-files")


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def open_standard_streams() -> None:
    """Open the standard streams that the caller has closed, so that no other file gets their descriptors.

    What their encoding lacks, e.g. in ASCII or Latin-1, is written as an escape.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
        stream = getattr(sys, name)
        if number and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """Return the exit code after flushing the standard output; unwritable output is dropped."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(exc, BrokenPipeError) and not log.lost_terminal and not code:
            return _failed("can't write to the standard output: %s" % exc.strerror, EXIT_BAD_DATA)
    return code


def _dispatch(args: list[str]) -> int:
    if not args:
        print(usage(), file=sys.stderr)
        return EXIT_BAD_CONFIG
    if args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] in ("-V", "--version"):
        print("returnn_tf", shown_version())
        return 0
    command = COMMANDS.find(args[0]) if args[0].isidentifier() else None  # config names have a dot
    if command is not None:
        own = list(itertools.takewhile(lambda argument: not argument.startswith("++"), args[1:]))
        if not {"-h", "--help"}.isdisjoint(own):
            columns = shutil.get_terminal_size((WIDTH, 24)).columns
            print(fitted(command.help_text(own).rstrip(), max(40, min(columns, 120))))
            return 0
        return command.run(args[1:])
    nearest = None if os.path.exists(args[0]) else nearest_name(args[0], COMMANDS, cutoff=0.7)
    if nearest is not None:
        raise CommandError("there is no command and no config file %r. Did you mean %r?" % (args[0], nearest))
    return COMMANDS[RUN].run(args)


def _failed(message: str, code: int, cause: Optional[BaseException] = None, topic: str = "") -> int:
    """Print the error message and return the exit code.

    :param cause: exception that led to it; its traceback, shown at log level 5, helps users who debug their own code
    :param topic: page of ``returnn-tf explain`` on it; only the terminal gets this line
    """
    if cause is not None:
        log.write(STEP_LEVEL, traceback.format_exc().rstrip())
    log.write(1, "error: " + message, terminal=False)
    if log.label:
        message = "%s: %s" % (log.label, message)
    message = printable(message, keep="\n\t")
    more = pointer(topic)
    _to_stderr("%s %s\n%s" % (paint("error:", "red", wants_color(sys.stderr)), message, more and more + "\n"))
    return code


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError):  # e.g. a full disk: only the exit code is left
        sys.stderr.write(text)
        sys.stderr.flush()


def _crashed() -> int:
    text = printable(traceback.format_exc(), keep="\n\t")
    log.write(1, text.rstrip(), terminal=False)
    _to_stderr(text + "This looks like a bug in returnn_tf %s, not in your config.\n" % shown_version())
    return EXIT_BUG
