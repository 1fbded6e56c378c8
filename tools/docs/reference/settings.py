"""Pages of the settings, one for each topic."""

from __future__ import annotations

import posixpath

from returnn_tf.config.settings import setting_groups
from returnn_tf.config.settings.declaration import Setting, SettingGroup
from returnn_tf.config.settings.docs import summary, title_of_topic
from tools.docs.links import slug
from tools.docs.nav import SETTINGS
from tools.docs.reference.classes import Pages
from tools.docs.reference.docstrings import code, inline


def settings_pages() -> Pages:
    """Return path -> Markdown of the index and the topics."""
    pages: Pages = {}
    index = ["# Settings", "On the command line: `returnn-tf settings` and `returnn-tf settings NAME`."]
    for group in setting_groups():
        path, title = page_of_topic(group), title_of_topic(group)
        name = posixpath.basename(path)
        infos = list(group.declared().values())
        pages[path] = "\n\n".join(["# " + SETTINGS + title, *map(_section, infos)])
        rows = ["| | |", "|---|---|"]
        rows += ["| [%s](%s#%s) | %s |" % (code(info.name), name, info.name, inline(summary(info))) for info in infos]
        index += ["## [%s](%s)" % (title, name), "\n".join(rows)]
    return {"reference/settings/README.md": "\n\n".join(index), **pages}


def page_of_topic(group: type[SettingGroup]) -> str:
    """Return the page of the settings that a class declares."""
    return "reference/settings/%s.md" % slug(title_of_topic(group))


def _section(info: Setting) -> str:
    also = ", also called %s" % ", ".join(map(code, info.aliases)) if info.aliases else ""
    facts = "%s, default %s%s" % (code(info.type_name), code(repr(info.default)), also)
    return "## %s {#%s}\n\n%s  \n%s" % (code(info.name), info.name, facts, inline(info.description))
