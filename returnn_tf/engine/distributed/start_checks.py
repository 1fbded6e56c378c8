"""Checks that all ranks are about to train the same: settings, network, data, and starting point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import HorovodError
from returnn_tf.config.settings import all_settings
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.fingerprint import as_text

#: With ``horovod_dataset_distribution = "random_seed_offset"`` ranks may also differ in what each of them reads.
OWN_DATA_KEYS = frozenset(["train"])
_MAX_SHOWN = 5
_ABSENT = "absent"

Facts = Mapping[str, Mapping[str, str]]  # topic -> name -> value as text


def own_keys() -> frozenset[str]:
    """Return the settings that may differ between ranks."""
    return frozenset(name for name, info in all_settings().items() if info.per_rank)


def check_same(world: World, facts: Facts) -> None:
    """Compare the plans of the ranks. Hashes are exchanged first, and the facts only where they differ.

    :param facts: of this rank; with the same topics on all ranks
    :raises ConfigError: names the differences and the ranks
    """
    for about in sorted(facts):
        by_rank = world.gather(digest(facts[about]))
        if len(set(by_rank)) > 1:
            raise HorovodError(_difference(world, about, world.gather(dict(facts[about]))))


def different_names(world: World, facts: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ from other ranks, at most a few; exchanges hashes first."""
    if len(set(world.gather(digest(facts)))) == 1:
        return []
    by_rank = world.gather(dict(facts))
    names = sorted(set().union(*by_rank))
    return [name for name in names if len({facts.get(name, _ABSENT) for facts in by_rank}) > 1][:_MAX_SHOWN]


def network_facts(net: Network, layers: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters, losses and layers of a network as texts.

    :param layers: its dict; if a function made it, it may differ between ranks
    """
    facts = {name: "%s %s" % (spec.dtype, list(spec.shape)) for name, spec in net.plan.params.items()}
    facts.update({"loss %s" % node.name: "scale %s" % node.scale for node in net.plan.losses})
    facts.update({"layer %s" % name: as_text(options) for name, options in layers.items()})
    return facts


def digest(facts: Mapping[str, str]) -> str:
    """Return a hash of facts, which is exchanged first."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf8")).hexdigest()[:32]


def _difference(world: World, about: str, by_rank: list[dict[str, str]]) -> str:
    """Return e.g. "The ranks differ in their settings: batch_size: 5 on rank 0 (a), 6 on rank 1 (b)."."""
    lines = []
    names = sorted(set().union(*by_rank))
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, facts in enumerate(by_rank):
            values.setdefault(facts.get(name, _ABSENT), []).append(rank)
        if len(values) > 1:
            lines.append("%s: %s" % (name, "; ".join(_who(world, *item) for item in values.items())))
    more = len(lines) - _MAX_SHOWN
    return "The ranks differ in their %s, but must train the same. %s%s" % (
        about,
        ". ".join(lines[:_MAX_SHOWN]),
        " and %d more" % more if more > 0 else "",
    )


def _who(world: World, value: str, ranks: list[int]) -> str:
    hosts = world.hosts()
    shown = ", ".join("%d (%s)" % (rank, hosts[rank]) for rank in ranks[:_MAX_SHOWN])
    more = ", ..." if len(ranks) > _MAX_SHOWN else ""
    return "%s on rank%s %s%s" % (value, "" if len(ranks) == 1 else "s", shown, more)
