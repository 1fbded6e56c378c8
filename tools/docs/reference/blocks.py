"""Pages of the functions that return parts of networks: `returnn_tf.blocks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from returnn_tf import blocks
from returnn_tf.blocks.block import BLOCKS, options_of, summary_of
from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.config.reference import first_sentence
from tools.docs.reference.classes import Pages
from tools.docs.reference.docstrings import code, inline, to_markdown
from tools.docs.reference.options import option_table

_FOLDER = "reference/blocks/"
_NUM_LABELS = 1000


def block_pages() -> Pages:
    """Return path -> Markdown of an index and of each block, and their drawings."""
    rows = ["* [%s](%s.md): %s" % (code(name), name, inline(first_sentence(f))) for name, f in BLOCKS.items()]
    intro = (
        "Functions of `returnn_tf.blocks` that return layers; [the guide](../../guide/blocks.md) shows how to use them."
    )
    pages = {_FOLDER + "README.md": "\n\n".join(["# Blocks", intro, "\n".join(rows)])}
    for name, function in BLOCKS.items():
        page, drawing = _page(name, function)
        pages["%s%s.md" % (_FOLDER, name)] = page
        pages["%s%s.svg" % (_FOLDER, name)] = drawing
    return pages


def _page(name: str, function: Callable[..., Any]) -> tuple[str, str]:
    """Return the page of a block, and the drawing of its example."""
    call, config = _example(name)
    plan = plan_from_config(config, train=True)
    parts = [
        "# Block %s" % code(name),
        to_markdown(summary_of(function)),
        "## Example",
        "```python\nfrom returnn_tf import blocks\n\nnetwork = {\n%s\n}\n```"
        % "\n".join("    **blocks.%s," % c for c in call),
        "![The layers of the example](%s.svg){ .network }" % name,
        "What `returnn-tf check` shows of it:",
        "```text\n%s\n```" % describe_plan(plan),
        "## Options",
        option_table(list(options_of(function).values())),
    ]
    return "\n\n".join(parts), plan.svg()


def _example(name: str) -> tuple[list[str], Config]:
    """Return calls of a small network with a block, and its config."""
    infos = options_of(BLOCKS[name])
    given = ['"encoder"'] if "encoder" not in infos and name != "ctc" else ['"output"']
    given += ["layers=1"] if "layers" in infos else []
    given += ['encoder="encoder"'] if "encoder" in infos else ['source="encoder"'] if name == "ctc" else []
    given += ["num_labels=%d" % _NUM_LABELS] if "num_labels" in infos else []
    own = "%s(%s)" % (name, ", ".join(given))
    is_output = given[0] == '"output"'
    calls = ['blstm("encoder", layers=1)', own] if is_output else [own, 'ctc("output", source="encoder")']
    network = {key: layer for call in calls for key, layer in eval(call, vars(blocks).copy()).items()}
    extern_data = {"data": {"dim": 80}, "classes": {"dim": _NUM_LABELS, "sparse": True}}
    return calls, Config({"extern_data": extern_data, "network": network, "behavior_version": 21})
