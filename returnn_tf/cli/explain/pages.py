"""The pages on errors: Markdown files beside this module and in ``explain/`` of a room, called after their topics."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from returnn_tf.config.errors import CommandError, did_you_mean
from returnn_tf.config.registry import rooms
from returnn_tf.util.shipped import texts

#: Names that topics had.
_RENAMED = {"horovod": "distributed"}


def topics() -> tuple[str, ...]:
    """Return all topics, sorted."""
    return tuple(_pages())


def page(topic: str) -> str:
    """Return the Markdown of a topic, which may have the name that it had.

    :raises ConfigError: unknown topic
    """
    topic = _RENAMED.get(topic, topic)
    if topic not in topics():
        raise CommandError("explain: there is no topic %r. %s" % (topic, did_you_mean(topic, topics(), max_listed=50)))
    return _pages()[topic]


def title(topic: str) -> str:
    """Return the first heading of a topic."""
    return page(topic).partition("\n")[0].lstrip("# ")


def pointer(topic: str) -> str:
    """Return the line at the end of an error message, for topics separated by blanks; empty without one."""
    return "More: returnn-tf explain %s" % topic if topic else ""


@functools.cache
def _pages() -> Mapping[str, str]:
    """Return the pages by topic, sorted."""
    found = dict(texts(__file__, ".md"))
    for room in rooms().values():
        assert room.__file__ is not None
        found.update(texts(os.path.join(os.path.dirname(room.__file__), "explain", "pages.py"), ".md"))
    return dict(sorted(found.items()))
