"""Beam search over a graph for single steps: label by label, with numpy, by the rules of the layer ``choice``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError
from returnn_tf.export.steps.stepper import States, Stepper
from returnn_tf.ops.sequence.hypothesis_scores import (
    OTHERS,
    by_longest,
    combined,
    grown,
    normalized,
    of_ended,
    steps_taken,
)

Array = NDArray[Any]
#: (index of the choice, step) -> (source, label), each int32 [batch, new beam].
Pick = Callable[[int, int], "tuple[Array, Array]"]


@dataclasses.dataclass(frozen=True)
class ChoiceOptions:
    """How a choice ranks hypotheses, see the layer ``choice``."""

    beam_size: int
    prob_scale: float = 1.0
    base_beam_score_scale: float = 1.0
    length_normalization: bool = True
    length_normalization_exponent: float = 1.0
    independent_of_batch: bool = False


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How a search ranks hypotheses, and when it ends.

    :param choices: in the order of the decoder
    :param include_eos: whether the label that ends a sequence is part of it
    :param lengths: variable with the numbers of steps, if these are known before the search
    :param end_label: of the last choice: ends a hypothesis, for a graph without a layer "end" and known lengths
    :param max_steps: limit of the number of steps, besides that of the graph
    """

    choices: Sequence[ChoiceOptions]
    include_eos: bool = False
    lengths: Optional[str] = None
    end_label: Optional[int] = None
    max_steps: Optional[int] = None

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], **changes: Any) -> SearchOptions:
        """Return the options of the config, as ``model.json`` has them.

        :param facts: the entry "steps"
        :param changes: of options of the search or of all its choices
        :raises DataError: the choices use what this search does not know
        """
        if facts["not_in_steps"]:
            raise ExportDataError(
                "StepDecoder does not search with %s, which the choices of the network use."
                % ", ".join(facts["not_in_steps"])
            )
        names = {field.name for field in dataclasses.fields(ChoiceOptions)}
        own = {name: value for name, value in changes.items() if name in names and value is not None}
        rest = {name: value for name, value in changes.items() if name not in names and value is not None}
        choices = [ChoiceOptions(**{**{n: v for n, v in c.items() if n in names}, **own}) for c in facts["choices"]]
        known = {"include_eos": facts["include_eos"], "lengths": facts["lengths"], "max_steps": facts["max_steps"]}
        return cls(choices, **{**known, **rest})


@dataclasses.dataclass(frozen=True)
class StepSearchResult:
    """The hypotheses of a search, best first.

    :param labels: of each choice int32 [batch, beam, steps], 0 after the end
    :param lengths: int32 [batch, beam]
    :param scores: [batch, beam], as the search of the network gives them
    """

    labels: list[Array]
    lengths: Array
    scores: Array


