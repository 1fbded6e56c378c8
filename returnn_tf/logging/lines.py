"""The lines of the log about steps, passes and epochs. Programs parse them: do not change them lightly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

from returnn_tf.logging.text import hms

Number = Union[int, float]


def phase_text(kind: str, epoch: int, dataset: Optional[str] = None, pretrain: bool = False) -> str:
    """Return the start of a line: ``train epoch 3``, ``pretrain epoch 3``, ``'dev' eval epoch 3``.

    :param kind: train, eval, search, forward or analyze
    :param dataset: its name; not for training
    """
    words = [repr(dataset)] if dataset else []
    return " ".join(words + [("pre" if pretrain else "") + kind, "epoch", str(epoch)])


def step_line(
    phase: str,
    step: int,
    values: Mapping[str, Any],
    *,
    seconds_per_step: float,
    elapsed: float,
    complete: Optional[float] = None,
) -> str:
    """Return the line of one step (level 5).

    :param phase: see `phase_text`
    :param step: from 0
    :param values: cost:<layer>, error:<layer>, loss, max_size:<key>, num_seqs, mem_usage:<device>, ...
    :param seconds_per_step: of this step
    :param elapsed: seconds since the pass began
    :param complete: fraction of the pass that is done, 0 - 1, if known
    """
    fields = [phase, "step %d" % step]
    fields += ["%s %s" % (name, _value_text(value)) for name, value in sorted(values.items())]
    fields += ["%.3f sec/step" % seconds_per_step, "elapsed %s" % hms(elapsed)]
    if complete:
        fields.append("exp. remaining %s" % hms(elapsed / complete - elapsed))
    if complete is not None:
        fields.append("complete %.2f%%" % (100 * complete))
    return ", ".join(fields)


def _value_text(value: Any) -> str:
    if isinstance(value, float) or hasattr(value, "dtype"):
        return "%.6g" % float(value)
    return str(value)


def progress_line(
    phase: str, steps: int, elapsed: float, *, complete: Optional[float] = None, loss: Optional[float] = None
) -> str:
    """Return the line that reports the progress of a pass at intervals (level 3).

    ``train epoch 3, 120 steps, loss 1.234, elapsed 0:01:00, exp. remaining 0:03:10, complete 24.0%``

    :param steps: done so far
    :param complete: fraction of the pass that is done, 0 - 1, if known
    :param loss: of the last step
    """
    fields = [phase, "%d steps" % steps]
    if loss is not None:
        fields.append("loss %.4g" % loss)
    fields.append("elapsed %s" % hms(elapsed))
    if complete:
        fields.append("exp. remaining %s" % hms(elapsed / complete - elapsed))
        fields.append("complete %.1f%%" % (100 * complete))
    return ", ".join(fields)


def pass_line(phase: str, steps: int, elapsed: float, compute_seconds: float) -> str:
    """Return the line at the end of a pass over a dataset (level 3).

    ``train epoch 1, finished after 2941 steps, 0:28:58 elapsed (99.3% computing time)``
    """
    share = 100 * compute_seconds / elapsed if elapsed > 0 else 0.0
    return "%s, finished after %d steps, %s elapsed (%.1f%% computing time)" % (phase, steps, hms(elapsed), share)


def time_shares_line(phase: str, elapsed: float, compute_seconds: float, wait_seconds: float) -> str:
    """Return the time shares: ``train epoch 1, time: 99.3% compute, 0.4% waiting for data, 0.3% rest``."""
    whole = elapsed if elapsed > 0 else 1.0
    rest = max(0.0, elapsed - compute_seconds - wait_seconds)
    compute, wait, other = (100 * part / whole for part in (compute_seconds, wait_seconds, rest))
    return "%s, time: %.1f%% compute, %.1f%% waiting for data, %.1f%% rest" % (phase, compute, wait, other)


def score_text(scores: Union[None, Number, Mapping[str, Number]]) -> str:
    """Format losses: one as the bare number, several as sorted names and numbers, None as ``None``."""
    if isinstance(scores, Mapping):
        if len(scores) > 1:
            return " ".join("%s %s" % (name, score_text(value)) for name, value in sorted(scores.items()))
        scores = next(iter(scores.values()), None)
    return "None" if scores is None else str(float(scores))


def epoch_line(epoch: int, score: Any, error: Any, elapsed: float) -> str:
    """Return the line of a training epoch (level 1): ``epoch 1 score: 0.45 error: 0.21 elapsed: 0:00:07``."""
    return "epoch %d score: %s error: %s elapsed: %s" % (epoch, score_text(score), score_text(error), hms(elapsed))


def eval_line(results: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the line of all evaluations (level 1): ``dev: score 0.26 error 0.12 eval: score 0.30 error 0.16``.

    A search may have errors only.

    :param results: dataset -> (score, error), as for `score_text`
    """
    texts = []
    for name, (score, error) in results.items():
        parts = ["score %s" % score_text(score)] * _is_there(score)
        parts += ["error %s" % score_text(error)] * (bool(parts) or _is_there(error))
        texts.append("%s: %s" % (name, " ".join(parts) or "no loss"))
    return " ".join(texts)


def _is_there(scores: Any) -> bool:
    return scores is not None and scores != {}


def start_line(phase: str, learning_rate: Optional[float] = None) -> str:
    """Return the line at the start of an epoch (level 4 and below): ``start train epoch 1, learning rate 0.001``."""
    rate = "" if learning_rate is None else ", learning rate %s" % learning_rate
    return "start %s%s" % (phase, rate)
