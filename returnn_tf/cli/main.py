"""The program: picks the subcommand, and turns errors into messages and exit codes.

Exit codes: 0 all right; 2 the user's mistake in a config or on the command line (ConfigError); 1 bad data (DataError),
something missing on the machine, or a bug of ours, with traceback; 130 interrupted.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from typing import List, Optional

from returnn_tf._version import __version__
from returnn_tf.cli.commands import COMMANDS, RUN, usage
from returnn_tf.config import ConfigError, DataError, nearest_name
from returnn_tf.config.user_code import error_in_config
from returnn_tf.logging.levels import STEP_LEVEL
from returnn_tf.logging.log import log
from returnn_tf.logging.terminal import paint, wants_color

EXIT_BAD_CONFIG = 2
EXIT_BAD_DATA = 1
EXIT_BUG = 1
EXIT_INTERRUPTED = 130


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the program.

    :param argv: the arguments after the program name; by default those of the process
    :return: the exit code
    """
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(args)
        sys.stdout.flush()
        return code
    except ConfigError as exc:
        return _failed(str(exc), EXIT_BAD_CONFIG, cause=exc.__cause__)
    except DataError as exc:
        return _failed(str(exc), EXIT_BAD_DATA, cause=exc.__cause__)
    except KeyboardInterrupt:
        return _failed("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # "returnn-tf layers | head"
        return 0
    except ModuleNotFoundError as exc:
        if exc.name in ("numpy", "h5py"):
            return _failed(
                "%s is not installed. Install what returnn_tf needs: pip install returnn-tf" % exc.name, EXIT_BUG
            )
        if exc.name != "tensorflow":
            return _crashed()
        return _failed("TensorFlow is not installed. Install it: pip install 'returnn-tf[cpu]', or [gpu]", EXIT_BUG)
    except OSError as exc:
        if exc.filename is None:
            return _crashed()
        return _failed("%s: %s" % (exc.filename, exc.strerror or exc), EXIT_BAD_DATA, cause=exc)
    except Exception as exc:
        place = error_in_config(exc)
        return _crashed() if place is None else _failed(place, EXIT_BAD_CONFIG, cause=exc)


def _dispatch(args: List[str]) -> int:
    if not args:
        print(usage(), file=sys.stderr)
        return EXIT_BAD_CONFIG
    if args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] in ("-V", "--version"):
        print("returnn_tf", __version__)
        return 0
    command = COMMANDS.find(args[0]) if args[0].isidentifier() else None  # the name of a config has a dot
    if command is not None:
        own = itertools.takewhile(lambda argument: not argument.startswith("++"), args[1:])
        if not {"-h", "--help"}.isdisjoint(own):
            print(command.help_text().rstrip())
            return 0
        return command.run(args[1:])
    nearest = None if os.path.exists(args[0]) else nearest_name(args[0], COMMANDS, cutoff=0.7)
    if nearest is not None:
        raise ConfigError("there is no command and no config file %r. Did you mean %r?" % (args[0], nearest))
    return COMMANDS[RUN].run(args)


def _failed(message: str, code: int, cause: Optional[BaseException] = None) -> int:
    """Tells the message.

    :param cause: an exception behind it, whose traceback helps who debugs code of their own: shown at log level 5
    """
    if cause is not None:
        log.write(STEP_LEVEL, traceback.format_exc().rstrip())
    log.write(1, "error: " + message, terminal=False)
    if log.label:
        message = "%s: %s" % (log.label, message)
    print(paint("error:", "red", wants_color(sys.stderr)), message, file=sys.stderr)
    return code


def _crashed() -> int:
    text = traceback.format_exc()
    log.write(1, text.rstrip(), terminal=False)
    print(text + "This looks like a bug in returnn_tf %s, not in your config." % __version__, file=sys.stderr)
    return EXIT_BUG
