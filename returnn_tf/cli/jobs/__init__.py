"""Jobs for clusters: one description of what a training needs, written as a job script for Slurm or SGE."""
