"""The layer framework: `Layer`, `Loss`, nodes, the registry, and the contexts for planning and emitting."""
