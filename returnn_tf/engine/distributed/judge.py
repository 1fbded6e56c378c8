"""Decides from what the ranks say which of them keeps the others waiting for ever."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, Sequence, Set, Tuple

_LONG = 30.0  # what may take long (tracing, opening data, saving) gets so many times the patience
_ALL_WAIT = 3.0  # all ranks wait for each other: the network is broken


class Judge:
    """Collects notes of the ranks; thread-safe."""

    def __init__(self, timeout: float) -> None:
        """
        :param timeout: seconds without progress which are too many
        """
        self._timeout = timeout
        self._lock = threading.Lock()
        self._hosts: List[str] = []
        self._said: Dict[int, Tuple[float, Dict[str, Any]]] = {}  # rank -> when and what it said last
        self._gone: Dict[int, str] = {}  # rank -> why
        self._left: Set[int] = set()

    def expect(self, hosts: Sequence[str]) -> None:
        """The ranks begin to talk now.

        :param hosts: by rank
        """
        self._hosts = list(hosts)

    def heard(self, rank: int, state: Dict[str, Any]) -> None:
        """A rank tells what it does, see `Board.state`."""
        with self._lock:
            self._said[rank] = (time.monotonic(), state)

    def left(self, rank: int) -> None:
        """A rank is done."""
        with self._lock:
            self._left.add(rank)

    def ended(self, rank: int) -> None:
        """The connection to a rank is gone."""
        with self._lock:
            if rank not in self._left:
                self._gone.setdefault(rank, "has ended or was killed")

    def failed(self, rank: int, message: str) -> None:
        """A rank ends because of an error."""
        with self._lock:
            self._gone[rank] = "failed: %s" % message

    def verdict(self, ranks: Sequence[int]) -> str:
        """Who is to blame, or "".

        :param ranks: with which there is a connection
        """
        with self._lock:
            for rank, why in self._gone.items():
                return "%s %s%s" % (self._name(rank), why, "" if why.endswith(".") else ".")
            for rank in ranks:
                text = self._silent(rank)
                if text:
                    return text
            for rank in sorted(self._said):
                text = self._stuck(rank)
                if text:
                    return text
            return self._all_wait(len(ranks) + 1)

    def _name(self, rank: int) -> str:
        host = self._hosts[rank] if rank < len(self._hosts) else "an unknown host"
        done = self._said.get(rank, (0.0, {}))[1]
        where = " (last: %s, %d steps done)" % (done["phase"], done["step"] + 1) if done else ""
        return "rank %d on %s%s" % (rank, host, where)

    def _silent(self, rank: int) -> str:
        if rank in self._left or rank not in self._said:
            return ""
        age = time.monotonic() - self._said[rank][0]
        if age <= self._timeout:
            return ""
        return "%s is silent for %.0f s: its process or machine is stopped, or the network is down." % (
            self._name(rank),
            age,
        )

    def _stuck(self, rank: int) -> str:
        when, state = self._said[rank]
        if rank in self._left or state["waiting"]:
            return ""
        patience = max(self._timeout, state["patience"]) * (_LONG if state["long"] else 1.0)
        age = state["age"] + time.monotonic() - when
        if age <= patience:
            return ""
        return "%s makes no progress for %.0f s, though no other rank keeps it waiting: it hangs." % (
            self._name(rank),
            age,
        )

    def _all_wait(self, number: int) -> str:
        """Each waits for the others; with fewer than all known, the ones not heard of are elsewhere."""
        said = [state for _, state in self._said.values()]
        if len(said) < number or len(said) < 2 or not all(state["waiting"] for state in said):
            return ""
        patience = _ALL_WAIT * max([self._timeout] + [state["patience"] for state in said])
        if min(state["age"] for state in said) <= patience:
            return ""
        phases = ", ".join("%s: %s" % (rank, self._said[rank][1]["phase"]) for rank in sorted(self._said))
        return "All ranks wait for each other for %.0f s (%s): the network is broken." % (patience, phases)
