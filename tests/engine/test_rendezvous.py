"""How the ranks find each other before TensorFlow's servers start, each in a thread; what all say if they don't."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, Callable, Optional

import pytest

from returnn_tf._version import __version__
from returnn_tf.cli.launch.processes import held_port
from returnn_tf.config import DataError
from returnn_tf.engine.distributed import rendezvous
from returnn_tf.engine.distributed.membership import Membership
from tests.waiting import LONG, until

HERE = socket.gethostname()
PYTHON = "%d.%d" % sys.version_info[:2]
_HELLO = b"0" * 32 + b"00000002"  # of rank 2


@pytest.fixture
def members() -> Iterator[list[Membership]]:
    """Yield three ranks on this host, whose ports are held as by the launcher: other tests get none of them."""
    with contextlib.ExitStack() as stack:
        addresses = tuple("127.0.0.1:%d" % stack.enter_context(held_port()) for _ in range(3))
        yield [Membership(rank, 3, rank, 3, addresses, "ADDRESSES", "0" * 32) for rank in range(3)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for as long as a rank needs under load after an error, and look more often."""
    monkeypatch.setattr(rendezvous, "_GRACE", LONG)
    monkeypatch.setattr(rendezvous, "_PAUSE", 0.02)


def meet(members: list[Membership], timeout: float = LONG, stranger: Optional[Callable[..., Any]] = None) -> list[Any]:
    """Return what each of the ranks gets: the hosts or its error.

    :param stranger: called with the leader, which has started by then; the other ranks come later
    """
    results: list[Any] = [None] * len(members)

    def run(index: int) -> None:
        try:
            results[index] = rendezvous.meet(members[index], timeout)
        except DataError as exc:
            results[index] = str(exc)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(members))]
    if stranger is not None:
        threads[0].start()
        stranger(members[0])
    for thread in threads[:0:-1] + threads[:1] * (stranger is None):  # the leader is the last one
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


def test_ranks_on_several_hosts(members: list[Membership]) -> None:
    """Reached at their own addresses, not only at that by which a machine reaches itself."""
    ports = [address.rpartition(":")[2] for address in members[0].addresses]
    addresses = tuple("127.0.0.%d:%s" % (rank + 2, port) for rank, port in enumerate(ports))
    members = [dataclasses.replace(member, addresses=addresses, local_rank=0, local_size=1) for member in members]
    assert meet(members) == [[HERE] * 3] * 3


def test_the_ports_are_free_afterwards(members: list[Membership]) -> None:
    meet(members)
    for address in members[0].addresses:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_one_process_meets_nobody() -> None:
    assert rendezvous.meet(Membership(0, 1, 0, 1, ("unknown.invalid:1",), "ADDRESSES", "0" * 32), 0.0) == [HERE]


@pytest.mark.parametrize("missing", [1, 2])
def test_a_rank_that_never_starts(members: list[Membership], missing: int) -> None:
    del members[missing]
    assert the_error(meet(members, 2.0)).startswith(
        "1 of 3 ranks have not started within 2 s: rank %d (127.0.0.1)" % missing
    )


def test_many_ranks_that_never_start(members: list[Membership]) -> None:
    addresses = members[0].addresses + tuple("127.0.0.1:%d" % port for port in range(1, 30))
    members = [dataclasses.replace(member, size=32, local_size=32, addresses=addresses) for member in members]
    text = the_error(meet(members, 2.0))
    assert "29 of 32 ranks have not started" in text and "ranks 3 (127.0.0.1), 4 (" in text and text.endswith(", ...")


def test_the_leader_never_starts(members: list[Membership]) -> None:
    for text in meet(members[1:], 2.0):
        assert text.startswith("Rank 0 at %s has not been reached within 2 s: " % members[0].addresses[0])


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
    monkeypatch.setattr(rendezvous, "_GRACE", 0.5)  # rank 2 never comes
    monkeypatch.setattr(rendezvous, "_own_port", lambda member: 0 if member.rank else int(members[0].addresses[0][10:]))
    results = meet([members[0], members[1], members[1]])
    assert the_error(results).startswith("Rank 1 was started twice: as process ")


@contextlib.contextmanager
def saying(content: bytes) -> Iterator[Callable[[Membership], None]]:
    """Return a function that connects to a leader and sends something; the connection lasts as long as the context."""
    with contextlib.ExitStack() as links:

        def visit(leader: Membership) -> None:
            host, port = leader.addresses[0].split(":")
            connected: list[socket.socket] = []

            def connect() -> bool:
                with contextlib.suppress(OSError):
                    connected.append(links.enter_context(socket.create_connection((host, int(port)), timeout=LONG)))
                return bool(connected)

            until(connect, "the leader does not listen")
            connected[0].sendall(content)

        yield visit


def test_a_rank_that_ends_early(members: list[Membership]) -> None:
    def visit(leader: Membership) -> None:
        with saying(_HELLO + b'{"host": "b", "pid": 7, "versions": {}, "fault": ""}\n') as say:
            say(leader)

    assert the_error(meet(members[:2], LONG, visit)) == "Rank 2 on b (process 7) has ended before all ranks had started"


@pytest.mark.parametrize(
    "told, shown",
    [
        ({}, "another version"),
        ({"versions": ["0.1.0"]}, "another version"),
        ({"versions": {"Python": PYTHON}}, "another version"),
        ({"versions": {"Python": PYTHON, "returnn_tf": "0.1.0"}}, "0.1.0"),
        ({"versions": {"returnn_tf": __version__}}, "another version"),
    ],
    ids=str,
)
def test_a_version_that_says_something_else(members: list[Membership], told: dict[str, Any], shown: str) -> None:
    """The error is about what it tells; not about what it doesn't."""
    content = json.dumps({"host": "b", "new": 1, **told}).encode("ascii") + b"\n"
    with saying(_HELLO + content) as say:
        text = the_error(meet(members[:2], LONG, say))
    assert text.endswith(
        "same. returnn_tf: %s on ranks 0 (%s), 1 (%s); %s on rank 2 (b)" % (__version__, HERE, HERE, shown)
    )


def test_ranks_with_other_addresses_are_named_as_a_cause(members: list[Membership]) -> None:
    other = dataclasses.replace(members[2], token="1" * 32)
    results = meet([members[0], members[1], other], 2.0)
    assert "rank 2 (127.0.0.1). 1 connections to %s were not of this run" % members[0].addresses[0] in results[0]
    assert results[1] == results[0]
    assert results[2].startswith("Rank 0 at %s has ended before all ranks had started" % members[0].addresses[0])


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"0" * 32 + b"00000001null\n"])
def test_strangers_keep_nobody_out(members: list[Membership], content: bytes) -> None:
    with saying(content) as say:
        assert meet(members, LONG, say) == [[HERE] * 3] * 3
