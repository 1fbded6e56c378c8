"""The text on what differs between ranks and must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_SHOWN = 5
ABSENT = "absent"


def difference(about: str, by_rank: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> str:
    """Return e.g. "The ranks differ in their settings: batch_size: 5 on rank 0 (a), 6 on rank 1 (b)."; "" if all agree.

    :param about: what the names are: settings
    :param by_rank: name -> value
    :param hosts: by rank
    """
    lines = []
    for name in sorted(set().union(*by_rank)):
        values: dict[str, list[int]] = {}
        for rank, facts in enumerate(by_rank):
            values.setdefault(facts.get(name, ABSENT), []).append(rank)
        if len(values) > 1:
            lines.append("%s: %s" % (name, "; ".join(_who(hosts, *item) for item in values.items())))
    if not lines:
        return ""
    more = len(lines) - MAX_SHOWN
    return "The ranks differ in their %s, but must train the same. %s%s" % (
        about,
        ". ".join(lines[:MAX_SHOWN]),
        " and %d more" % more if more > 0 else "",
    )


def _who(hosts: Sequence[str], value: str, ranks: list[int]) -> str:
    shown = ", ".join("%d (%s)" % (rank, hosts[rank]) for rank in ranks[:MAX_SHOWN])
    more = ", ..." if len(ranks) > MAX_SHOWN else ""
    return "%s on rank%s %s%s" % (value, "" if len(ranks) == 1 else "s", shown, more)
