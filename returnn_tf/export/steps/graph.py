"""A graph for single steps of a loop: the ops, variables and collections that decoders know, and their description."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Optional

from returnn_tf.config.errors import ExportError, did_you_mean
from returnn_tf.export.meta.graph_builder import GraphBuilder
from returnn_tf.export.meta.names import STATE_VARS
from returnn_tf.export.steps.emission import GOES_ON, INDEX, StepEmission, label_name, scores_name
from returnn_tf.export.steps.loops import StepLoop
from returnn_tf.export.steps.parts import StepParts
from returnn_tf.export.steps.values import StepVariables
from returnn_tf.graph.layer import Node
from returnn_tf.layers.search.outer_search import choice_of
from returnn_tf.util.lazy_tf import tf

INIT_OP = "rec_step_by_step_init_op"
UPDATE_OP = "rec_step_by_step_update_op"
SCORES_OP = "rec_step_by_step_calc_scores_op"

#: Who counts the steps: the graph, at the end of each; or the decoder, which writes the index before each.
GRAPH, DECODER = "graph", "decoder"
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


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """The ops for single steps.

    :param description: what decoders read as JSON, see `as_json`
    :param counter: who counts the steps, `GRAPH` or `DECODER`
    :param choices: the names of the choices that the decoder decides on, in the order of the collections
    :param lengths: the variable with the number of steps of each sequence, None where the step itself ends the loop
    :param fixed_steps: the number of steps if it is the same for all inputs
    """

    description: dict[str, Any]
    counter: str
    choices: list[str]
    lengths: Optional[str]
    fixed_steps: Optional[int] = None

    def as_json(self) -> str:
        """Return the description as the text of the file that decoders read."""
        return json.dumps(self.description, indent=2, sort_keys=True) + "\n"


def add_steps(builder: GraphBuilder, layer: str, *, counter: Optional[str] = None) -> StepGraph:
    """Add single steps of a loop to a graph: encoder run, scores, states, and their collections.

    The step index ``i`` has to be counted by exactly one side. By default the decoder counts where steps are frames:
    where each takes a frame of a source, or reads ``:i`` and only the number of frames ends the loop. Otherwise the
    graph counts, at the end of each step.

    :param builder: of a plan made by `plan_for_steps`
    :param layer: path of the `rec` layer
    :param counter: `GRAPH` or `DECODER`; None: by the rule above
    :raises ConfigError: a layer can't be computed step by step
    """
    if counter not in (None, GRAPH, DECODER):
        raise ExportError("who counts the steps is %r. %s" % (counter, did_you_mean(str(counter), (GRAPH, DECODER))))
    parts = StepParts(StepLoop(builder.plan, layer))
    if counter is None:
        counter = DECODER if parts.steps_are_frames else GRAPH
    with builder.emitting():
        return _Assembly(builder, parts, counter).run()


class _Assembly:
    """The ops around the emission of a step."""

    def __init__(self, builder: GraphBuilder, parts: StepParts, counter: str) -> None:
        self._builder, self._parts, self._counter = builder, parts, counter
        self._step = parts.step
        variables = builder.variables
        self._io = StepVariables()
        self._emission = StepEmission(parts, variables.params, variables.global_step.read_value(), self._io)

    def run(self) -> StepGraph:
        """Make all ops."""
        emission = self._emission
        lowered = self._builder.lower(emission.needed_outside())
        self._builder.name_outputs(lowered)  # those of the encoder
        outer = lowered.lowering
        if outer.dims.batch_size is None:  # no input is needed for anything but the number of sequences
            outer.dims.batch_size = self._builder.inputs.batch_size
        emission.begin(outer)
        init = self._init()
        update = self._update()
        order = list(self._step.choices)
        if self._step.rec.layer.reverse_stochastic_var_order:  # type: ignore[attr-defined]
            order.reverse()
        decode = self._decode([node for node in order if node in self._parts.scored])
        self._collect(init, update, decode, order)
        choices = [self._step.name_of(node) for node in order]
        description = self._description(init, decode, order)
        return StepGraph(description, self._counter, choices, emission.lengths_name, emission.fixed_steps)

    def _init(self) -> Any:
        """Return the op that runs the encoder and sets all variables."""
        assigned = [self._io.assign(name, value) for name, value in self._io.first.items()]
        return tf.group(*assigned, name=INIT_OP)

    def _update(self) -> Any:
        """Return the op that brings the delayed states up to date; in the first step it does nothing."""
        emission = self._emission
        names: list[str] = []

        def later() -> list[Any]:
            values = emission.emit_later()
            values[GOES_ON] = emission.goes_on(values)
            names[:] = values
            return list(values.values())

        # What is computed decides on what is assigned, so that the other branch is made after this one.
        new = tf.cond(self._io.value(INDEX) > 0, later, lambda: [self._io.value(name) for name in names])
        with tf.control_dependencies(new):
            assigned = [self._io.assign(name, value) for name, value in zip(names, new)]
        return tf.group(*assigned, name=UPDATE_OP)

    def _decode(self, order: list[Node]) -> dict[Node, Any]:
        """Return the op that computes the scores of each of these choices; the last one also makes the next states."""
        with tf.name_scope("rec_step_by_step/"):
            scores, values = self._emission.emit_step()
            if self._counter == GRAPH:
                values[INDEX] = self._io.value(INDEX) + 1
        ops = {}
        for node in order:
            new = {scores_name(self._step.name_of(node)): scores[node], **(values if node is order[-1] else {})}
            with tf.control_dependencies(list(new.values())):
                assigned = [self._io.assign(name, value) for name, value in new.items()]
            ops[node] = tf.group(*assigned, name="%s/%s" % (SCORES_OP, self._step.name_of(node)))
        return ops

    def _collect(self, init: Any, update: Any, decode: dict[Node, Any], order: list[Node]) -> None:
        add, io = self._builder.add_to_collection, self._io
        add("encode_ops", [init])
        add("update_ops", [update])
        add("decode_ops", decode.values())
        add("decoder_input_vars", [io[label_name(self._step.name_of(node))] for node in order])
        add("decoder_output_vars", [io[scores_name(self._step.name_of(node))] for node in decode])
        states = [name for name in io.names if not name.startswith(("base_", "stochastic_")) and name != GOES_ON]
        add(STATE_VARS, [io[name] for name in states if io.has_batch(name)])
        add("global_vars", [io[name] for name in states if not io.has_batch(name)])

    def _description(self, init: Any, decode: dict[Node, Any], order: list[Node]) -> dict[str, Any]:
        choices: dict[str, dict[str, str]] = {}
        for node in order:
            name = self._step.name_of(node)
            entry = {"choice_state_var": label_name(name)}
            if node in decode:
                entry.update(calc_scores_op=decode[node].name, scores_state_var=scores_name(name))
            choices[name] = entry
        return {
            "state_vars": self._io.described(),
            "stochastic_var_order": [self._step.name_of(node) for node in order],
            "stochastic_vars": choices,
            "init_op": init.name,
        }


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
    layer = choice_of(node)
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
