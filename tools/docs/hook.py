"""Hook of MkDocs, named in mkdocs.yml: adds the made pages and the navigation, adapts the Markdown, adds llms.txt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # MkDocs loads a hook by its path

from mkdocs.structure.files import File

from tools.docs.links import rewrite_links
from tools.docs.llms import llms_txt
from tools.docs.markdown import for_site
from tools.docs.name_links import entries_of, link_names
from tools.docs.nav import navigation
from tools.docs.pages import all_files, all_pages, written_pages
from tools.docs.repository import link_on_site


def on_config(config: Any) -> Any:
    """Show the list of versions in the pages that mike builds; elsewhere there is no list to be loaded."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the made pages, and make the navigation of all."""
    written = written_pages()
    for name, text in all_files().items():
        if name not in written:
            files.append(File.generated(config, name, content=text))
    config.nav = navigation(all_pages())
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt the links to the site, and the Markdown to its parser."""
    name = page.file.src_uri
    page.meta["search"] = {"boost": _boost(name)}
    text = _with_site_links(name, markdown)
    return for_site(text if name.startswith("source/") else link_names(text, name, entries_of()))


def on_post_build(config: Any) -> None:
    """Write llms.txt and the Markdown of each page; without an address, remove the site map, which is empty then."""
    site = Path(config.site_dir)
    pages = all_pages()
    for name, text in pages.items():
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_with_site_links(name, text), encoding="utf8")
    url = config.site_url and config.site_url.rstrip("/") + "/"  # mike's has no slash at the end
    text = llms_txt(pages, config.site_name, config.site_description, url or "")
    (site / "llms.txt").write_text(text, encoding="utf8")
    if not config.site_url:
        for name in ("sitemap.xml", "sitemap.xml.gz"):
            (site / name).unlink(missing_ok=True)


def _with_site_links(name: str, page: str) -> str:
    """Return a page with the links that it has on the site."""
    return rewrite_links(page, lambda target: link_on_site(name, target))


def _boost(name: str) -> float:
    """Return the weight of a page in the search: guides first, files of the repository last."""
    if name.startswith("source/"):
        return 0.2
    if name.endswith(".config.md"):
        return 0.5
    if name.startswith(("guide/", "start", "coming-from")):
        return 4.0
    if name.startswith("cookbook/") or "/" not in name:
        return 2.0
    return 0.5 if name.startswith(("develop/", "reference/python/")) else 1.0
