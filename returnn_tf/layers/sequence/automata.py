"""Programs that make the automata of a layer `fast_bw` while the graph runs, found as plug-ins are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from returnn_tf.config.registry import Registry
from returnn_tf.ops.sequence.fsa import Acceptors


@dataclass(frozen=True)
class AutomatonServer:
    """A program that makes the automaton of a sequence from its tag.

    :param check: function(options, where) that raises `ConfigError` if the options of the program are wrong
    :param acceptors: function(options, where, tags, number of classes, scale of the costs) -> acceptors; the tags are a
        string tensor [batch]
    """

    check: Callable[[Any, str], None]
    acceptors: Callable[[Mapping[str, Any], str, Any, int, float], Acceptors]


#: By the value of ``align_target``.
AUTOMATON_SERVERS: Registry[AutomatonServer] = Registry("program for automata", plugins="returnn_tf.automata")
