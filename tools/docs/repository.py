"""Pages of files of the repository that other pages link to, so that the site has no links out of itself."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Optional

from tools.docs.links import is_external, links_of

ROOT = Path(__file__).parents[2]
#: The folder of these pages on the site.
FOLDER = "source"
_LANGUAGES = {".config": "python", ".py": "python", ".pyi": "python", ".sh": "bash", ".cc": "cpp", ".h": "cpp"}
_PICTURES = (".png", ".svg", ".jpg")
#: Names that the list of a folder leaves out: what tools and runs leave.
_LEFT_OUT = ("__pycache__", "out")


def pages_of_files(pages: dict[str, str]) -> dict[str, str]:
    """Return the pages of all files and folders that pages link to, and those that these link to in turn.

    :param pages: path on the site (e.g. "guide/data.md") -> Markdown
    :return: path on the site, below `FOLDER` -> Markdown
    """
    made: dict[str, str] = {}
    todo = dict(pages)
    while todo:
        path, text = todo.popitem()
        for target in links_of(text):
            name = page_of(path, target)
            if name is not None and name not in made and name not in pages:
                made[name] = todo[name] = _render(repository_path(name))
    return made


def page_of(path: str, target: str) -> Optional[str]:
    """Return the page on the site to which a link leads, None if it leads to no page, or elsewhere.

    :param path: of the page with the link, on the site
    :param target: what the link says: a page, or a folder or text file of the repository, which becomes one
    """
    name = target.partition("#")[0]
    if not name or is_external(target):
        return None
    file = posixpath.normpath(posixpath.join(posixpath.dirname(repository_path(path)), name))
    if file.startswith("../") or not (ROOT / file).exists():
        return None  # a made page, or a broken link
    if (ROOT / file).is_dir():
        readme = posixpath.join(file, "README.md")
        file = readme if (ROOT / readme).exists() else file
    elif file.endswith(_PICTURES):
        return None
    page = file if file.endswith(".md") else file + ".md"
    return page[len("docs/") :] if file.startswith("docs/") else posixpath.join(FOLDER, page)


def repository_path(page: str) -> str:
    """Return the path of the file from which a page on the site is made, in the repository."""
    name = page[len(FOLDER) + 1 :] if page.startswith(FOLDER + "/") else "docs/" + page
    file = name[: -len(".md")]
    return file if not (ROOT / name).exists() and (ROOT / file).exists() else name


def link_on_site(page: str, target: str) -> str:
    """Return a link as it has to be on the site.

    :param page: with the link
    """
    other = page_of(page, target)
    if other is None:
        return target
    _, mark, anchor = target.partition("#")
    return posixpath.relpath(other, posixpath.dirname(page) or ".") + mark + anchor


def _render(file: str) -> str:
    path = ROOT / file
    if path.is_dir():
        names = sorted(name for name in os.listdir(path) if not name.startswith(".") and name not in _LEFT_OUT)
        return "# `%s/`\n\n%s\n" % (file, "\n".join("* `%s`" % name for name in names))
    try:
        text = path.read_text(encoding="utf8")
    except UnicodeDecodeError:
        return "# `%s`\n\nNot a text: %d bytes.\n" % (file, path.stat().st_size)
    if file.endswith(".md"):
        return text
    name = os.path.basename(file)
    link = '<a href="%s" download>Download</a>\n\n' % name if file.startswith("docs/") else ""
    fence = "`" * max(3, text.count("```") and 5)
    title = name if file.startswith("docs/") else file
    return "# `%s`\n\n%s%s%s\n%s\n%s\n" % (
        title,
        link,
        fence,
        _LANGUAGES.get(path.suffix, "text"),
        text.rstrip("\n"),
        fence,
    )
