"""How ranks connect to the leader before they trust what they read: each first sends the token of the run and its rank.

Until a connection has sent the token, nothing of it is read but as many bytes as a rank sends. Strangers neither keep
the ranks out nor end anything.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import time
from types import TracebackType
from typing import Optional

TOKEN_BYTES = 16
#: The token, as hexadecimal digits, and the rank. All of the same length, so that there is nothing to parse before the
#: token is compared.
_HELLO = b"%s%08d"
_HELLO_BYTES = 2 * TOKEN_BYTES + 8
_MOST_STRANGERS = 64  # with connections at the same time; more, and the oldest one is closed


def listen(host: str, port: int, size: int) -> socket.socket:
    """Return a server for the ranks.

    :param host: the address to listen at; "" for all
    :param port: 0: any that is free
    :param size: number of ranks
    :raises OSError: the port is in use
    """
    backlog = size + _MOST_STRANGERS
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port), backlog=backlog)
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)


def greet(link: socket.socket, token: str, rank: int) -> None:
    """Send what the leader reads first.

    :raises OSError: the connection is lost
    """
    link.sendall(_HELLO % (token.encode("ascii"), rank))


class Door:
    """Accepts the ranks at a server; a context manager, at whose end all other connections are closed.

    :param server: listening; it stays open
    :param token: of the run, `TOKEN_BYTES` as hexadecimal digits
    :param size: number of ranks
    """

    def __init__(self, server: socket.socket, token: str, size: int) -> None:
        self._server = server
        self._token = token.encode("ascii")
        self._most = size + _MOST_STRANGERS
        self._said: dict[socket.socket, bytes] = {}  # by connections that haven't said all, oldest first
        self._selector = selectors.DefaultSelector()
        self.strangers = 0  #: connections that had another token

    def __enter__(self) -> Door:
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], exc: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._selector.close()
        for link in self._said:
            link.close()

    def next(self, seconds: float) -> Optional[tuple[int, socket.socket]]:
        """Return the next rank and the connection to it, which blocks; None if none comes in time."""
        end = time.monotonic() + seconds
        while True:
            for key, _ in self._selector.select(max(0.0, end - time.monotonic())):
                if key.fileobj is self._server:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._said:  # else: closed just now
                    rank = self._read(key.fileobj)
                    if rank is not None:
                        return rank, key.fileobj
            if time.monotonic() >= end:
                return None

    def _accept(self) -> None:
        """Accept a connection, unless it is gone again or the process has no more files."""
        try:
            link, _ = self._server.accept()
        except OSError:
            time.sleep(0.01)
            return
        link.setblocking(False)
        self._said[link] = b""
        self._selector.register(link, selectors.EVENT_READ)
        if len(self._said) > self._most:
            self._hang_up(next(iter(self._said)))

    def _read(self, link: socket.socket) -> Optional[int]:
        """Read from a connection; return its rank once it has sent all."""
        try:
            content = link.recv(_HELLO_BYTES - len(self._said[link]))
        except OSError:
            content = b""
        hello = self._said[link] = self._said[link] + content
        if len(hello) == _HELLO_BYTES and hmac.compare_digest(hello[: len(self._token)], self._token):
            self._selector.unregister(link)
            del self._said[link]
            link.setblocking(True)
            return int(hello[len(self._token) :])
        if not content or len(hello) == _HELLO_BYTES:
            self.strangers += len(hello) == _HELLO_BYTES
            self._hang_up(link)
        return None

    def _hang_up(self, link: socket.socket) -> None:
        self._selector.unregister(link)
        del self._said[link]
        link.close()
