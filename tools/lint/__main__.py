"""Check the package by all rules: ``python -m tools.lint``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Callable

from tools.lint import facts, imports
from tools.lint.package import Package

Rule = Callable[[Package], Iterator[str]]
#: The public functions of the modules of rules.
RULES: dict[str, Rule] = {
    name: rule
    for module in (imports, facts)
    for name, rule in vars(module).items()
    if inspect.isfunction(rule) and rule.__module__ == module.__name__ and not name.startswith("_")
}


def main() -> int:
    """Print what breaks a rule, with the rule; return the exit code."""
    package = Package()
    count = 0
    for name, rule in RULES.items():
        for offender in rule(package):
            print("%s (%s: %s)" % (offender, name, (rule.__doc__ or "").partition("\n")[0]))
            count += 1
    print("%d modules, %d rules: %d found" % (len(package.modules), len(RULES), count), file=sys.stderr)
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
