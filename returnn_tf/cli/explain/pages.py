"""The pages on errors: Markdown files beside this module, called after their topics."""

from __future__ import annotations

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.util.shipped import texts


def topics() -> tuple[str, ...]:
    """Return all topics, sorted."""
    return tuple(texts(__file__, ".md"))


def page(topic: str) -> str:
    """Return the Markdown of a topic.

    :raises ConfigError: unknown topic
    """
    if topic not in topics():
        raise ConfigError("explain: there is no topic %r. %s" % (topic, did_you_mean(topic, topics(), max_listed=50)))
    return texts(__file__, ".md")[topic]


def title(topic: str) -> str:
    """Return the first heading of a topic."""
    return page(topic).partition("\n")[0].lstrip("# ")


def pointer(topic: str) -> str:
    """Return the line at the end of an error message; empty without a topic.

    :param topic: topics separated by blanks
    """
    return "More: returnn-tf explain %s" % topic if topic else ""
