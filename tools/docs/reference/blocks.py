"""Pages of the functions that return parts of networks: `returnn_tf.blocks`."""

from __future__ import annotations

import json
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
    size = {"layers": 1} if "layers" in infos else {}
    encoder = _call("blstm", "encoder", layers=1)
    if "encoder" in infos:
        calls = [encoder, _call(name, "output", **size, encoder="encoder", num_labels=_NUM_LABELS)]
    elif "num_labels" in infos:
        calls = [_call(name, "output", **size, source="data:delayed", target="classes")]
    elif "target" in infos:
        calls = [encoder, _call(name, "output", source="encoder")]
    else:
        calls = [_call(name, "encoder", **size), _call("ctc", "output", source="encoder")]
    network = {key: layer for call in calls for key, layer in eval(call, vars(blocks).copy()).items()}
    labels = {"dim": _NUM_LABELS, "sparse": True}
    extern_data = {"data": {"dim": 80}, "classes": labels, "delayed": labels}
    return calls, Config({"extern_data": extern_data, "network": network, "behavior_version": 21})


def _call(name: str, output: str, **options: Any) -> str:
    """Return the call of a block as code."""
    given = ["%s=%s" % (key, json.dumps(value)) for key, value in options.items()]
    return "%s(%s)" % (name, ", ".join([json.dumps(output), *given]))
