"""Ends all ranks when one dies, hangs or fails, as a collective operation would wait for it forever.

Each rank has a thread and a connection to the chief, besides those of Horovod. Every second a rank sends its heartbeat,
and the chief looks for stalled ranks. If a rank ends unannounced, is silent, or makes no progress although it waits for
no other, it is named on all ranks, and all of them end.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from returnn_tf.engine.distributed.handshake import TOKEN_BYTES, Door, greet, listen
from returnn_tf.engine.distributed.heartbeat import Heartbeat
from returnn_tf.logging.log import log

EXIT_CODE = 1
_BEAT = 1.0
_CONNECT_SECONDS = 20.0
_HERE = "127.0.0.1"
_MOST_BYTES = 1 << 20  # of a message
_LONG = 30.0  # factor on the patience in long phases (tracing, opening data, saving)
_ALL_WAIT = 3.0  # factor on the patience if all ranks wait for each other: the network is broken


class Watchdog:
    """Watchdog thread of one rank. All ranks call `begin`, and `leave` when the work is done.

    :param world: World of several processes
    :param heartbeat: of this process
    :param timeout: seconds without progress
    """

    def __init__(self, world: Any, heartbeat: Heartbeat, timeout: float) -> None:
        self._world = world
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._lock = threading.Lock()  # for sending
        self._links: dict[int, socket.socket] = {}  # the chief: to all others; else: to the chief
        self._detector = StallDetector(timeout)
        self._over = False  # this rank is ending already
        #: called before the process is aborted
        self.on_abort: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Connect to the chief and start the threads."""
        token = secrets.token_hex(TOKEN_BYTES)
        together = self._world.local_size == self._world.size  # then nobody else needs to reach the chief
        server = None
        if self._world.is_chief:
            server = listen(_HERE if together else "", 0, self._world.size)
        place = [[_HERE] if together else _addresses(), server.getsockname()[1], token] if server else None
        addresses, port, token = self._world.gather(place)[0]
        self._detector.expect(self._world.hosts())
        if server:
            self._accept(server, token)
            server.close()
        else:
            link = self._connect(addresses, port, token)
            if link is not None:
                self._links[0] = link
        everyone = self._world.gather(len(self._links))
        if everyone[0] < self._world.size - 1 or not all(everyone):
            log.warn("The ranks can't watch each other: the chief is not reached at %s, port %d." % (addresses, port))
        for rank, link in self._links.items():
            threading.Thread(target=self._listen, args=(rank, link), name="watch", daemon=True).start()
        threading.Thread(target=self._beat, name="watchdog", daemon=True).start()

    def leave(self) -> None:
        """Announce that this rank ends cleanly, so that the others go on."""
        self._over = True
        self._send_all({"bye": self._world.rank})

    def failed(self, message: str) -> None:
        """Report that this rank ends because of an error, which it logs itself; the others end too."""
        if not self._over:
            self._over = True
            self._send_all({"failed": message, "rank": self._world.rank})

    def _accept(self, server: socket.socket, token: str) -> None:
        """Accept the other ranks, for some seconds."""
        end = time.monotonic() + _CONNECT_SECONDS
        with Door(server, token, self._world.size) as door:
            while len(self._links) < self._world.size - 1:
                arrived = door.next(end - time.monotonic())
                if arrived is None:
                    return
                rank, self._links[rank] = arrived

    def _connect(self, addresses: list[str], port: int, token: str) -> Optional[socket.socket]:
        local = self._world.hosts()[0] == self._world.host
        for address in dict.fromkeys(([_HERE] if local else []) + addresses):
            try:
                link = socket.create_connection((address, port), timeout=_CONNECT_SECONDS / 4)
                link.settimeout(None)
                greet(link, token, self._world.rank)
                return link
            except OSError:
                continue
        return None

    def _listen(self, rank: int, link: socket.socket) -> None:
        """Read the messages of a rank until its end."""
        try:
            file = link.makefile("rb")
            for line in iter(lambda: file.readline(_MOST_BYTES), b""):
                self._receive(rank, json.loads(line))
        except (OSError, ValueError):
            pass
        self._detector.ended(rank)

    def _receive(self, rank: int, message: dict[str, Any]) -> None:
        if "verdict" in message:
            if self._world.is_chief:  # the others are not connected to the rank that has found it
                self._send_all(message)
            self._end(message["verdict"])
        elif "failed" in message:
            self._detector.failed(message["rank"], message["failed"])
        elif "bye" in message:
            self._detector.left(rank)
        else:
            self._detector.update(rank, message)

    def _beat(self) -> None:
        """Send heartbeats, and end all ranks if one has stalled; the main loop of the thread."""
        while not self._over:
            state = self._heartbeat.state()
            self._detector.update(self._world.rank, state)
            self._send_all(state)
            verdict = self._detector.verdict(sorted(self._links))
            if verdict:
                self._send_all({"verdict": verdict})
                self._end(verdict)
            time.sleep(_BEAT)

    def _send_all(self, message: dict[str, Any]) -> None:
        for link in list(self._links.values()):
            try:
                with self._lock:
                    _send(link, message)
            except OSError:
                pass  # the listening thread detects that too

    def _end(self, verdict: str) -> None:
        if self._over:
            return
        self._over = True
        self._world.failure = verdict
        text = "%s: %s All ranks end; the same command resumes from the last checkpoint." % (
            self._world.name,
            verdict,
        )
        try:
            log.write(1, "error: " + text, terminal=False)
            print("error:", text, file=sys.stderr, flush=True)
            for function in self.on_abort:
                function()
        finally:
            os._exit(EXIT_CODE)


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode("ascii") + b"\n")


def _addresses() -> list[str]:
    """Return the addresses by which other hosts may reach this one."""
    found = [socket.gethostname()]
    try:
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError:
        pass
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect(("10.255.255.255", 1))  # sends nothing; finds the address of the outgoing interface
        found.append(probe.getsockname()[0])
    except OSError:
        pass
    finally:
        probe.close()
    return list(dict.fromkeys(address for address in found if not address.startswith("127.")))


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
        """Set the hosts, by rank, which will send heartbeats."""
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
        """Return which of the connected ranks has failed or stalled, and how; "" if none has."""
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
