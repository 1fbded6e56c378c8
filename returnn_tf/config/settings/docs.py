"""Reference docs of the settings, generated from their declarations: `returnn-tf settings`."""

from __future__ import annotations

from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.config.reference import option_lines
from returnn_tf.config.settings.catalog import setting_by_key, setting_groups
from returnn_tf.config.settings.declaration import Setting, SettingGroup


def list_settings() -> str:
    """Return all settings by topic with their help."""
    lines = ["Settings (`returnn-tf settings NAME` explains one):"]
    for group in setting_groups():
        infos = group.declared().values()
        width = max(len(info.name) for info in infos)
        lines += ["", "%s:" % title_of_topic(group)]
        lines += ["  %s  %s" % (info.name.ljust(width), summary(info)) for info in infos]
    return "\n".join(lines)


def title_of_topic(group: type[SettingGroup]) -> str:
    """Return the title of the topic that a class declares: the first line of its docstring."""
    return (group.__doc__ or "").split("\n")[0].rstrip(".")


def summary(info: Setting) -> str:
    """Return a line on a setting: its help, and whether it is supported."""
    if info.unsupported:
        return "(not supported) " + info.help
    return "(no effect) " + info.help if info.inert else info.help


def describe_setting(name: str) -> str:
    """Return type, default, help and the other facts about one setting.

    :raises ConfigError: unknown name, with the nearest known one
    """
    known = setting_by_key()
    if name not in known:
        raise SettingError("There is no setting %r. %s" % (name, did_you_mean(name, known)))
    info = known[name]
    assert info.topic is not None
    head = "setting %r" % info.name
    if info.aliases:
        head += ", also called %s" % ", ".join(map(repr, info.aliases))
    return "\n".join(["%s (%s)" % (head, title_of_topic(info.topic)), "", *option_lines([info])])
