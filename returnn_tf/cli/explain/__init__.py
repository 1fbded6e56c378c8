"""``returnn-tf explain [TOPIC ...]``: pages on errors, which an error names at its end."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.explain.pages import page, title, topics
from returnn_tf.config.errors import CommandError


@register_command(
    "explain",
    "[TOPIC ...]",
    "explain a kind of error: causes, examples, what to look at; or list all topics",
    group="reference",
)
def run(args: list[str]) -> int:
    """Print the list of all topics, or the pages of some.

    :raises ConfigError: unknown topic
    """
    for name in args:
        if name.startswith("-"):
            raise CommandError("explain: unknown option %r. returnn-tf explain [TOPIC ...]" % name)
    print("\n\n".join(page(name).rstrip() for name in args) if args else _listing())
    return 0


def _listing() -> str:
    width = max(map(len, topics()))
    rows = ["  %-*s  %s" % (width, name, title(name)) for name in topics()]
    return "\n".join(["`returnn-tf explain TOPIC` shows causes and examples:", *rows])
