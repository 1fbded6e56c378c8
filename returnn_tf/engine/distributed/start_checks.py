"""Checks that all ranks are about to train the same: settings, network, data, and starting point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import DistributedError
from returnn_tf.config.settings import all_settings
from returnn_tf.engine.distributed.differences import ABSENT, MAX_SHOWN, difference
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.fingerprint import as_text

#: With ``"data": "random_seed_offset"`` ranks may also differ in what each of them reads.
OWN_DATA_KEYS = frozenset(["train"])

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
            raise DistributedError(difference(about, world.gather(dict(facts[about])), world.hosts()))


def different_names(world: World, facts: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ from other ranks, at most a few; exchanges hashes first."""
    if len(set(world.gather(digest(facts)))) == 1:
        return []
    by_rank = world.gather(dict(facts))
    names = sorted(set().union(*by_rank))
    return [name for name in names if len({facts.get(name, ABSENT) for facts in by_rank}) > 1][:MAX_SHOWN]


def network_facts(net: Network, layers: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters, losses and layers of a network as texts.

    :param layers: its dict; if a function made it, it may differ between ranks
    """
    facts = {name: "%s %s" % (spec.dtype, list(spec.shape)) for name, spec in net.plan.params.items()}
    facts.update({"loss %s" % node.name: "scale %s" % node.scale for node in net.plan.losses})
    for name, options in layers.items():
        facts.update({"layer %s, %s" % (name, key): as_text(value) for key, value in options.items()})
    return facts


def digest(facts: Mapping[str, str]) -> str:
    """Return a hash of facts, which is exchanged first."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf8")).hexdigest()[:32]
