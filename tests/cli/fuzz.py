"""Checks mutated configs as ``returnn-tf check --migrate`` does: each is right, or refused by a clear error.

    python -m tests.cli.fuzz [--count 5000] [--start 0]

As `tests.compiler.fuzz`, which does the same for networks alone. About 10 ms for each.
"""

from __future__ import annotations

import sys
from typing import Any

from returnn_tf.cli.check.migration import migration, table
from returnn_tf.cli.check.whole_config import ConfigCheck
from returnn_tf.config import Config, DataError
from tests.cli.config_mutations import corpus, mutated
from tests.compiler import fuzz
from tests.compiler.mutations import Settings, copied


def check_whole(settings: Settings, number: int) -> None:
    """Check all parts of a config, and list what to migrate.

    :raises ConfigError: something is wrong
    """
    check = ConfigCheck(Config(copied(settings)))
    check.run()
    table(migration(check.config))
    try:
        check.raise_faults()
    except DataError as exc:
        raise fuzz.ConfigError(str(exc)) from exc


def main(args: Any = None) -> int:
    """Run the fuzz."""
    return fuzz.main(args, settings=corpus, mutate=mutated, action=check_whole, what="configs", count=5000)


if __name__ == "__main__":
    sys.exit(main())
