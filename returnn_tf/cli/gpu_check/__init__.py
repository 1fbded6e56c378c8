"""``returnn-tf doctor --gpu``: whether the GPU of this machine computes what the CPU computes, and how fast.

The parts run in child processes, so that one that crashes or hangs is one row of the report.
"""

from __future__ import annotations

from returnn_tf.cli.gpu_check.check import run_check

__all__ = ["run_check"]
