"""Which process of a training this one is, and where the others are: read from the variables of what started it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.errors import ClusterError
from returnn_tf.engine.distributed.handshake import TOKEN_BYTES

#: Set by ``returnn-tf launch``: a secret that its processes share.
SECRET = "RETURNN_TF_SECRET"
#: Set by the user: the first of the ports of a host, where only the hosts are known.
PORT = "RETURNN_TF_PORT"
#: Variables that ``returnn-tf launch`` sets for each of its processes.
RANK, LOCAL_RANK, LOCAL_SIZE, ADDRESSES = _OWN = (
    "RETURNN_TF_RANK",
    "RETURNN_TF_LOCAL_RANK",
    "RETURNN_TF_LOCAL_SIZE",
    "RETURNN_TF_ADDRESSES",
)


@dataclass(frozen=True)
class Membership:
    """The place of this process among those that train together.

    :param rank: of this process, from 0
    :param size: number of processes
    :param local_rank: of this process among those on its host
    :param local_size: number of processes on its host
    :param addresses: ``host:port`` by rank, that of the leader first
    :param source: what names the addresses, for messages
    :param token: of the run: who doesn't know it is no rank
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    addresses: tuple[str, ...]
    source: str
    token: str


def find(environ: Mapping[str, str]) -> Optional[Membership]:
    """Return the membership that the variables state; None if none of them is there.

    :raises ConfigError: some are missing, or they contradict each other
    """
    if any(name in environ for name in _OWN):
        return _of_launcher(environ)
    return None


def host_of(address: str) -> str:
    """Return the host of ``host:port``; of an address of IPv6, ``[::1]:80``, without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """Return the port of ``host:port``."""
    return int(address.rpartition(":")[2])


def _of_launcher(environ: Mapping[str, str]) -> Membership:
    missing = [name for name in _OWN if name not in environ]
    if missing:
        given = [name for name in _OWN if name in environ]
        raise ClusterError(
            "%s is set, but not %s. returnn-tf launch sets all of them: start the processes with it, or unset those "
            "that are left over" % (" and ".join(given), " and ".join(missing))
        )
    addresses = environ[ADDRESSES].split(",")
    rank, local_rank, local_size = (_number(environ, name) for name in (RANK, LOCAL_RANK, LOCAL_SIZE))
    _check(rank, local_rank, local_size, addresses, ADDRESSES, "%s=%d" % (RANK, rank))
    token = _token(environ.get(SECRET, ""), addresses)
    return Membership(rank, len(addresses), local_rank, local_size, tuple(addresses), ADDRESSES, token)


def _check(rank: int, local_rank: int, local_size: int, addresses: Sequence[str], source: str, place: str) -> None:
    """Check that what is known of a process is consistent.

    :param source: what names the addresses, for messages
    :param place: what states the rank
    """
    for address in addresses:
        if not _is_address(address):
            raise ClusterError("%s: %r is not host:port, with a port from 1 to 65535" % (source, address))
    twice = sorted({address for address in addresses if addresses.count(address) > 1})
    if twice:
        raise ClusterError("%s names %s for several ranks; each needs a port of its own" % (source, ", ".join(twice)))
    if rank >= len(addresses):
        raise ClusterError(
            "%s is not a rank of %d processes, whose addresses are those of %s" % (place, len(addresses), source)
        )
    own = host_of(addresses[rank])
    here = [rank for rank, address in enumerate(addresses) if host_of(address) == own]
    if len(here) != local_size or here.index(rank) != local_rank:
        raise ClusterError(
            "%s has local rank %d of %d, but by %s it has local rank %d of %d on %s"
            % (place, local_rank, local_size, source, here.index(rank), len(here), own)
        )


def _token(run: str, addresses: Sequence[str]) -> str:
    """Return what all ranks of a run know, and others don't by mistake."""
    return hashlib.sha256("\n".join([run, *addresses]).encode("utf8")).hexdigest()[: 2 * TOKEN_BYTES]


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal()):
        raise ClusterError("%s must be a number from 0, not %r" % (name, text))
    return int(text)
