"""Recurrent cells as pure functions: parameters, input projection, one step, and the run over whole sequences."""

from returnn_tf.ops.cells.base import Cell
from returnn_tf.ops.cells.params import CellParam
from returnn_tf.ops.cells.registry import UNITS, register_cell, unit_class, unit_names
from returnn_tf.ops.cells.run import run_cell

__all__ = ["UNITS", "Cell", "CellParam", "register_cell", "run_cell", "unit_class", "unit_names"]
