"""``from returnn.util.debug import init_faulthandler``: what scripts call to see where a process crashed."""

from __future__ import annotations

import faulthandler
import io
from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config.errors import CodeError

register_compat(__name__, "returnn.util.debug")

__all__ = ["debug_shell", "dump_all_thread_tracebacks", "init_faulthandler"]


def init_faulthandler(sigusr1_chain: bool = False) -> None:
    """Let a crash, such as a segmentation fault, write the lines that the threads were running to the error stream.

    :param sigusr1_chain: not used: the signal SIGUSR1 keeps its meaning
    """
    del sigusr1_chain
    if faulthandler.is_enabled():
        return
    try:
        faulthandler.enable()
    except (AttributeError, ValueError, io.UnsupportedOperation):  # the error stream is no file
        return


def dump_all_thread_tracebacks(*args: Any, **options: Any) -> None:
    """Write the lines that the threads are running to the error stream."""
    del args, options
    faulthandler.dump_traceback(all_threads=True)


def debug_shell(*args: Any, **options: Any) -> None:
    """Raise an error: a run has no terminal.

    :raises ConfigError: always
    """
    raise CodeError("debug_shell: there is no shell within a run. Use breakpoint(), and run the command on a terminal.")
