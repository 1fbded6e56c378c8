"""The automata of segments, which RASR makes while the graph runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from returnn_tf.config.options import check_options
from returnn_tf.layers.sequence.automata import AUTOMATON_SERVERS, AutomatonServer
from returnn_tf.ops.sequence.fsa import Acceptors
from returnn_tf.rasr.processes.servers import Automaton, ServerOptions, servers_for
from returnn_tf.util.host_calls import host_call
from returnn_tf.util.lazy_tf import tf


def check_sprint_opts(options: Any, where: str) -> None:
    """Check the types of the options of RASR, not whether there is such a program.

    :param where: how an error begins
    :raises ConfigError: they are missing or wrong
    """
    given = {name: value for name, value in dict(options or {}).items() if value is not None}
    check_options(ServerOptions, given, where=where)


def text_of_tags(tags: Any) -> list[str]:
    """Return the names of sequences as text, from an array of bytes [batch]."""
    return [tag.decode("utf8") if isinstance(tag, bytes) else str(tag) for tag in tags]


def acceptors_of_rasr(options: Mapping[str, Any], where: str, tags: Any, classes: int, tdp_scale: float) -> Acceptors:
    """Ask RASR for the acceptor of each segment.

    :param options: ``sprint_opts``
    :param where: how an error begins
    :param tags: names of the segments, string [batch]
    :param tdp_scale: scale of the costs; 0 makes all of them 0
    :raises ConfigError: the options are wrong
    """
    servers = servers_for(options, owner=where)

    def ask(tags: Any) -> Any:
        return _joined(servers.automata(text_of_tags(tags), classes))

    edges, costs, num_states = host_call(ask, [tags], [tf.int32, tf.float32, tf.int32])
    edges.set_shape([None, None, 3])
    costs.set_shape([None, None])
    num_states.set_shape([None])
    return Acceptors(edges, costs * tdp_scale if tdp_scale else tf.zeros_like(costs), num_states)


def _joined(automata: Sequence[Automaton]) -> Any:
    longest = max([automaton.edges.shape[1] for automaton in automata], default=0)
    edges = np.full([len(automata), longest, 3], -1, "int32")
    costs = np.zeros([len(automata), longest], "float32")
    for row, automaton in enumerate(automata):
        count = automaton.edges.shape[1]
        edges[row, :count] = automaton.edges.T
        costs[row, :count] = automaton.weights
    return edges, costs, np.array([automaton.num_states for automaton in automata], "int32")


AUTOMATON_SERVERS.add(AutomatonServer(check_sprint_opts, acceptors_of_rasr), "sprint", owner=acceptors_of_rasr)