class StepSearch:
    """A search over a graph for single steps.

    :raises DataError: nothing ends it
    """

    def __init__(self, decoder: Stepper, options: SearchOptions) -> None:
        if options.end_label is not None and (options.lengths is not None or decoder.ended() is not None):
            raise ExportDataError("The search needs no end_label: the graph itself ends the hypotheses.")
        limits = (options.lengths, options.end_label, options.max_steps)
        if decoder.ended() is None and all(limit is None for limit in limits):
            raise ExportDataError("Nothing ends the search: the graph has no layer 'end'. Give end_label or max_steps.")
        self._decoder, self._options = decoder, options
        self._last = options.choices[-1]
        self._independent = self._last.independent_of_batch

    def run(
        self,
        states: States,
        seqs: int,
        beam: int = 1,
        pick: Optional[Pick] = None,
        lengths: Optional[Array] = None,
    ) -> StepSearchResult:
        """Search until all hypotheses have ended.

        :param states: before the first step, ``beam`` entries for each sequence
        :param seqs: number of sequences
        :param pick: decides on the labels instead of the scores; the scores of the result are those of its labels
        :param lengths: int32 [batch]: the number of steps, if it is known before but not by the graph
        """
        decoder, choices = self._decoder, self._options.choices
        if pick is None and decoder.scored != decoder.choices:
            raise ExportDataError(
                "The search can't decide on choices without scores: %s."
                % ", ".join(name for name in decoder.choices if name not in decoder.scored)
            )
        scores = np.zeros([seqs, beam], np.float32)
        history = [np.zeros([seqs, beam, 0], np.int32) for _ in choices]
        self._known = self._known_lengths(seqs) if lengths is None else lengths
        step = 0
        while True:
            # before the first step the labels only tell the number of entries
            labels = [h[:, :, -1].reshape(-1) if step else np.zeros(seqs * beam, np.int32) for h in history]
            decoder.begin(labels if len(labels) > 1 else labels[0], states)
            ended, lens = self._ended(history, step)
            if not self._goes_on(ended, step):
                break
            history = [np.pad(h, [(0, 0), (0, 0), (0, 1)]) for h in history]
            for k, choice in enumerate(choices):
                name = decoder.choices[k]
                continued = scores[:, :, None]
                if name in decoder.scored:
                    log_probs = decoder.scores(name).reshape(seqs, beam, -1)
                    continued = self._combined(choice, k, log_probs, scores, ended, history, step)
                if pick is not None:
                    source, label = pick(k, step)
                else:
                    counts = self._counts(ended, lens, step)
                    source, label = best_continuations(_ranks(choice, continued, counts, ended), choice.beam_size)
                places = label[:, :, None] if name in decoder.scored else np.zeros_like(label)[:, :, None]
                scores = np.take_along_axis(_at(continued, source), places, 2)[:, :, 0]
                entries = (source + np.arange(seqs)[:, None] * beam).reshape(-1)
                history = [_at(h, source) for h in history]
                history[k][:, :, -1] = label
                ended, lens = _at(ended, source), None if lens is None else _at(lens, source)
                beam = source.shape[1]
                if k + 1 < len(choices):
                    decoder.reorder(entries)
                    decoder.set_label(name, label.reshape(-1))
                else:
                    states = decoder.select(decoder.states(step + 1), entries)
            step += 1
        return self._result(history, scores, ended, lens, step)

    # --- the end ---

    def _known_lengths(self, seqs: int) -> Optional[Array]:
        if self._options.lengths is None:
            return None
        found = self._decoder.session.read(["IO/%s:0" % self._options.lengths])[0]
        return np.broadcast_to(found, [seqs])

    def _ended(self, history: Sequence[Array], step: int) -> tuple[Array, Optional[Array]]:
        """Return which hypotheses had ended before this step, and their lengths if these are not known before."""
        shape, options = history[-1].shape[:2], self._options
        flags, lens = self._decoder.ended(), self._decoder.lengths()
        if flags is not None and lens is not None:
            return flags.reshape(shape), lens.reshape(shape)
        if self._known is not None:
            last = self._known if options.include_eos or self._independent else self._known + 1
            return np.broadcast_to(step >= last[:, None], shape), None
        if options.end_label is None:
            return np.zeros(shape, bool), None
        found = history[-1] == options.end_label
        first = np.where(found.any(2), found.argmax(2) if step else 0, step)
        return found.any(2), (first + (options.include_eos & found.any(2))).astype(np.int32)

    def _goes_on(self, ended: Array, step: int) -> bool:
        options = self._options
        if options.max_steps is not None and step >= options.max_steps:
            return False
        if options.end_label is not None and ended.all():
            return False
        if self._known is not None and step >= self._known.max(initial=0):
            return False
        return self._decoder.goes_on()

    def _counts(self, ended: Array, lens: Optional[Array], step: int) -> Array:
        """Return the number of steps of each hypothesis before this one."""
        if self._known is not None:
            return np.broadcast_to(np.minimum(step, self._known)[:, None], ended.shape)
        steps = np.full(ended.shape, step)
        return steps if lens is None else steps_taken(np, ended, lens, steps, include_eos=self._options.include_eos)

    def _result(
        self, history: list[Array], scores: Array, ended: Array, lens: Optional[Array], step: int
    ) -> StepSearchResult:
        last, eos = self._last, self._options.include_eos
        lengths = np.full(scores.shape, step, np.int32) if lens is None else lens.astype(np.int32)
        if self._known is not None:
            lengths = np.broadcast_to(np.minimum(self._known, step)[:, None], scores.shape).astype(np.int32)
        if any(choice.length_normalization for choice in self._options.choices):
            if self._independent:
                counts = lengths if self._known is not None else self._counts(ended, lens, step)
                scores = normalized(np, scores, counts.astype(scores.dtype), last.length_normalization_exponent)
            else:
                scores = by_longest(scores, np.float32(lengths.max(initial=0)), include_eos=eos)
        inside = np.arange(lengths.max(initial=0)) < lengths[:, :, None]
        labels = [np.where(inside, h[:, :, : inside.shape[2]], 0) for h in history]
        return StepSearchResult(labels, lengths, scores.astype(np.float32))

    # --- scores ---

    def _combined(
        self,
        choice: ChoiceOptions,
        k: int,
        log_probs: Array,
        base: Array,
        ended: Array,
        history: list[Array],
        step: int,
    ) -> Array:
        """Return the scores of all continuations, [batch, beam, labels]."""
        before = np.zeros_like(ended, np.int32)
        if self._independent and step:
            before = history[k][:, :, -2]
        labels = np.arange(log_probs.shape[2])
        log_probs = of_ended(np, log_probs, ended, labels, before[:, :, None], np.float32(OTHERS))
        if choice.length_normalization and k == 0 and not self._independent:
            base = grown(np, base, ended, np.float32(step), choice.length_normalization_exponent).astype(np.float32)
        scales = {"prob_scale": choice.prob_scale, "base_scale": choice.base_beam_score_scale}
        scaled: Array = combined(log_probs, base[:, :, None], **scales)
        return scaled.astype(np.float32)


def _ranks(choice: ChoiceOptions, scores: Array, counts: Array, ended: Array) -> Array:
    """Return the values that continuations are ranked by."""
    if not (choice.independent_of_batch and choice.length_normalization):
        return scores
    steps = (counts + ~ended)[:, :, None].astype(scores.dtype)
    ranks: Array = normalized(np, scores, steps, choice.length_normalization_exponent)
    return ranks


def best_continuations(ranks: Array, count: int) -> tuple[Array, Array]:
    """Return source and label of the best continuations, best first; ties go to the lower index.

    There are fewer than ``count`` if there are not as many continuations.
    """
    seqs, _, labels = ranks.shape
    keys = -ranks.reshape(seqs, -1)
    count = min(count, keys.shape[1])
    limits = np.partition(keys, count - 1, axis=1)[:, count - 1]
    order = np.stack([_first_of(row, limit, count) for row, limit in zip(keys, limits)])
    return (order // labels).astype(np.int32), (order % labels).astype(np.int32)


def _first_of(keys: Array, limit: Any, count: int) -> Array:
    """Return the places of the ``count`` lowest keys, in their order; ties go to the lower place, NaN comes last.

    :param limit: the highest of these keys: only those that do not exceed it are sorted
    """
    places = np.flatnonzero(~(keys > limit))
    found: Array = places[np.argsort(keys[places], kind="stable")[:count]]
    return found


def _at(values: Array, index: Array) -> Array:
    """Return the entries of the second axis, [batch, new beam, ...].

    :param index: [batch, new beam]
    """
    found: Array = values[np.arange(values.shape[0])[:, None], index]
    return found
