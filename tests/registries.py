"""What a test registers, which is for the whole process, as by a config."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from returnn_tf.config.registry import Registry

_TABLES = ("_entries", "_spelled", "_places")


@contextlib.contextmanager
def registered_here(*registries: Registry[Any]) -> Iterator[None]:
    """Remove at the end of the context what was registered within it: other tests see only ours."""
    for registry in registries:
        registry.load()
    saved = [(registry, name, dict(vars(registry)[name])) for registry in registries for name in _TABLES]
    try:
        yield
    finally:
        for registry, name, table in saved:
            setattr(registry, name, table)
