"""Check of the gradients: which are missing, zero or not finite, and whether they are the slope of the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.tasks.sanity.report import FAILED, SKIPPED, WARNING, Finding, ok

_MOST_PARAMS = 8  # whose slope is measured
_TOLERANCE = 0.05
_CHANGES = (1e-2, 2e-3)  # of the loss, relative to it
_MOST_CHANGE = 0.1  # of a parameter, relative to its norm
_ROUNDING = 1e-5  # of the loss; what is smaller can't be measured


def check_gradients(net: Network, feed: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings on all gradients of a batch, without dropout."""
    result = net.run(feed, train=False, with_grad=True)
    assert result.total_loss is not None
    total = float(result.total_loss)
    params = net.trainable_params
    check = "gradients"
    broken = sorted(name for name, grad in result.grads.items() if not np.isfinite(grad).all())
    if not np.isfinite(total) or broken:
        text = "the loss of a batch is %s; gradients that are NaN or Inf: %s." % (
            total,
            _names(broken) or "none",
        )
        text += " ++debug_add_check_numerics_ops True names the layer where it begins."
        yield Finding(check, FAILED, "loss %s" % total, text, topic="nan")
        return
    missing = sorted(set(params) - set(result.grads))
    zero = sorted(name for name, grad in result.grads.items() if not np.any(grad))
    found = "%d parameters, loss %.4g" % (len(params), total)
    if params and len(missing) + len(zero) == len(params):
        text = "no parameter gets a gradient: the loss depends on none. Is there a stop_gradient, or a loss_scale of 0?"
        yield Finding(check, FAILED, found, text, topic="gradients")
        return
    if missing or zero:
        text = "no gradient for %s. No loss depends on it, or it has no influence (a bias before a softmax over time)."
        yield Finding(check, WARNING, found, text % _names(missing + zero), topic="gradients")
    else:
        yield ok(check, found)
    yield _check_slopes(net, feed, total, {n: g for n, g in result.grads.items() if n not in zero})


def _check_slopes(net: Network, feed: Mapping[str, Any], total: float, grads: Mapping[str, Any]) -> Finding:
    """Compare gradients with differences of the loss."""
    check = "numeric gradient"
    again = net.run(feed, train=False, with_grad=True).total_loss
    if abs(float(again or 0.0) - total) > 1e-4 * abs(total):
        return Finding(check, SKIPPED, "the loss of a batch is random, also without dropout")
    names = sorted(grads)
    step = max(1, len(names) // _MOST_PARAMS)
    worst, wrong = 0.0, []
    for name in names[::step]:
        error = _slope_error(net, feed, name, grads[name], total)
        if error is not None:
            worst = max(worst, error)
            wrong += [name] if error > _TOLERANCE else []
    found = "%d parameters, largest deviation %.1g" % (len(names[::step]), worst)
    if not wrong:
        return ok(check, found)
    text = (
        "the gradient of %s is not the slope of the loss. That is so on purpose if there is a stop_gradient, an "
        "alignment or an argmax between; else code with a gradient of its own (eval, custom_gradient) is wrong."
        % _names(wrong)
    )
    return Finding(check, WARNING, found, text, topic="gradients")


def _slope_error(net: Network, feed: Mapping[str, Any], name: str, grad: Any, total: float) -> Optional[float]:
    """Return the deviation of the slope along the gradient of a parameter, relative to it.

    :return: None if the loss is so flat there that it can't be measured
    """
    variable = net.trainable_params[name]
    before = variable.numpy()
    norm = float(np.linalg.norm(grad.astype("float64")))
    errors = []
    for change in _CHANGES:
        width = min(change * max(abs(total), 1e-3) / norm, _MOST_CHANGE * max(float(np.linalg.norm(before)), 0.1))
        if width * norm < _ROUNDING * abs(total):
            continue
        losses = []
        for sign in (1.0, -1.0):
            variable.assign((before + sign * width * grad / norm).astype(before.dtype))
            losses.append(float(net.run(feed, train=False, with_grad=True).total_loss or 0.0))
        variable.assign(before)
        errors.append(abs((losses[0] - losses[1]) / (2 * width) - norm) / norm)
    return min(errors, default=None)


def _names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ... (%d in all)" % len(names) if len(names) > 6 else "")
