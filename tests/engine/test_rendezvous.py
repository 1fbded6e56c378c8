"""How the ranks find each other before TensorFlow's servers start, each in a thread; what all say if they don't."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

import pytest

from returnn_tf.config import DataError
from returnn_tf.engine.distributed import rendezvous
from returnn_tf.engine.distributed.membership import Membership
from tests.waiting import LONG

HERE = socket.gethostname()


def free_ports(number: int) -> list[int]:
    """Return ports that nobody has."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("", 0))) for _ in range(number)]
        return [server.getsockname()[1] for server in servers]


@pytest.fixture
def members() -> list[Membership]:
    """Three ranks on this host."""
    addresses = tuple("127.0.0.1:%d" % port for port in free_ports(3))
    return [Membership(rank, 3, rank, 3, addresses, "ADDRESSES", "0" * 32) for rank in range(3)]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for less long after an error."""
    monkeypatch.setattr(rendezvous, "_GRACE", 0.5)
    monkeypatch.setattr(rendezvous, "_PAUSE", 0.02)


def meet(members: list[Membership], timeout: float = LONG) -> list[Any]:
    """Return what each of the ranks gets: the hosts or its error."""
    results: list[Any] = [None] * len(members)

    def run(index: int) -> None:
        try:
            results[index] = rendezvous.meet(members[index], timeout)
        except DataError as exc:
            results[index] = str(exc)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(members))]
    for thread in reversed(threads):  # the leader is the last one
        thread.start()
    for thread in threads:
        thread.join(LONG)
    return results


def the_error(results: list[Any]) -> str:
    """Return the error, which is the same for all."""
    assert isinstance(results[0], str) and set(results) == {results[0]}
    return results[0]


def test_all_learn_the_hosts(members: list[Membership]) -> None:
    assert meet(members) == [[HERE] * 3] * 3


def test_the_ports_are_free_afterwards(members: list[Membership]) -> None:
    meet(members)
    for address in members[0].addresses:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_one_process_meets_nobody() -> None:
    assert rendezvous.meet(Membership(0, 1, 0, 1, ("unknown.invalid:1",), "ADDRESSES", "0" * 32), 0.0) == [HERE]


def test_ports_that_the_launcher_holds(members: list[Membership]) -> None:
    with contextlib.ExitStack() as stack:
        for address in members[0].addresses:
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", int(address.rpartition(":")[2])))
        assert meet(members) == [[HERE] * 3] * 3


@pytest.mark.parametrize("missing", [1, 2])
def test_a_rank_that_never_starts(members: list[Membership], missing: int) -> None:
    del members[missing]
    assert the_error(meet(members, 0.5)).startswith(
        "1 of 3 ranks have not started within 0.5 s: rank %d (127.0.0.1)" % missing
    )


def test_many_ranks_that_never_start(members: list[Membership]) -> None:
    addresses = members[0].addresses + tuple("127.0.0.1:%d" % port for port in range(1, 30))
    members = [dataclasses.replace(member, size=32, local_size=32, addresses=addresses) for member in members]
    text = the_error(meet(members, 0.5))
    assert "29 of 32 ranks have not started" in text and "ranks 3 (127.0.0.1), 4 (" in text and text.endswith(", ...")


def test_the_leader_never_starts(members: list[Membership]) -> None:
    for text in meet(members[1:], 0.5):
        assert text.startswith("Rank 0 at %s has not been reached within 0.5 s: " % members[0].addresses[0])


@contextlib.contextmanager
def taken(address: str) -> Iterator[None]:
    """Have another program listen at a port."""
    with socket.create_server(("", int(address.rpartition(":")[2]))):
        yield


def test_a_port_in_use(members: list[Membership]) -> None:
    with taken(members[2].addresses[2]):
        text = the_error(meet(members))
    port = members[2].addresses[2].rpartition(":")[2]
    assert text.startswith(
        "Rank 2 on %s can't start: port %s of %s can't be opened: Address already" % (HERE, port, HERE)
    )


def test_the_port_of_the_leader_in_use(members: list[Membership]) -> None:
    with taken(members[0].addresses[0]):
        results = meet(members[:1])
    port = members[0].addresses[0].rpartition(":")[2]
    assert results[0].startswith("port %s of %s can't be opened: Address already in use" % (port, HERE))
    assert "RETURNN_TF_PORT" in results[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_unknown_hosts(members: list[Membership], rank: int) -> None:
    """As one of the ranks sees them: names may be known on some hosts only."""
    addresses = members[0].addresses[:2] + ("unknown.invalid:1",)
    members[rank] = dataclasses.replace(members[rank], addresses=addresses)
    text = the_error(meet(members))
    assert text == "Rank %d on %s can't start: it finds no address of unknown.invalid, which ADDRESSES names" % (
        rank,
        HERE,
    )


@pytest.mark.parametrize("name", ["Python", "TensorFlow", "returnn_tf"])
def test_different_versions(members: list[Membership], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = rendezvous.versions()
    assert set(right) == {"Python", "TensorFlow", "returnn_tf"} and all(right.values())
    once = iter([{**right, name: "0.0"}])
    monkeypatch.setattr(rendezvous, "versions", lambda: next(once, right))
    text = the_error(meet(members))
    assert text.startswith("The ranks differ in their versions, but must train the same. %s: " % name)
    assert "0.0 on rank " in text and "%s on ranks " % right[name] in text and text.count(": ") == 1


def test_a_rank_started_twice(members: list[Membership], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether both have the port, in containers, or only one of them."""
    monkeypatch.setattr(rendezvous, "_own_port", lambda member: 0 if member.rank else int(members[0].addresses[0][10:]))
    results = meet([members[0], members[1], members[1]])
    assert the_error(results).startswith("Rank 1 was started twice: as process ")


def _says(content: bytes, close: bool = True) -> Callable[[Any], Optional[socket.socket]]:
    def visit(member: Membership) -> Optional[socket.socket]:
        host, port = member.addresses[0].split(":")
        end = time.monotonic() + LONG
        while True:
            try:
                link = socket.create_connection((host, int(port)), timeout=LONG)
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.01)
        link.sendall(content)
        if close:
            link.close()
            return None
        return link

    return visit


def test_a_rank_that_ends_early(members: list[Membership]) -> None:
    hello = b"0" * 32 + b"00000002" + b'{"host": "b", "pid": 7, "versions": {}, "fault": ""}\n'
    thread = threading.Thread(target=_says(hello), args=(members[0],))
    thread.start()
    assert the_error(meet(members[:2])) == "Rank 2 on b (process 7) has ended before all ranks had started"
    thread.join(LONG)


def test_ranks_with_other_addresses_are_named_as_a_cause(members: list[Membership]) -> None:
    other = dataclasses.replace(members[2], token="1" * 32)
    results = meet([members[0], members[1], other], 1.0)
    assert "rank 2 (127.0.0.1). 1 connections to %s were not of this run" % members[0].addresses[0] in results[0]
    assert results[1] == results[0]
    assert results[2].startswith("Rank 0 at %s has ended before all ranks had started" % members[0].addresses[0])


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"0" * 32 + b"00000001null\n"])
def test_strangers_keep_nobody_out(members: list[Membership], content: bytes) -> None:
    links: list[Any] = []
    thread = threading.Thread(target=lambda: links.append(_says(content, close=False)(members[0])))
    thread.start()
    time.sleep(0.05)
    assert meet(members) == [[HERE] * 3] * 3
    thread.join(LONG)
    for link in links:
        link.close()
