"""The ranks meet at the leader before TensorFlow's servers start, which would wait for each other without a word.

Each rank tells the leader its host, its process and its versions, and what keeps it from starting. The leader waits
until all have come, and answers all of them alike: the hosts, or the error with which all end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf._version import __version__
from returnn_tf.config.errors import ClusterDataError
from returnn_tf.engine.distributed.differences import difference
from returnn_tf.engine.distributed.handshake import Door, greet, listen
from returnn_tf.engine.distributed.membership import PORT, Membership, host_of, port_of
from returnn_tf.util.lazy_tf import tf

_HERE = "127.0.0.1"
_PAUSE = 0.2  # seconds between attempts to reach the leader, and between looks at those that have come
_GRACE = 5.0  # seconds for which a rank that can't start tries to tell the leader, and the leader waits for others then
_ANSWER = 20.0  # seconds for a message of a rank
_MOST_BYTES = 1 << 20  # of a message
_MOST_SHOWN = 8  # missing ranks in a message


@dataclass(frozen=True)
class Arrival:
    """What a rank tells the leader.

    :param host: its name for itself
    :param pid: of its process
    :param versions: program -> version
    :param fault: why it can't start; "" if it can
    """

    host: str
    pid: int
    versions: dict[str, str]
    fault: str = ""


def meet(member: Membership, timeout: float) -> list[str]:
    """Wait for all ranks, and compare their versions; the own port is free then.

    :param timeout: seconds in which all must have started
    :return: the name of the host of each rank, as it calls itself
    :raises DataError: a port is in use, a host is unknown, a rank is missing or was started twice, or versions differ
    """
    own = Arrival(socket.gethostname(), os.getpid(), versions())
    if member.size == 1:
        return [own.host]
    with _held(member) as in_use:
        own = dataclasses.replace(own, fault=in_use or _unknown_hosts(member))
        if member.rank:
            verdict = _ask(member, own, timeout)
        elif in_use:
            raise ClusterDataError(in_use)
        else:
            with listen(_HERE if _together(member) else "", _own_port(member), member.size) as server:
                verdict = _Leader(member, server).wait(own, timeout)
    if verdict.error:
        raise ClusterDataError(verdict.error)
    return verdict.hosts


def versions() -> dict[str, str]:
    """Return the versions that must be the same on all ranks."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "TensorFlow": str(tf.__version__), "returnn_tf": __version__}


def _arrival(message: dict[str, Any]) -> Arrival:
    """Return what a rank says, which may be of a version of this package that says something else.

    Its version differs then, even by another state of the same number. What it does not tell is taken to be as here, so
    that the error is about what is known.
    """
    try:
        return Arrival(**message)
    except TypeError:
        told = message.get("versions")
        texts = {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}
        own = texts.get("returnn_tf", __version__)
        texts["returnn_tf"] = "another version" if own == __version__ else own
        return Arrival(str(message.get("host")), 0, {**versions(), **texts})


@dataclass(frozen=True)
class _Verdict:
    """The answer of the leader: the hosts by rank, or an error."""

    hosts: list[str]
    error: str = ""


