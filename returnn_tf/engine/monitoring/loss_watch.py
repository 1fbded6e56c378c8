"""Warns if the training loss is worse than that of a network which has learned nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Optional

from returnn_tf.compiler.network import Network
from returnn_tf.engine.support.scores import COST, batch_means
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.graph.loss import LossNode
from returnn_tf.logging.log import log

_FEWEST = 20  # steps before the first warning
_WINDOW = 100  # steps whose mean is compared
_FIRST_LOOK = 80  # steps; then at twice, four times, ... as many, and at the end of each epoch
_ABOVE_GUESS, _ABOVE_START = 1.25, 2.0  # an adversary, with reversed gradients, may be worse than a guess


class LossWatch:
    """Compares the losses of the last steps with those of the first one, before its update, and with a uniform guess.

    If it is above both, training made the network worse, most likely by a learning rate that is too large; there is one
    warning. A loss whose uniform guess is not known is compared with that of new parameters only, by a larger margin,
    as it may depend on the lengths of sequences.
    """

    def __init__(self) -> None:
        self._net: Optional[Network] = None
        self._warned = False
        self._steps, self._next = 0, _FIRST_LOOK
        self._start: Mapping[str, float] = {}
        self._recent: deque[Mapping[str, float]] = deque(maxlen=_WINDOW)
        self._watched: Mapping[str, LossNode] = {}
        self._uniform: Mapping[str, Optional[float]] = {}
        self._normalized: list[str] = []

    def step(self, net: Network, result: StepResult) -> None:
        """Add a step; after 80, 160, 320, ... steps, check the losses. Another network starts a new watch."""
        if self._warned or not result.finite or not result.own:
            return
        if net is not self._net:
            self._begin(net, new=result.step == 0)
        found = batch_means(result, self._normalized) if self._watched else {}
        means = {name: found[COST + name] for name in self._watched if COST + name in found}
        if not self._steps:
            self._start = means
        self._steps += 1
        self._recent.append(means)
        if self._steps == self._next:
            self._next *= 2
            self.look(result.learning_rate, "after %d steps" % self._steps)

    def look(self, rate: Optional[float], when: str) -> None:
        """Warn if a loss is too high; ``when`` begins the message."""
        if self._warned or self._net is None or self._steps < _FEWEST:
            return
        recent = list(self._recent)[-max(_FEWEST // 2, min(_WINDOW, self._steps // 2)) :]
        for name, node in self._watched.items():
            values = [each[name] for each in recent if name in each]
            text = self._fault(name, node, sum(values) / len(values)) if values else ""
            if text:
                self._warned = True
                log.warn(
                    "%s, the loss %s. Learning makes the network worse: probably learning_rate is too large%s. Try a "
                    "tenth of it, or let returnn-tf run CONFIG --sanity try. More: returnn-tf explain learning-rate"
                    % (when, text, " (it is %g)" % rate if rate is not None else "")
                )
                return

    def _begin(self, net: Network, *, new: bool) -> None:
        self._net = net
        losses = [node for node in net.plan.losses if node.scale > 0 and node.target is not None]
        self._uniform = {node.name: node.loss.uniform_value(node) for node in losses}
        self._watched = {
            node.name: node for node in losses if self._uniform[node.name] or (new and node.loss.has_blank)
        }
        self._normalized = [node.name for node in losses if node.loss.use_normalized_loss]
        self._start = {}
        self._recent.clear()
        self._steps, self._next = 0, _FIRST_LOOK

    def _fault(self, name: str, node: LossNode, value: float) -> str:
        start, guess = self._start.get(name, value), self._uniform[name]
        if guess is None:
            worse = value > _ABOVE_START * max(start, 0.0)
            return "of %r is %.4g, and was %.4g at the start" % (name, value, start) if worse else ""
        if value <= _ABOVE_GUESS * max(start, guess):
            return ""
        text = "of %r is %.4g, more than at the start (%.4g) and than with equal probabilities for all labels (%.4g)"
        return text % (name, value, start, guess)
