"""Training with several processes: the world, Horovod, heartbeats, failures of ranks."""
