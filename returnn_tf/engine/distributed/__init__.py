"""Training with several processes: the world, its engines, heartbeats, failures of ranks."""
