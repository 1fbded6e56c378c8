"""Conversion of TensorFlow errors within a step to errors which name the layer and the sequences."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from returnn_tf.config.errors import ConfigError, DataError, StepError
from returnn_tf.util.host_calls import failed_host_call
from returnn_tf.util.lazy_tf import tf

_MAX_TAGS = 20
_MAX_CHARS = 600  # TensorFlow lists all values of a batch if one is wrong
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_ASSERTION = re.compile(r"^assertion failed: \[(.*?)\](?= \[|$)", re.DOTALL)


@contextlib.contextmanager
def naming_sequences(phase: str, seq_tags: Sequence[str]) -> Iterator[None]:
    """Convert an error of an op in this context to a `DataError`, with the op's own error as its cause.

    :param phase: text for the message, e.g. ``train epoch 3``
    :param seq_tags: the sequences of the batch
    :raises DataError: an op failed, e.g. because a label is out of range or memory ran out
    """
    try:
        yield
    except tf.errors.OpError as exc:
        tags = [str(tag) for tag in seq_tags]
        more = " and %i more" % (len(tags) - _MAX_TAGS) if len(tags) > _MAX_TAGS else ""
        text = "%s: %s\n  sequences of the batch: %s%s" % (phase, reason(exc), ", ".join(tags[:_MAX_TAGS]), more)
        topic = getattr(failed_host_call(exc), "topic", "")
        if isinstance(exc, tf.errors.ResourceExhaustedError):
            topic = "memory"
            text += "\n  Out of memory: lower batch_size or max_seqs, or cut sequences with chunking."
        raise StepError(text, topic=topic) from exc


def reason(exc: BaseException) -> str:
    """Return the message of an op, truncated if it is long, without the frames of the graph.

    The name of the op is added unless it names the layer itself.
    """
    failed = failed_host_call(exc)
    if failed is not None:
        known = isinstance(failed, (ConfigError, DataError))
        return str(failed) if known else "%s: %s" % (type(failed).__name__, failed)
    text = _complete_reason(exc)
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 4] + " ..."


def _complete_reason(exc: BaseException) -> str:
    text = str(getattr(exc, "message", None) or exc)
    node = _NODE.search(text)
    message = text.split("\n\t [[")[0].strip().split("\n\n")[-1].strip()
    message = message[message.rfind("\nassertion failed:") + 1 :]
    assertion = _ASSERTION.match(message)
    if assertion:
        return (assertion.group(1) + message[assertion.end() :]).replace("\\'", "'")
    message = " ".join(message.split("\n")[-1].split())
    return "op %s: %s" % (node.group(1), message) if node and node.group(1) not in message else message
