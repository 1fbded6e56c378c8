"""Build the site and check it: ``python -m tools.docs.build`` in a checkout, or ``make docs``."""

from __future__ import annotations

import os
import subprocess
import sys

from tools.docs.repository import ROOT
from tools.docs.site_check import mistakes_of

SITE = ROOT / "site"


def main() -> int:
    """Build into site/; return the exit code."""
    # no note of Material's on a release that it does not support; help texts of a fixed width
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "110"}
    # --quiet would hide the warnings, and with them what --strict looks for
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(SITE)]
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout)
        return done.returncode
    mistakes = mistakes_of(SITE)
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    if mistakes:
        return 1
    print("%d pages, all links lead somewhere: %s" % (len(list(SITE.rglob("*.html"))), SITE / "index.html"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
