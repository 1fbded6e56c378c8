"""Pages of the program: commands, tools, tasks, schedules of learning rates, errors, versions of the semantics."""

from __future__ import annotations

import inspect
from typing import Any

from returnn_tf.cli.commands import COMMANDS, RUN, usage
from returnn_tf.compat.tool.registry import TOOLS
from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.behavior_versions import CHANGES
from returnn_tf.config.reference import first_sentence
from returnn_tf.config.registry import Registry
from returnn_tf.engine.learning_rate.schemes import SCHEMES
from returnn_tf.native.sources import OPS
from returnn_tf.tasks.registry import TASKS
from tools.docs.links import title_of
from tools.docs.reference.classes import Pages, heading, sections
from tools.docs.reference.docstrings import code, doc_of, inline


def program_pages() -> Pages:
    """Return path -> Markdown."""
    return {
        "reference/commands.md": _page("Commands", "", _commands()),
        "reference/tools.md": _page("Tools", "`returnn-tf tool NAME`; [examples](../tools.md).", _tools()),
        "reference/tasks.md": _page("Tasks", _TASKS, _functions(TASKS)),
        "reference/schedules.md": _page("Learning-rate schedules", _SCHEDULES, _functions(SCHEMES)),
        "reference/native-ops.md": _page("Native ops", "[How they are built](../source/native_ops/README.md).", _ops()),
        "reference/behavior-versions.md": _page("Versions of the semantics", _VERSIONS, _versions()),
    }


_TASKS = "The setting `task`, or `++task NAME` on the command line. `config:NAME` calls a function of the config."
_SCHEDULES = (
    "What the setting `learning_rate_control` names. Their parameters are [settings](settings/learning-rate.md) too."
)
_VERSIONS = (
    "The setting [behavior_version](settings/the-network.md#behavior_version) selects between old and new semantics; "
    "absent means 0. Each version has the changes of all before it; a version that is not listed changes nothing. "
    "`returnn-tf check --migrate CONFIG` says what the newest version would change in a config."
)


def _page(title: str, intro: str, entries: list[tuple[str, str]]) -> str:
    return "\n\n".join(part for part in ("# " + title, intro, sections(entries)) if part)


def _heading(name: str) -> str:
    return heading(name, name.rstrip(":"))


def _text(text: str) -> str:
    return "```text\n%s\n```" % text.strip("\n")


def _commands() -> list[tuple[str, str]]:
    entries = [("All", _text(usage()))]
    for name, command in COMMANDS.items():
        shown = "returnn-tf CONFIG" if name == RUN else "returnn-tf " + name
        entries.append((heading(shown, name), _text(command.help_text([]))))
    return entries


def _tools() -> list[tuple[str, str]]:
    return [(_heading(tool.name), _text(tool.parser().format_help())) for _, tool in TOOLS.items()]


def _functions(registry: Registry[Any]) -> list[tuple[str, str]]:
    entries = []
    for name, entry in registry.items():
        if entry.__module__.startswith("returnn_tf."):
            also = ", ".join(map(code, registry.names_of(entry)[1:]))
            text = doc_of(entry)
            entries.append((_heading(name), "Also called %s.\n\n%s" % (also, text) if also else text))
    return entries


def _ops() -> list[tuple[str, str]]:
    entries = []
    for name, op in OPS.items():
        rows = [
            inline(first_sentence(inspect.getmodule(op.self_test))),
            "",
            "* C++: %s" % ", ".join(map(code, op.kernels)),
        ]
        rows += ["* CUDA: %s" % ", ".join(map(code, op.cuda))] if op.cuda else ["* no CUDA kernel"]
        entries.append((_heading(name), "\n".join(rows)))
    return entries


def _versions() -> list[tuple[str, str]]:
    return [("Version %d" % n, "\n".join("* %s" % inline(text) for text in CHANGES[n])) for n in CHANGES]


def error_pages(topics: Pages) -> Pages:
    """Return path -> Markdown of the index of errors and the pages of their topics.

    :param topics: file name -> Markdown, as `returnn-tf explain` shows them
    """
    titles = {name: title_of(text, name) for name, text in sorted(topics.items())}
    entries = "\n".join("* %s: [%s](%s)" % (code(name[:-3]), title, name) for name, title in titles.items())
    index = [
        "# Errors",
        "A mistake gives one message with the place and the fix. `ConfigError`: %s" % inline(ConfigError.__doc__ or ""),
        "`DataError`: %s" % inline(DataError.__doc__ or ""),
        "[Signals and exit codes](../training-on-clusters.md#stopping-signals-exit-codes).",
    ]
    if topics:
        index += ["## By topic", "`returnn-tf explain TOPIC` shows the same.", entries]
    return {"errors/README.md": "\n\n".join(index), **{"errors/" + name: text for name, text in topics.items()}}
