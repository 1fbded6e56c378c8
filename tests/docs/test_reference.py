"""The reference has an entry for everything that has a name in configs, on the command line or in Python."""

from __future__ import annotations

import re
from typing import Any

import pytest

import returnn_tf
from returnn_tf.blocks.block import BLOCKS, options_of
from returnn_tf.cli.commands import COMMANDS
from returnn_tf.compat.imports.stand_ins import COMPAT
from returnn_tf.compat.tool.registry import TOOLS
from returnn_tf.config.registry import Registry
from returnn_tf.config.settings import setting_groups
from returnn_tf.engine.learning_rate.schemes import SCHEMES
from returnn_tf.graph.registry import LAYERS, LOSSES
from returnn_tf.native.sources import OPS
from returnn_tf.tasks.registry import TASKS
from tools.docs.links import anchors_of, slug
from tools.docs.markdown import for_site
from tools.docs.pages import all_files, all_pages, topics_of_errors
from tools.docs.reference.docstrings import inline, to_markdown
from tools.docs.reference.examples import plan_of_example
from tools.docs.reference.kinds import KINDS
from tools.docs.reference.python import imported_names


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.folder))
def test_every_class_has_a_page(kind: Any) -> None:
    folder = "reference/%s/" % kind.folder
    pages = {
        name.rpartition("/")[2][: -len(".md")]: text for name, text in all_pages().items() if name.startswith(folder)
    }
    names = {name for name, cls in kind.registry.items() if cls.__module__.startswith("returnn_tf.")}
    assert names == set(pages) - {"README"}
    for name in names:
        assert all("`%s`" % other in pages[name] for other in kind.registry.names_of(kind.registry[name])), name
        assert "## Options" in pages[name]


@pytest.mark.parametrize("registry", [LAYERS, LOSSES], ids=["layers", "losses"])
def test_every_layer_and_loss_has_an_example_and_a_drawing(registry: Registry[Any]) -> None:
    files, folder = all_files(), "reference/layers/" if registry is LAYERS else "reference/losses/"
    for name, cls in registry.items():
        if cls.__module__.startswith("returnn_tf."):
            (path,) = (path for path in files if path.startswith(folder) and path.endswith("/%s.md" % name))
            assert "## Example" in files[path] and "](%s.svg)" % name in files[path]
            drawing = files[path[: -len(".md")] + ".svg"]
            names = registry.names_of(cls) if registry is LAYERS else ("data",)
            assert any(">%s<" % other in drawing or "(%s)<" % other in drawing for other in names), name


def test_every_block_has_a_page_with_a_drawing() -> None:
    files, names = all_files(), [name for name, _ in BLOCKS.items()]
    assert {"reference/blocks/%s.md" % name for name in [*names, "README"]} == {
        name for name in files if name.startswith("reference/blocks/") and name.endswith(".md")
    }
    for name in names:
        page = files["reference/blocks/%s.md" % name]
        assert "](%s.svg)" % name in page and "<code>%s</code>" % next(iter(options_of(BLOCKS[name]))) in page
        assert files["reference/blocks/%s.svg" % name].startswith("<svg")


@pytest.mark.parametrize(
    "page, names",
    [
        ("commands", COMMANDS.names()),
        ("tools", [tool.name for _, tool in TOOLS.items()]),
        ("tasks", [name.rstrip(":") for name, _ in TASKS.items()]),
        ("schedules", [name for name, _ in SCHEMES.items()]),
        ("native-ops", [name for name, _ in OPS.items()]),
        ("names-of-returnn", [name.replace("__", "") for name, _ in COMPAT.items()]),
    ],
)
def test_sections(page: str, names: list[str]) -> None:
    assert set(names) <= anchors_of(all_pages()["reference/%s.md" % page]) and len(names) > 3


def test_every_setting_has_a_section() -> None:
    pages = {name: anchors_of(text) for name, text in all_pages().items() if name.startswith("reference/settings/")}
    for group in setting_groups():
        for info in group.declared().values():
            assert any(info.name in anchors for anchors in pages.values()), info.name


