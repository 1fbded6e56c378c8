"""Mutated whole configs are right, or refused by a clear error."""

from __future__ import annotations

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.datasets import Dataset
from tests import processes
from tests.cli import config_mutations, fuzz

COUNT = 250
STATIC = {"class": "StaticDataset", "data": [{"data": [[0.0] * 9], "classes": [1]}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "start, count", [(0, COUNT), pytest.param(COUNT, 20_000, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_mutated_configs(start: int, count: int) -> None:
    """In a process of its own, because of the limits of memory and time."""
    arguments = ["-m", "tests.cli.fuzz", "--start", str(start), "--count", str(count)]
    done = processes.run(arguments, cwd=processes.ROOT, timeout=7200)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", sorted(config_mutations.corpus()))
def test_the_configs_are_right(name: str) -> None:
    """What the mutations begin with has no mistake; otherwise a mutation would not show."""
    fuzz.check_whole(config_mutations.corpus()[name], 0)


@pytest.mark.slow
def test_mistakes_are_found() -> None:
    """At least a third of the mutated configs is refused."""
    configs = config_mutations.corpus()
    refused = 0
    for number in range(60):
        try:
            fuzz.check_whole(config_mutations.mutated(configs, number)[1], number)
        except ConfigError:
            refused += 1
    assert 20 <= refused < 60


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"train": Dataset}, "the class Dataset has no num_seqs"),
        ({"train": {**STATIC, "target_list": [["classes"]]}}, "option 'target_list' must be"),
        ({"train": len}, "a dataset: <built-in function len> can't be called with no arguments"),
        ({"get_network": len}, "config key 'get_network': <built-in function len> can't be called with epoch"),
        ({"get_network": object}, "config key 'get_network': <class 'object'> can't be called with epoch"),
        ({"num_epochs": 2**40}, "config key 'num_epochs' must be from 0 to 100000"),
        ({"train": {"class": "StaticDataset", "data": [{"data": [[1], [1, 2]]}]}}, "data key 'data' is no array"),
    ],
)
def test_found_by_the_fuzz(settings: dict[str, object], message: str) -> None:
    """What it found has an error now."""
    config = Config({**config_mutations.corpus()["training"], **settings})
    check = fuzz.ConfigCheck(config)
    check.run()
    with pytest.raises(ConfigError, match=".*") as caught:
        check.raise_faults()
    assert message in str(caught.value)
