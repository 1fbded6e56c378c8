"""Cluster jobs: one description of the resources of a training run, written as a job script for Slurm or SGE."""
