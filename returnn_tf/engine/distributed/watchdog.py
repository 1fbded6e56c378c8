"""Ends all ranks when one dies, hangs or fails, as a collective operation would wait for it forever.

Each rank has a thread and a connection to the chief, besides those of Horovod. Every second a rank sends its heartbeat,
and the chief looks for stalled ranks. If a rank ends unannounced, is silent, or makes no progress although it waits for
no other, it is named on all ranks, and all of them end.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import sys
import threading
import time
from typing import Any, Callable, Optional

from returnn_tf.engine.distributed.heartbeat import Heartbeat
from returnn_tf.engine.distributed.stall_detector import StallDetector
from returnn_tf.logging.log import log

EXIT_CODE = 1
_BEAT = 1.0
_CONNECT_SECONDS = 20.0


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
        token = secrets.token_hex(16)
        server = socket.create_server(("", 0), backlog=self._world.size) if self._world.is_chief else None
        place = [_addresses(), server.getsockname()[1], token] if server else None
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
        """Report that this rank ends because of an error, which it logs itself; the others end too.

        :param message: what went wrong
        """
        if not self._over:
            self._over = True
            self._send_all({"failed": message, "rank": self._world.rank})

    def _accept(self, server: socket.socket, token: str) -> None:
        server.settimeout(_CONNECT_SECONDS)
        while len(self._links) < self._world.size - 1:
            try:
                link, _ = server.accept()
                link.settimeout(_CONNECT_SECONDS)
                hello = json.loads(link.makefile("r").readline() or "{}")
            except (OSError, ValueError):
                return
            if hmac.compare_digest(str(hello.get("token")), token):
                link.settimeout(None)
                self._links[int(hello["rank"])] = link
            else:
                link.close()

    def _connect(self, addresses: list[str], port: int, token: str) -> Optional[socket.socket]:
        local = self._world.hosts()[0] == self._world.host
        for address in (["127.0.0.1"] if local else []) + addresses:
            try:
                link = socket.create_connection((address, port), timeout=_CONNECT_SECONDS / 4)
                link.settimeout(None)
                _send(link, {"token": token, "rank": self._world.rank})
                return link
            except OSError:
                continue
        return None

    def _listen(self, rank: int, link: socket.socket) -> None:
        """Read the messages of a rank until its end."""
        try:
            for line in link.makefile("r"):
                self._receive(rank, json.loads(line))
        except (OSError, ValueError):
            pass
        self._detector.ended(rank)

    def _receive(self, rank: int, message: dict[str, Any]) -> None:
        if "verdict" in message:
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
