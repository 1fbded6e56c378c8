"""Small parts that the rest of the engine is built from: devices, signals, scores, prefetching, atomic files."""
