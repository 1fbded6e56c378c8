"""The rules of ``make lint`` on the package: it keeps them, and each finds what breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.lint.__main__ import RULES
from tools.lint.imports import INNER_FLOORS
from tools.lint.package import Package


@pytest.fixture(scope="module")
def package() -> Package:
    """Return the syntax trees of the package, which are forgotten after this file."""
    return Package()


@pytest.mark.slow  # make lint does the same
@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_package_keeps_the_rules(rule: str, package: Package) -> None:
    assert list(RULES[rule](package)) == []


#: rule -> files that break it, and what is found.
BROKEN: list[tuple[str, dict[str, str], list[str]]] = [
    ("floors", {"util/a.py": "from returnn_tf.tensor import b", "tensor/b.py": ""}, ["util.a imports"]),
    ("floors", {"tasks/a.py": "import returnn_tf.compat.b", "compat/b.py": ""}, ["which is not on a lower floor"]),
    ("floors", {"__main__.py": "import returnn_tf.compat.b", "compat/b.py": ""}, ["not on a lower floor"]),
    ("floors", {"cli/a.py": "import returnn_tf"}, ["cli.a imports returnn_tf itself"]),
    ("floors", {"__init__.py": "import returnn_tf.util.a", "util/a.py": ""}, ["when it is imported"]),
    ("one_log", {"util/a.py": "import logging", "logging/b.py": "import logging"}, ["a.py:1 imports logging"]),
    ("places", {"attic/a.py": ""}, ["attic has no floor"]),
    ("places", {"engine/attic.py": ""}, ["engine.attic is in no row", "engine.support is not there"]),
    (
        "inner_floors",
        {"engine/support/a.py": "import returnn_tf.engine.data.b", "engine/data/b.py": ""},
        ["engine: support imports data"],
    ),
    (
        "cycles_of_folders",
        {
            "util/__init__.py": "", "util/a/x.py": "import returnn_tf.util.b.y",
            "util/b/y.py": "", "util/b/z.py": "import returnn_tf.util.a.x",
        },
        ["util: a cycle among a, b"],
    ),
    (
        "cycles_of_modules",
        {"util/a.py": "import returnn_tf.util.b", "util/b.py": "def f():\n  from returnn_tf.util import a"},
        ["returnn_tf.util.a -> returnn_tf.util.b -> returnn_tf.util.a"],
    ),
    (
        "programs",
        {"util/__init__.py": "import returnn_tf.util.a", "util/a.py": '["python", "-m", "returnn_tf.util.a"]'},
        ["returnn_tf.util.a is imported before"],
    ),
    (
        "class_names",
        {"util/a.py": "class A: pass\nclass _B: pass", "util/b.py": "class _B: pass\n\nclass A: pass"},
        ["b.py:3 defines a class A, as"],
    ),
    ("class_names", {"util/a.py": "class A: pass", "compat/b.py": "class A: pass"}, []),
    ("imports_in_functions", {"util/a.py": "def f():\n  import tensorflow\n  import json"}, ["a.py:3 imports json"]),
    ("imports_for_type_checkers", {"util/a.py": "if TYPE_CHECKING: x\nfrom . import x"}, ["a.py:1", "a.py:2"]),
    (
        "imports_by_name",
        {"util/a.py": "import_module('h5py')\nimportlib.import_module(name)\nimport_module('onnx')"},
        ["a.py:1 imports h5py", "a.py:2 imports by a name"],
    ),
    (
        "datasets_without_tensorflow",
        {"datasets/a.py": "def f():\n  import tensorflow\nfrom returnn_tf.util.lazy_tf import tf"},
        ["a.py:2 imports tensorflow", "a.py:3 imports returnn_tf.util.lazy_tf"],
    ),
    (
        "error_topics",
        {
            "util/a.py": "class A(ConfigError):\n  class_topic = 'dims'\nclass B(ConfigError): pass",
            "util/b.py": "raise ConfigError('x')\nraise A('x')\nB('x')\nraise DataError('x', topic='nan')",
        },
        ["b.py:1 makes a ConfigError without a topic", "b.py:3 makes a B without"],
    ),
    ("docstrings", {"util/a.py": "x = 1", "util/b.py": '"""B."""\nx = 1'}, ["a.py has no docstring"]),
    (
        "settings",
        {"util/a.py": "config.int('num_epochs', 5)\nself._config['x']\n'x' in config\nconfig.int(name)\nother['x']"},
        ["a.py:1 reads config.int", "a.py:2 reads self._config['x']", "a.py:3 reads 'x' in config"],
    ),
    (
        "layer_classes",
        {
            "util/a.py": '_TABLE = ("linear", "copy")\nif node.layer.class_name in _TABLE: pass\n'
            'if layer["class"] == "rec": pass\nif layer.get("class") != "choice": pass\n'
            'x = {"softmax": 1}.get(node.layer.class_name)\nif layer.get("name") == "dot": pass\n'
        },
        ["'copy'", "a.py:2 knows the layer class 'linear'", "a.py:3 ", "a.py:4 ", "a.py:5 "],
    ),
    (
        "layer_attributes",
        {
            "util/a.py": 'getattr(node.layer, "of", None)\nhasattr(layer, "of")\n'
            'getattr(node.layer, name)\ngetattr(x, "of")\n'
        },
        ["a.py:1 ", "a.py:2 "],
    ),
]  # fmt: skip


@pytest.mark.parametrize("rule, files, expected", BROKEN)
def test_what_breaks_a_rule_is_found(rule: str, files: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    """And nothing else in these files."""
    for name, text in {"__init__.py": "", **files}.items():
        path = tmp_path / "returnn_tf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = sorted(RULES[rule](Package(tmp_path)))
    if rule == "places":  # the tables name more than is in these files
        known = {
            "%s.%s is not there" % (folder, name)
            for folder, rows in INNER_FLOORS.items()
            for row in rows
            for name in row
        }
        assert len(set(found) - known) == 1
        found = [line for line in found if line in expected or line not in known]
    assert len(found) == len(expected)
    assert [text for text, line in zip(expected, found) if text not in line] == []


def test_each_rule_is_broken_by_something() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)
