"""The roles of dims."""

from __future__ import annotations

import enum


class DimKind(enum.Enum):
    """The role of a dim."""

    BATCH = "batch"
    SPATIAL = "spatial"
    FEATURE = "feature"
    #: The steps of a loop, for layers of the loop that are computed for all steps at once: names such as "T" or
    #: "spatial" never denote it, so that a layer refers to the same axes inside and outside of the loop.
    LOOP = "loop"
