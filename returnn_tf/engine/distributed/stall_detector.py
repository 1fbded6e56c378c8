"""Detection of stalled ranks: decides from the heartbeats which rank blocks the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

_LONG = 30.0  # factor on the patience in long phases (tracing, opening data, saving)
_ALL_WAIT = 3.0  # factor on the patience if all ranks wait for each other: the network is broken


class StallDetector:
    """Collects the heartbeats of the ranks; thread-safe.

    :param timeout: seconds without progress after which a rank counts as stalled
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._hosts: list[str] = []
        self._states: dict[int, tuple[float, dict[str, Any]]] = {}  # rank -> time and content of its last heartbeat
        self._gone: dict[int, str] = {}  # rank -> why
        self._left: set[int] = set()

    def expect(self, hosts: Sequence[str]) -> None:
        """Set the ranks which will send heartbeats.

        :param hosts: by rank
        """
        self._hosts = list(hosts)

    def update(self, rank: int, state: dict[str, Any]) -> None:
        """Store the heartbeat of a rank, see `Heartbeat.state`."""
        with self._lock:
            self._states[rank] = (time.monotonic(), state)

    def left(self, rank: int) -> None:
        """Record that a rank is done: its end is no failure."""
        with self._lock:
            self._left.add(rank)

    def ended(self, rank: int) -> None:
        """Record that the connection to a rank is lost."""
        with self._lock:
            if rank not in self._left:
                self._gone.setdefault(rank, "has ended or was killed")

    def failed(self, rank: int, message: str) -> None:
        """Record that a rank ends because of an error."""
        with self._lock:
            self._gone[rank] = "failed: %s" % message

    def verdict(self, ranks: Sequence[int]) -> str:
        """Return which rank has failed or stalled, and how; "" if none has.

        :param ranks: those with a connection
        """
        with self._lock:
            for rank, why in self._gone.items():
                return "%s %s%s" % (self._name(rank), why, "" if why.endswith(".") else ".")
            for rank in ranks:
                text = self._silent(rank)
                if text:
                    return text
            for rank in sorted(self._states):
                text = self._stuck(rank)
                if text:
                    return text
            return self._all_wait(len(ranks) + 1)

    def _name(self, rank: int) -> str:
        host = self._hosts[rank] if rank < len(self._hosts) else "an unknown host"
        done = self._states.get(rank, (0.0, {}))[1]
        where = " (last: %s, %d steps done)" % (done["phase"], done["step"] + 1) if done else ""
        return "rank %d on %s%s" % (rank, host, where)

    def _silent(self, rank: int) -> str:
        if rank in self._left or rank not in self._states:
            return ""
        age = time.monotonic() - self._states[rank][0]
        if age <= self._timeout:
            return ""
        return "%s has been silent for %.0f s: its process or machine is stopped, or the network is down." % (
            self._name(rank),
            age,
        )

    def _stuck(self, rank: int) -> str:
        when, state = self._states[rank]
        if rank in self._left or state["waiting"]:
            return ""
        patience = max(self._timeout, state["patience"]) * (_LONG if state["long"] else 1.0)
        age = state["age"] + time.monotonic() - when
        if age <= patience:
            return ""
        return "%s has made no progress for %.0f s, though it waits for no other rank: it hangs." % (
            self._name(rank),
            age,
        )

    def _all_wait(self, number: int) -> str:
        """Return the error if each rank waits for the others; "" while some have sent no heartbeat."""
        states = [state for _, state in self._states.values()]
        if len(states) < number or len(states) < 2 or not all(state["waiting"] for state in states):
            return ""
        patience = _ALL_WAIT * max([self._timeout] + [state["patience"] for state in states])
        if min(state["age"] for state in states) <= patience:
            return ""
        phases = ", ".join("%s: %s" % (rank, self._states[rank][1]["phase"]) for rank in sorted(self._states))
        return "All ranks have waited for each other for %.0f s (%s): the network is broken." % (patience, phases)
