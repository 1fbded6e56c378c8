"""Building blocks of the engine: devices, signals, scores, prefetching, atomic files."""
