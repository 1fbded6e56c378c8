"""Tests of data that RASR wrote or computes."""
