"""Which process of a training this one is, and where the others are: read from the variables of what started it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from returnn_tf.config.errors import ClusterError

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
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    addresses: tuple[str, ...]


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
    addresses = tuple(environ[ADDRESSES].split(","))
    rank, local_rank, local_size = (_number(environ, name) for name in (RANK, LOCAL_RANK, LOCAL_SIZE))
    return _checked(
        Membership(rank, len(addresses), local_rank, local_size, addresses), ADDRESSES, "%s=%d" % (RANK, rank)
    )


def _checked(found: Membership, source: str, place: str) -> Membership:
    """Return the membership if it is consistent.

    :param source: what names the addresses, for messages
    :param place: what states the rank
    """
    for address in found.addresses:
        if not _is_address(address):
            raise ClusterError("%s: %r is not host:port, with a port from 1 to 65535" % (source, address))
    twice = sorted({address for address in found.addresses if found.addresses.count(address) > 1})
    if twice:
        raise ClusterError("%s names %s for several ranks; each needs a port of its own" % (source, ", ".join(twice)))
    if found.rank >= found.size:
        raise ClusterError(
            "%s is not a rank of %d processes, whose addresses are those of %s" % (place, found.size, source)
        )
    own = host_of(found.addresses[found.rank])
    here = [rank for rank, address in enumerate(found.addresses) if host_of(address) == own]
    if len(here) != found.local_size or here.index(found.rank) != found.local_rank:
        raise ClusterError(
            "%s has local rank %d of %d, but by %s it has local rank %d of %d on %s"
            % (place, found.local_rank, found.local_size, source, here.index(found.rank), len(here), own)
        )
    return found


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal()):
        raise ClusterError("%s must be a number from 0, not %r" % (name, text))
    return int(text)
