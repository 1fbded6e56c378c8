"""What a search outside must know of the choices of a loop, for the file beside the graph."""

from __future__ import annotations

from typing import Any

from returnn_tf.export.steps.graph import StepGraph
from returnn_tf.export.steps.loops import StepLoop
from returnn_tf.graph.node import Node

#: Options of a choice that change what is searched for, which a search outside would have to do on its own.
_NOT_IN_STEPS = ("recombine", "custom_score_combine", "cheating", "keep_beams", "random_sample_scale")
_OPTIONS = (
    "beam_size",
    "prob_scale",
    "base_beam_score_scale",
    "length_normalization",
    "length_normalization_exponent",
    "independent_of_batch",
)


def step_facts(step: StepLoop, graph: StepGraph) -> dict[str, Any]:
    """Return the facts, which can be written as JSON.

    "choices" has for each choice, in the order of the graph, its name, the number of its labels, the target that they
    belong to, the label before the first step if that is a constant, and the options of the search in the config.
    "not_in_steps" names those that a search by steps alone can't follow. "lengths" is the variable with the numbers of
    steps, where these are known before the search, and "max_steps" their number if it is always the same.
    """
    by_name = {step.name_of(node): node for node in step.choices}
    choices = [_of_choice(step, by_name[name], name) for name in graph.choices]
    used = [name for name in _NOT_IN_STEPS if any(getattr(node.layer, name) for node in step.choices)]
    return {
        "layer": step.path,
        "counter": graph.counter,
        "include_eos": bool(step.loop.ending.include_eos),
        "lengths": graph.lengths,
        "max_steps": graph.fixed_steps,
        "choices": choices,
        "not_in_steps": used,
    }


def _of_choice(step: StepLoop, node: Node, name: str) -> dict[str, Any]:
    layer: Any = node.layer
    initial = [prev.initial for prev in step.loop.prevs if prev.of is node]
    starts = [each.constant for each in initial if each.node is None and each.param is None]
    return {
        "name": name,
        "labels": node.sources[0].output.dim,
        "target": layer.target,
        "start_label": int(starts[0]) if starts else None,
        "gives_scores": layer.score_dependent,
        **{option: getattr(layer, option) for option in _OPTIONS},
    }
