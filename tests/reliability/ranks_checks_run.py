"""Does the checks of several processes. Started by a launcher with a folder as argument, and names of checks.

What a check returns or raises goes, by name, into ``rank<n>.json`` in the folder.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from typing import Any

import returnn_tf
from returnn_tf.engine.distributed import world as worlds
from returnn_tf.util.lazy_tf import freeze_after_import
from tests.loading import fork_loading
from tests.processes import collect_seldom, keep_one_stack, optimize_graphs
from tests.reliability import ranks_checks_ends  # noqa: F401  adds its checks
from tests.reliability.ranks_checks import CHECKS, FOLDER


def main() -> None:
    """Run all checks, or those named on the command line."""
    fork_loading()
    freeze_after_import()
    collect_seldom()
    world = worlds.start(returnn_tf.Config({"use_horovod": True, "device": "cpu", "horovod_timeout": 60.0}))
    keep_one_stack()
    optimize_graphs(False)  # most checks trace a network and run few steps
    results: dict[str, Any] = {}
    folder = FOLDER.resolve()
    names = sys.argv[2:] or list(CHECKS)
    for name in names:
        try:
            results[name] = {"result": CHECKS[name](world)}
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        failed = [rank for rank, bad in enumerate(world.gather("error" in results[name])) if bad]
        if failed and "error" not in results[name]:
            results[name] = {"error": "failed on rank %s" % failed}
        (folder / ("rank%d.json" % world.rank)).write_text(json.dumps(results))
    world.leave()


if __name__ == "__main__":
    main()
    atexit._run_exitfuncs()  # Horovod leaves MPI, without which mpirun fails
    sys.stdout.flush()
    os._exit(0)  # Python's own end takes a second of computing with TensorFlow