def test_every_public_name_has_a_page() -> None:
    assert all(
        "reference/python/%s.md" % name in all_pages() for name in returnn_tf.__all__ if not name.startswith("__")
    )
    network = all_pages()["reference/python/Network.md"]
    assert {"run", "from_config", "get_param_values"} <= anchors_of(network) and "feed: " in network
    assert "reference/python/HDFWriter.md" in all_pages()  # docs/ imports it from a module


def test_names_of_pages_are_links() -> None:
    page = all_pages()["reference/datasets/hdf/HDFDataset.md"]
    assert '<a href="../../../data.html">data</a>' in page and "<code>docs/" not in page


def test_names_that_pages_import() -> None:
    page = (
        "```python\nfrom returnn_tf.util.text import plural\nimport os\n```\n```text\nfrom returnn_tf.x import y\n```"
    )
    assert imported_names([page.replace("util.text import plural", "config.errors import shown")]).keys() == {"shown"}


def test_topics_of_errors_have_pages() -> None:
    assert {"errors/" + name for name in topics_of_errors()} <= set(all_pages()) and "errors/README.md" in all_pages()


@pytest.mark.parametrize(
    "doc, expected",
    [
        ("``y = x``.\n\nText of ``a`` <b>.", "```text\ny = x\n```\n\nText of `a` &lt;b&gt;."),
        ("``a = b;  c = d``\n``e = f``", "```text\na = b\nc = d\ne = f\n```"),
        ("Text:\n\n* one\n  more\n* two\n\nEnd.", "Text:\n\n* one more\n* two\n\nEnd."),
        (":param x: it\n    more\n:return: y\n:raises E: if", "* `x`: it more\n* Returns: y\n* Raises `E`: if"),
        ("A.\n\nExample::\n\n    x = 1\n\n    y = 2\n\nB.", "A.\n\nB."),
        ("A::\n\n    x = 1\n\n    y = 2", "A\n\n```python\nx = 1\n\ny = 2\n```"),
        (">>> f(1)  # doctest: +SKIP\n2", "```pycon\n>>> f(1)\n2\n```"),
    ],
)
def test_docstrings(doc: str, expected: str) -> None:
    assert to_markdown(doc) == expected


def test_markup_in_texts() -> None:
    assert inline("a_b [c] *d* `e_f` ``g`` h|i") == r"a\_b \[c\] \*d\* `e_f` `g` h\|i"
    assert slug("Learning rates") == "learning-rates"


def test_markdown_of_the_site() -> None:
    page = "Text:\n* a\n  * b\n    c\n* d\n\n  ```text\n  x\n  ```\n\n<!-- file: x.config -->\n```python\ny = 1\n```\n"
    expected = "Text:\n\n* a\n    * b\n        c\n* d\n\n    ```text\n    x\n    ```\n\n"
    assert for_site(page) == expected + '```python title="x.config"\ny = 1\n```\n'


def test_every_native_op_says_what_it_computes() -> None:
    parts = all_pages()["reference/native-ops.md"].split("\n## ")[1:]
    assert len(parts) == len(list(OPS.items()))
    assert all(re.search(r"^[A-Z][^*\n]{15,}\.$", part, re.M) for part in parts), parts


def test_decorators_and_packages_that_can_be_called_are_described() -> None:
    assert "Decorate a layer class" in all_pages()["reference/python/register_layer.md"]
    assert "Decorate a task" in all_pages()["reference/python/register_task.md"]
    assert "* `folder`: " in all_pages()["reference/python/export.md"]


@pytest.mark.parametrize("registry", [LAYERS, LOSSES], ids=["layers", "losses"])
def test_examples_have_no_option_without_effect(registry: Registry[Any], caplog: pytest.LogCaptureFixture) -> None:
    for _, cls in registry.items():
        if cls.__module__.startswith("returnn_tf."):
            plan_of_example(cls)
    assert caplog.messages == []
