"""Task ``sanity``: checks that find out in a minute why a network does not learn. Writes no files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.epoch_value import network_of
from returnn_tf.config.errors import CommandError, DataError, StepError
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.data.data_source import evaluation_names
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.support import devices
from returnn_tf.engine.support.step_errors import naming_sequences
from returnn_tf.graph.loss import LossNode
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task
from returnn_tf.tasks.sanity.data_checks import check_data, check_other_data
from returnn_tf.tasks.sanity.gradients import check_gradients
from returnn_tf.tasks.sanity.lengths import check_lengths
from returnn_tf.tasks.sanity.overfit import check_overfit
from returnn_tf.tasks.sanity.padding import check_alone, check_padding
from returnn_tf.tasks.sanity.report import FAILED, Finding, table
from returnn_tf.tasks.sanity.samples import MOST_SEQS, Samples

#: What a run would read or write, and what would only make the checks slow.
_CHANGES: Mapping[str, Any] = {"learning_rate_file": "", "jit_compile": False, "stop_on_nonfinite_train_score": True}


@register_task("sanity")
def sanity(config: Config) -> int:
    """Check data, gradients, padding and learning with the network of the last epoch; print a table.

    :return: 1 if a check failed
    :raises ConfigError: the network has no loss, or there is no training data
    """
    devices.set_up(config)
    schedule = NetworkSchedule(config)
    last = max(TrainingSettings(config).num_epochs, schedule.pretrain_epochs + 1)
    entry = derived(schedule.at(last).config, _CHANGES)
    net = Network.from_config(entry, train=True)
    if not net.plan.losses:
        raise CommandError("The network has no loss, so there is nothing to train. Give a layer the option 'loss'.")
    used = {key: net.extern_data[key] for key in net.used_data_keys}
    with contextlib.closing(Samples(entry, used)) as samples:
        others = [_check_other(entry, net, samples, name) for name in evaluation_names(entry)]
        findings = _check(entry, net, samples, [finding for found in others for finding in found])
    log.write(1, "\n" + table(findings))
    return int(any(each.result == FAILED for each in findings))


def _losses_with_blank(net: Network) -> tuple[list[LossNode], set[str]]:
    """Return the losses with a blank, and the data keys of their targets."""
    losses = [loss for loss in net.plan.losses if loss.loss.has_blank and loss.target is not None]
    return losses, {loss.target.path.partition(":")[2] for loss in losses if loss.target is not None}


def _check_other(config: Config, net: Network, train: Samples, name: str) -> list[Finding]:
    """Check the data of a dataset for evaluation."""
    with_blank, targets = _losses_with_blank(net)
    with contextlib.closing(Samples(config, train.used, name, MOST_SEQS // 3)) as samples:
        findings = list(check_other_data(samples, train, targets))
        if not any(each.result == FAILED for each in findings):
            findings += [check_lengths(config, network_of(config) or {}, loss, samples, set()) for loss in with_blank]
    return [dataclasses.replace(each, check="%s: %s" % (name, each.check)) for each in findings]


def _check(config: Config, net: Network, samples: Samples, others: list[Finding]) -> list[Finding]:
    """Check the training data, then the network; findings on other datasets come in between."""
    with_blank, targets = _losses_with_blank(net)
    findings = [*check_data(samples, targets), *others]
    if any(each.result == FAILED for each in findings):
        return findings  # what follows would only repeat it
    unusable: set[int] = set()
    for loss in with_blank:
        findings.append(check_lengths(config, network_of(config) or {}, loss, samples, unusable))
    if len(unusable) == len(samples.all):
        return findings
    batch = samples.batch(unusable)
    feed = batch.feed
    log.write(3, "one batch: %s" % ", ".join("%s %s" % (key, list(value.shape)) for key, value in feed.items()))
    before = len(findings)
    for check in (check_gradients, _check_padding, functools.partial(check_overfit, config=config)):
        if any(each.result == FAILED for each in findings[before:]):
            break
        try:
            with naming_sequences("one batch", batch.seq_tags):
                findings += check(net, feed)
        except DataError as exc:  # an op refuses the batch, e.g. if output and target differ in their lengths
            topic = exc.topic or StepError.class_topic
            findings.append(Finding("computes one batch", FAILED, "an op failed", str(exc), topic=topic))
    return findings


def _check_padding(net: Network, feed: Mapping[str, Any]) -> list[Finding]:
    found = check_padding(net, feed)
    return [found] if found.result == FAILED else [found, check_alone(net, feed)]
