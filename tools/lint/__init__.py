"""Rules on the code of the package that no linter knows: ``python -m tools.lint`` in a checkout, or ``make lint``."""
