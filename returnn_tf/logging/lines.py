"""The lines of the log about steps, passes and epochs. Programs parse them: do not change them lightly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from returnn_tf.logging.text import hms

Number = Union[int, float]
_KINDS = ("cost:", "error:")  # prefixes of names of losses in the lines of steps only


class Setup(NamedTuple):
    """The steps of a pass in which a graph was traced and compiled, which do not count for the speed.

    :param complete: fraction of the pass that was done in them
    """

    seconds: float = 0.0
    complete: float = 0.0
    frames: int = 0


NO_SETUP = Setup()


def time_left(elapsed: float, complete: Optional[float], setup: Setup) -> Optional[float]:
    """Return the seconds that a pass will still take; None if that is not known yet.

    :param elapsed: seconds since it began
    :param complete: fraction of it that is done, 0 - 1, if known
    """
    if not complete or complete <= setup.complete:
        return None
    return (elapsed - setup.seconds) / (complete - setup.complete) * (1 - complete)


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
    setup: Setup = NO_SETUP,
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
    left = time_left(elapsed, complete, setup)
    if left is not None:
        fields.append("exp. remaining %s" % hms(left))
    if complete is not None:
        fields.append("complete %.2f%%" % (100 * complete))
    return ", ".join(fields)


def _value_text(value: Any) -> str:
    if isinstance(value, float) or hasattr(value, "dtype"):
        return "%.6g" % float(value)
    return str(value)


def progress_line(
    phase: str,
    steps: int,
    elapsed: float,
    *,
    complete: Optional[float] = None,
    scores: Optional[Mapping[str, Number]] = None,
    setup: Setup = NO_SETUP,
) -> str:
    """Return the line that reports the progress of a pass at intervals (level 3).

    ``train epoch 3, 120 steps, score 1.234, elapsed 0:01:00, exp. remaining 0:03:10, complete 24.0%``

    :param steps: done so far
    :param complete: fraction of the pass that is done, 0 - 1, if known
    :param scores: of the last step by loss, per label or frame
    """
    fields = [phase, _steps(steps)]
    if scores:
        fields.append("score %s" % score_text(scores, digits=4))
    fields.append("elapsed %s" % hms(elapsed))
    left = time_left(elapsed, complete, setup)
    if left is not None:
        fields.append("exp. remaining %s" % hms(left))
    if complete:
        fields.append("complete %.1f%%" % (100 * complete))
    return ", ".join(fields)


def pass_line(phase: str, steps: int, elapsed: float, compute_seconds: float) -> str:
    """Return the line at the end of a pass over a dataset (level 3).

    ``train epoch 1, finished after 2941 steps, 0:28:58 elapsed (99.3% computing time)``
    """
    share = _share(compute_seconds, elapsed)
    # "steps" also of one: scripts of job managers look for this line
    return "%s, finished after %d steps, %s elapsed (%s computing time)" % (phase, steps, hms(elapsed), share)


def speed_line(
    phase: str,
    elapsed: float,
    wait_seconds: float,
    setup_seconds: float,
    frames_per_second: Optional[float],
    facts: Sequence[str],
) -> str:
    """Return the line on idle time and speed: ``train epoch 1, 0.4% waiting for data, 12000 frames/s``.

    :param wait_seconds: between steps, for data
    :param setup_seconds: within steps in which a graph was made and compiled; no part of the computing time
    :param frames_per_second: None if there were no other steps
    :param facts: further texts
    """
    fields = [phase, "%s waiting for data" % _share(wait_seconds, elapsed)]
    fields += ["%s compiling" % _share(setup_seconds, elapsed)] * (setup_seconds > 0)
    fields += [] if frames_per_second is None else ["%.0f frames/s" % frames_per_second]
    return ", ".join([*fields, *facts])


def _share(seconds: float, elapsed: float) -> str:
    return "%.1f%%" % (100 * seconds / elapsed if elapsed > 0 else 0.0)


def _steps(count: int) -> str:
    return "%d step%s" % (count, "s" * (count != 1))


def score_text(scores: Union[None, Number, Mapping[str, Number]], digits: int = 6) -> str:
    """Format losses: one as the bare number, several as sorted names and numbers, None as ``None``.

    :param scores: names may begin with ``cost:`` or ``error:``, which is left out
    :param digits: all are in the learning-rate file
    """
    if isinstance(scores, Mapping):
        if len(scores) > 1:
            return " ".join(
                "%s %s" % (_loss_name(name), score_text(value, digits)) for name, value in sorted(scores.items())
            )
        scores = next(iter(scores.values()), None)
    if scores is None:
        return "None"
    text = "%.*g" % (digits, float(scores))
    return text + ".0" if text.lstrip("-").isdigit() else text


def _loss_name(name: str) -> str:
    return next((name[len(kind) :] for kind in _KINDS if name.startswith(kind)), name)


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


def best_line(key: str, values: Mapping[int, float], epoch: int) -> str:
    """Return the line which compares the deciding score of an epoch with those of all earlier ones; "" for the first.

    :param key: name of the score, e.g. dev_score
    :param values: finite scores by epoch, lower is better
    """
    earlier = {number: value for number, value in values.items() if number < epoch}
    if epoch not in values or not earlier:
        return ""
    best = min(earlier, key=lambda number: (earlier[number], number))
    texts = (key, score_text(values[epoch]), score_text(earlier[best]), best)
    if values[epoch] < earlier[best]:
        return "%s %s: best so far (previous best: %s in epoch %d)" % texts
    return "%s %s: not better than %s in epoch %d" % texts


def start_line(phase: str, learning_rate: Optional[float] = None) -> str:
    """Return the line at the start of an epoch (level 4 and below): ``start train epoch 1, learning rate 0.001``."""
    rate = "" if learning_rate is None else ", learning rate %s" % float("%.6g" % learning_rate)
    return "start %s%s" % (phase, rate)
