"""The examples in docstrings: as code, planned, as a table of layers, and as a drawing."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.cli.layers import example_of, example_settings
from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config


def plan_of_example(cls: type[Any]) -> Optional[Plan]:
    """Return the plan, for training, of the example in the docstring of a layer or loss; None if it has none.

    :raises ConfigError: the example is wrong
    """
    return plan_from_config(Config(example_settings(cls)), train=True) if example_of(cls) else None


def example_section(cls: type[Any], picture: str) -> tuple[str, str]:
    """Return a section with the example, its layers and a link to its drawing, and the drawing as SVG.

    :param picture: file name of the drawing
    """
    plan = plan_of_example(cls)
    if plan is None:
        return "", ""
    parts = [
        "## Example",
        "```python\n%s\n```" % (example_of(cls) or "").strip("\n"),
        "![The layers of the example](%s){ .network }" % picture,
        "What `returnn-tf check` shows of it:",
        "```text\n%s\n```" % describe_plan(plan),
    ]
    return "\n\n".join(parts), plan.svg()
