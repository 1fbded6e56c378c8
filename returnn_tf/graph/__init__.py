"""The framework of layers: `Layer`, `Loss`, nodes, the registry, and the contexts for planning and emitting."""
