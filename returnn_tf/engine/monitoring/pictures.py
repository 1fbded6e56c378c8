"""Figures of matplotlib, which is optional, without a window: to files, and for pages and notebooks."""

from __future__ import annotations

import io
import os
from typing import Any

from returnn_tf.config.errors import CommandError, ConfigError
from returnn_tf.engine.support.atomic_files import write_bytes
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.util.installing import install_command


class Picture:
    """A figure that notebooks show.

    :param figure: of matplotlib
    """

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def svg(self) -> str:
        """Return the element ``<svg>``, with texts as texts."""
        from matplotlib import rc_context

        buffer = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "returnn_tf"}):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        return text[text.index("<svg") :]

    def png(self) -> bytes:
        """Return the content of a PNG file."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()

    def save(self, path: str) -> None:
        """Write a file.

        :param path: its suffix selects the format: .png, .pdf, .svg
        :raises ConfigError: the format is unknown, or the file can't be written
        """
        suffix = os.path.splitext(path)[1][1:].lower()
        known = self.figure.canvas.get_supported_filetypes()
        if suffix not in known:
            raise CommandError("%r: unknown format; known suffixes: %s" % (path, ", ".join(sorted(known))))
        try:
            with io.BytesIO() as buffer:
                self.figure.savefig(buffer, format=suffix)
                write_bytes(path, buffer.getvalue())
        except OSError as exc:
            raise not_writable(repr(path), exc, topic="commands") from None

    def _repr_png_(self) -> bytes:
        return self.png()


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure with a canvas.

    :param width: in inches, as ``height``
    :raises ConfigError: matplotlib is missing
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("drawing needs matplotlib: " + install_command("plot"), topic="installation") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def whole_epochs(axis: Any) -> None:
    """Restrict the ticks of an axis to whole numbers, also where it shows a single one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def check_matplotlib(otherwise: str) -> None:
    """Check that figures can be drawn.

    :param otherwise: what can be done without it, for the error
    :raises ConfigError: matplotlib is missing
    """
    try:
        new_figure(1.0, 1.0)
    except ConfigError as exc:
        raise ConfigError("%s. Without it: %s" % (exc, otherwise), topic=exc.topic) from None
