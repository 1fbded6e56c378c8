"""The table of `returnn-tf check`: each layer with output, parameters and changes of the time axis. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Optional

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.layer_table import HEADER, layer_row, loss_lines, show_axes, totals
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import DimError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.logging.log import log
from returnn_tf.loops.frame import loop_of

_BOLD, _DIM, _YELLOW, _GREEN, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
_LONGEST_CHAIN = 8  # names


def describe_config(config: Config, *, graph: Optional[str] = None, color: bool = False) -> str:
    """Return the table of the network of a config, as its task plans it; optionally draw it too.

    :param graph: file name of an SVG picture to write
    :param color: whether to use terminal colours
    :raises ConfigError: if the network is wrong, or the picture can't be written
    """
    return describe_and_draw(plan_of_task(config), graph=graph, color=color)


def plan_of_task(config: Config) -> Plan:
    """Return the plan of the network of a config for its task: for a search, or with losses.

    :raises ConfigError: if the network is wrong
    """
    task = TaskSettings(config).task
    search = task == "search"
    if task != "train":
        config = without_fine_tuning(config)
    return plan_from_config(config, train=not search, search=search)


def describe_and_draw(plan: Plan, *, graph: Optional[str] = None, color: bool = False) -> str:
    """Return the table of a network; optionally draw it too.

    :param graph: file name of an SVG picture to write
    :param color: whether to use terminal colours
    :raises ConfigError: if the picture can't be written
    """
    text = describe_plan(plan, color=color)
    if graph is not None:
        draw(plan, graph)
        text += "\ngraph written to %s" % graph
    return text


def draw(plan: Plan, graph: str) -> None:
    """Write a drawing of a network.

    :param graph: file name of an SVG picture
    :raises ConfigError: if it can't be written
    """
    if not graph.endswith(".svg"):
        raise DimError("--graph writes SVG: name the file *.svg, not %r." % graph)
    folder = os.path.dirname(os.path.abspath(graph))
    if not os.path.isdir(folder):
        raise DimError("--graph: the folder %s does not exist. Create it first." % folder)
    picture = plan.svg()
    try:
        with open(graph, "w", encoding="utf8") as file:
            file.write(picture)
    except OSError as exc:
        raise DimError("--graph: %r can't be written: %s" % (graph, exc.strerror or exc)) from exc


def log_templates(plan: Plan, config: Config) -> None:
    """Log the dims of the output of each layer, if ``debug_print_layer_output_template`` is set."""
    if NetworkSettings(config).debug_print_layer_output_template:
        for node in plan.visible_nodes():
            log.write(3, "layer %s (%s): %s" % (node.path, node.layer.class_name, node.output))


def describe_plan(plan: Plan, *, color: bool = False) -> str:
    """Return the table, then losses and totals."""
    nodes = plan.visible_nodes()
    rows = [layer_row(node, plan.rounded) for node in nodes]
    with_loss = {loss.owner for loss in plan.losses}
    widths = [max(len(r[i]) for r in [HEADER, *rows]) for i in range(len(HEADER))]
    lines = [_paint(_format(HEADER, widths), _BOLD, color)]
    for node, row in zip(nodes, rows):
        line = _format(row, widths)
        if node.extern_key is not None:
            line = _paint(line, _DIM, color)
        elif row[-1]:
            line = _paint(line, _YELLOW, color)
        elif node in with_loss:
            line = _paint(line, _GREEN, color)
        lines.append(line)
    notes = ["note: %s" % mistake for mistake in plan.mistakes]
    return "\n".join(lines + [""] + _loops(plan) + loss_lines(plan.losses) + _totals(plan) + notes)


def _loops(plan: Plan) -> list[str]:
    """Describe for each loop what is computed before, in and after it, and what keeps layers in it."""
    lines = []
    for node in plan.all_nodes():
        loop = loop_of(node)
        if loop is None:
            continue
        zones = loop.zones
        lines.append("loop %s" % loop.path)
        for zone in dict.fromkeys(zone for zone, _ in zones.values()):
            names = [(name, why) for name, (z, why) in zones.items() if z == zone]
            if any(why for _, why in names):
                lines.append("  %s:" % zone)
                lines += ["    %s: %s" % (name, _shortened(why)) for name, why in names]
            else:
                lines.append("  %s: %s" % (zone, ", ".join(name for name, _ in names)))
    fused = [node for node in plan.all_nodes() if node.layer.fused_cell]
    return lines + ["fused: %s, one call of %s over all steps" % (n.path, n.layer.fused_cell) for n in fused]


def _shortened(chain: str) -> str:
    """Shorten a long chain ``a <- ... <- prev:z <- y <- ... <- a`` to its ends and the names next to each ``prev:``."""
    names = chain.split(" <- ")
    if len(names) <= _LONGEST_CHAIN:
        return chain
    shown = {0, 1, len(names) - 1}
    shown.update(i + d for i, name in enumerate(names) if name.startswith("prev:") for d in (-1, 0, 1))
    parts: list[str] = []
    for i, name in enumerate(names):
        if i in shown:
            parts.append(name)
        elif parts[-1] != "...":
            parts.append("...")
    return " <- ".join(parts)


def _totals(plan: Plan) -> list[str]:
    inputs = ", ".join("%s %s" % (key, show_axes(node.output)) for key, node in plan.extern.items())
    return [totals(plan.visible_nodes(), plan.params, plan.rounded), "data: %s" % (inputs or "none")]


def _format(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(w) if i == 4 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
    return "  ".join(cells).rstrip()


def _paint(line: str, code: str, color: bool) -> str:
    return code + line + _RESET if color else line
