"""The data of a training run: sources, options, sharding."""
