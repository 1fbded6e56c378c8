"""Reference docs of the settings, made from their declarations: `returnn-tf settings`."""

from __future__ import annotations

import textwrap
from typing import List

from returnn_tf.config.errors import ConfigError, did_you_mean
from returnn_tf.config.options import REQUIRED
from returnn_tf.config.settings.catalog import GROUPS, setting_by_key
from returnn_tf.config.settings.declaration import Effect, Setting

_EFFECTS = {
    Effect.DATASETS: "datasets are opened again",
    Effect.BATCHES: "batches are other ones",
    Effect.ORDER: "a training cannot resume within an epoch",
    Effect.RATES: "learning rates are other ones",
}
_WIDTH = 110


def list_settings() -> str:
    """Return all settings by topic with their help."""
    lines = ["Settings (`returnn-tf settings NAME` explains one):"]
    for group in GROUPS:
        infos = group.declared().values()
        width = max(len(info.name) for info in infos)
        lines += ["", "%s:" % _title(group)]
        lines += ["  %s  %s" % (info.name.ljust(width), _summary(info)) for info in infos]
    return "\n".join(lines)


def _title(group: type) -> str:
    return (group.__doc__ or "").split("\n")[0].rstrip(".")


def _summary(info: Setting) -> str:
    if info.unsupported:
        return "(not supported) " + info.help
    return "(no effect) " + info.help if info.inert else info.help


def describe_setting(name: str) -> str:
    """Return type, default, help and the other facts about one setting.

    :raises ConfigError: unknown name, with the nearest known one
    """
    known = setting_by_key()
    if name not in known:
        raise ConfigError("There is no setting %r. %s" % (name, did_you_mean(name, known)))
    info = known[name]
    assert info.topic is not None and info.default is not REQUIRED
    head = "setting %r" % info.name
    if info.aliases:
        head += ", also called %s" % ", ".join(map(repr, info.aliases))
    lines = ["%s (%s)" % (head, _title(info.topic)), "", "  %s: %s = %r" % (info.name, info.type_name, info.default)]
    for text in [info.help, *_facts(info)]:
        lines += textwrap.wrap(text, _WIDTH, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


def _facts(info: Setting) -> List[str]:
    facts = []
    if info.unsupported:
        facts.append("Not supported: %s." % info.unsupported)
    if info.inert:
        facts.append("No effect: %s." % info.inert)
    if info.dataset_option:
        facts.append("Inherited by: datasets that do not set their option %r." % info.dataset_option)
    if info.batch_option:
        facts.append("Inherited by: the batches of %s." % {"all": "all datasets", "train": "train"}[info.batch_option])
    if info.effect:
        facts.append(
            "If it changes: %s." % ", ".join(text for effect, text in _EFFECTS.items() if info.effect & effect)
        )
    if info.per_rank:
        facts.append("May differ between the processes of a training.")
    return facts
