"""How ranks find each other for watching: strangers that connect in the meantime end nothing and disable nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, Callable, Optional

import pytest

from returnn_tf.engine.distributed import watchdog
from returnn_tf.engine.distributed.heartbeat import Heartbeat
from returnn_tf.engine.distributed.watchdog import Watchdog
from tests.waiting import LONG, until

SIZE = 3
#: Of the strangers of a test.
_links: list[socket.socket] = []
_floods: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def strangers_leave() -> Iterator[None]:
    """Close their connections: a process may have 1024 files in all."""
    yield
    for flood in _floods:
        flood.join(LONG)
    for link in _links:
        link.close()
    _floods.clear()
    _links.clear()


class Board:
    """What the ranks exchange.

    :param between: called with the chief's place, before the others learn it
    """

    def __init__(self, between: Callable[[list[Any]], None]) -> None:
        self.between: Optional[Callable[[list[Any]], None]] = between
        self.barrier = threading.Barrier(SIZE, timeout=LONG)
        self.values: list[Any] = [None] * SIZE

    def gather(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        if rank == 0 and self.between is not None:
            self.between(value)
            self.between = None
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class World:
    """The world as one of the threads of this process sees it."""

    size = SIZE

    def __init__(self, board: Board, rank: int, hosts: list[str]) -> None:
        self.board, self.rank, self.is_chief, self._hosts = board, rank, rank == 0, hosts
        self.host, self.local_size, self.failure = hosts[rank], hosts.count(hosts[rank]), ""
        self.name = "rank %d" % rank

    def hosts(self) -> list[str]:
        """Return the host of each rank."""
        return self._hosts

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return self.board.gather(self.rank, value)


@contextlib.contextmanager
def watching(between: Callable[[list[Any]], None], hosts: tuple[str, ...] = ("a",) * SIZE) -> Iterator[list[Watchdog]]:
    """Start the watchdogs of all ranks."""
    board = Board(between)
    dogs = [Watchdog(World(board, rank, list(hosts)), Heartbeat(), 1000.0) for rank in range(SIZE)]
    threads = [threading.Thread(target=dog.begin) for dog in dogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    try:
        yield dogs
    finally:
        for dog in dogs:
            dog.leave()
        for dog in dogs:
            for link in dog._links.values():
                with contextlib.suppress(OSError):  # the other end has done so
                    link.shutdown(socket.SHUT_RDWR)  # else the threads go on to read
                link.close()


def sends(content: bytes, times: int = 0, close: bool = False) -> Callable[[list[Any]], None]:
    """Return a stranger: it connects, sends something, and stays until the end of the test."""

    def connect(port: int) -> None:
        link = socket.create_connection(("127.0.0.1", port), timeout=LONG)
        _links.append(link)
        link.settimeout(0.1)
        with contextlib.suppress(OSError):  # more than the buffers hold: nobody reads it
            link.sendall(content)
        if close:
            link.close()

    def flood(port: int) -> None:
        with contextlib.suppress(OSError):  # until the ranks are complete
            for _ in range(times):
                connect(port)

    def between(place: list[Any]) -> None:
        connect(place[1])
        _floods.append(threading.Thread(target=flood, args=(place[1],), daemon=True))
        _floods[-1].start()

    return between


STRANGERS = {
    "list": sends(b"[]\n"),
    "text": sends(b'"x"\n'),
    "null": sends(b"null\n"),
    "browser": sends(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "silent": sends(b""),
    "gone": sends(b"", close=True),
    "no newline": sends(b"hello"),
    "no text": sends(b"\xff" * 100),
    "long line": sends(b"a" * (64 << 20)),
    "wrong token": sends(b"0" * 32 + b"00000001"),
    "nearly a message": sends(b'{"token": "' + b"0" * 32 + b'", "rank": 1}\n'),
    "many": sends(b"", times=300),  # each takes two files of this process
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers(stranger: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """All ranks are watched nevertheless, and without waiting for strangers to say something."""
    monkeypatch.setattr(watchdog, "_CONNECT_SECONDS", LONG)
    with watching(STRANGERS[stranger]) as dogs:
        assert sorted(dogs[0]._links) == [1, 2] and [sorted(dog._links) for dog in dogs[1:]] == [[0], [0]]
        until(lambda: len(dogs[0]._detector._states) == SIZE, "heartbeats of all ranks arrive")
        assert dogs[0]._detector.verdict([0, 1, 2]) == ""
    assert caplog.records == []


def test_without_a_rank_strangers_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief doesn't wait for longer than the limit, whatever is said to it meanwhile."""
    monkeypatch.setattr(watchdog, "_CONNECT_SECONDS", 2.0)
    server = socket.create_server(("127.0.0.1", 0), backlog=10)
    dog = Watchdog(World(Board(lambda place: None), 0, ["a"] * SIZE), Heartbeat(), 1000.0)
    with socket.create_connection(server.getsockname(), timeout=LONG) as stranger:
        stranger.sendall(b"0" * 20)
        dog._accept(server, "1" * 32)
        assert stranger.recv(1) == b"" and dog._links == {}
    server.close()


@pytest.mark.parametrize("hosts, open_", [(("a", "a", "a"), False), (("a", "b", "a"), True)], ids=["one", "two"])
def test_only_this_machine_if_all_are_on_it(hosts: tuple[str, ...], open_: bool) -> None:
    """The whole of 127.0.0.0/8 is this machine, but only a server on all interfaces answers at its other addresses."""
    reached = []

    def between(place: list[Any]) -> None:
        place[0].append("127.0.0.1")  # for rank 1, which seems to be elsewhere
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.2", place[1])):
            reached.append(True)

    with watching(between, hosts) as dogs:
        assert bool(reached) == open_ and len(dogs[0]._links) == 2


def test_all_ranks_learn_what_one_of_them_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that hangs may notice that first. The others would else name the chief, which ends because of it."""
    ends: dict[int, str] = {}
    monkeypatch.setattr(Watchdog, "_end", lambda dog, verdict: ends.setdefault(dog._world.rank, verdict))
    with watching(lambda place: None) as dogs:
        dogs[2]._send_all({"verdict": "rank 2 hangs."})
        until(lambda: {0, 1} <= set(ends), "the others are told")
        assert ends[0] == ends[1] == "rank 2 hangs."


def test_a_rank_that_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its last message was."""
    monkeypatch.setattr(Watchdog, "_end", lambda dog, verdict: None)  # those that see it would end this process
    with watching(lambda place: None) as dogs:
        dogs[2]._over = True
        dogs[2]._links[0].sendall(b"x" * (2 << 20))
        until(lambda: dogs[0]._detector.verdict([0, 1, 2]), "the chief sees it")
        dogs[0]._over = dogs[1]._over = True
        assert "rank 2 on a" in dogs[0]._detector.verdict([0, 1, 2])