class _Leader:
    """Collects the arrivals.

    :param server: at its address
    """

    def __init__(self, member: Membership, server: socket.socket) -> None:
        self._member = member
        self._server = server
        self._arrived: dict[int, Arrival] = {}
        self._links: list[tuple[int, socket.socket]] = []  # several of one rank, if it was started twice
        self._error = ""

    def wait(self, own: Arrival, timeout: float) -> _Verdict:
        """Return the answer after sending it to all that have come."""
        self._arrived[0] = own
        self._error = own.fault and self._failed(0)
        end = time.monotonic() + timeout
        with Door(self._server, self._member.token, self._member.size) as door:
            while len(self._arrived) < self._member.size and time.monotonic() < end:
                found = door.next(_PAUSE)
                if found is not None:
                    self._welcome(*found)
                self._look_for_lost()
                if self._error:
                    end = min(end, time.monotonic() + _GRACE)
            strangers = door.strangers
        if not self._error and len(self._arrived) < self._member.size:
            self._error = self._missing(timeout, strangers)
        hosts = [self._arrived[rank].host if rank in self._arrived else "" for rank in range(self._member.size)]
        if not self._error:
            self._error = difference(
                "versions", [self._arrived[rank].versions for rank in sorted(self._arrived)], hosts
            )
        verdict = _Verdict(hosts, self._error)
        for _, link in self._links:
            with contextlib.suppress(OSError), link:  # else it has ended, and the others will see that
                link.settimeout(_ANSWER)
                _send(link, vars(verdict))
        return verdict

    def _welcome(self, rank: int, link: socket.socket) -> None:
        message = _read(link, _ANSWER)
        if message is None or not 0 < rank < self._member.size:
            link.close()
            return
        link.setblocking(False)
        self._links.append((rank, link))
        arrival = _arrival(message)
        before = self._arrived.setdefault(rank, arrival)
        if before is not arrival:
            self._error = self._error or "Rank %d was started twice: as process %d on %s and as process %d on %s" % (
                rank,
                before.pid,
                before.host,
                arrival.pid,
                arrival.host,
            )
        if arrival.fault:
            self._error = self._error or self._failed(rank)

    def _failed(self, rank: int) -> str:
        return "Rank %d on %s can't start: %s" % (rank, self._arrived[rank].host, self._arrived[rank].fault)

    def _look_for_lost(self) -> None:
        """Notice ranks that have ended: they say nothing more until they are answered."""
        for rank, link in self._links:
            try:
                over = not link.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                over = True
            if over and not self._error:
                self._error = "Rank %d on %s (process %d) has ended before all ranks had started" % (
                    rank,
                    self._arrived[rank].host,
                    self._arrived[rank].pid,
                )

    def _missing(self, timeout: float, strangers: int) -> str:
        addresses = self._member.addresses
        ranks = [rank for rank in range(self._member.size) if rank not in self._arrived]
        names = ["%d (%s)" % (rank, host_of(addresses[rank])) for rank in ranks[:_MOST_SHOWN]]
        text = "%d of %d ranks have not started within %g s: rank%s %s%s" % (
            len(ranks),
            self._member.size,
            timeout,
            "" if len(ranks) == 1 else "s",
            ", ".join(names),
            ", ..." if len(ranks) > _MOST_SHOWN else "",
        )
        if strangers:
            text += (
                ". %d connections to %s were not of this run: are there ranks that were started with other addresses?"
                % (strangers, addresses[0])
            )
        return text


def _ask(member: Membership, own: Arrival, timeout: float) -> _Verdict:
    """Return the answer of the leader."""
    leader = "Rank 0 at %s" % member.addresses[0]
    try:
        link = _reached(member, _GRACE if own.fault else timeout)
    except OSError as exc:
        why = exc.strerror or str(exc)
        return _Verdict([], own.fault or "%s has not been reached within %g s: %s" % (leader, timeout, why))
    with link:
        try:
            greet(link, member.token, member.rank)
            _send(link, vars(own))
            message = _read(link, timeout + _GRACE + _ANSWER)
        except OSError:
            message = None
    if message is None:
        return _Verdict(
            [],
            own.fault
            or "%s has ended before all ranks had started, or it is of another run: see its output, and whether the "
            "ranks were started with the same addresses"
            % leader,
        )
    return _Verdict(message.get("hosts", []), str(message.get("error", "")))


def _reached(member: Membership, seconds: float) -> socket.socket:
    """Return a connection to the leader, which may not have started yet.

    :raises OSError: it is not reached
    """
    place = (_HERE if _together(member) else host_of(member.addresses[0]), port_of(member.addresses[0]))
    end = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(place, timeout=max(1.0, end - time.monotonic()))
        except OSError:
            if time.monotonic() >= end:
                raise
        time.sleep(_PAUSE)


def _unknown_hosts(member: Membership) -> str:
    """Return an error that names the hosts whose addresses are not found here; "" if there is none."""
    unknown = []
    for host in dict.fromkeys(map(host_of, member.addresses)):
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            unknown.append(host)
    if not unknown:
        return ""
    return "it finds no address of %s, which %s names" % (_listed(unknown), member.source)


@contextlib.contextmanager
def _held(member: Membership) -> Iterator[str]:
    """Hold the own port in this context, so that nobody gets it by chance; TensorFlow's server may still take it.

    :return: an error if it is in use, else ""
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", _own_port(member)))
        except OSError as exc:
            fault = _in_use(member, exc)
        else:
            fault = ""
        yield fault


def _together(member: Membership) -> bool:
    """Return whether all ranks are on this host: then nobody else needs to reach the leader."""
    return member.local_size == member.size


def _own_port(member: Membership) -> int:
    return port_of(member.addresses[member.rank])


def _in_use(member: Membership, exc: OSError) -> str:
    advice = "See which program has it (ss -ltnp), or take another one: %s=PORT, unless TF_CONFIG names it" % PORT
    return "port %d of %s can't be opened: %s. %s" % (_own_port(member), socket.gethostname(), exc.strerror, advice)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode("ascii") + b"\n")


def _read(link: socket.socket, seconds: Optional[float]) -> Optional[dict[str, Any]]:
    """Return the next message; None if there is none."""
    link.settimeout(seconds)
    try:
        with link.makefile("rb") as file:
            found = json.loads(file.readline(_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
