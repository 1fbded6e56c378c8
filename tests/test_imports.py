"""What ``import returnn_tf`` costs and offers. Floors and cycles: ``tools/lint``, tested by ``tools/test_lint.py``."""

import ast
import os
import subprocess
import sys

import pytest

from tools.lint.package import NAME as PACKAGE
from tools.lint.package import ROOT


def run_python(code, warnings="error"):
    """Return what a fresh interpreter prints.

    :param warnings: of its flag ``-W``
    """
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-W", warnings, "-c", code]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def test_import_is_quick_and_without_tensorflow():
    """Below 0.2 s of computing (best of five, as other programs disturb), without TensorFlow and numpy."""
    code = (
        "import time, sys; t = time.process_time(); import returnn_tf; t = time.process_time() - t\n"
        "assert not {'tensorflow', 'numpy', 'h5py'} & set(sys.modules)\nprint(t)"
    )
    assert min(float(run_python(code)) for _ in range(5)) < 0.2


@pytest.mark.slow
def test_all_modules_import_without_tensorflow():
    """TensorFlow is loaded when it is used, not before."""
    paths = (path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / PACKAGE).rglob("*.py"))
    names = sorted(".".join(parts).removesuffix(".__init__") for parts in paths)
    code = "import importlib, sys\nfor name in %r: importlib.import_module(name)\n" % names
    run_python(code + "assert 'tensorflow' not in sys.modules")


@pytest.mark.slow
def test_tensorflow_is_imported_without_keras():
    """Which takes three tenths of its import; it comes when it is used, also by import statements."""
    code = (
        "import sys\nfrom returnn_tf.util.lazy_tf import tf\n"
        "assert tf.constant(1) == 1 and 'keras' not in sys.modules\n"
        "from tensorflow.keras.layers import Dense\nassert Dense is tf.keras.layers.Dense\n"
        "assert tf.optimizers.Adam is sys.modules['keras'].optimizers.Adam"
    )
    assert run_python(code, warnings="ignore") == ""  # those of Keras


def test_folders_are_packages():
    """All but the folder that RASR has on its path, in which modules have the names of RETURNN's."""
    folders = {path.parent.relative_to(ROOT / PACKAGE).as_posix() for path in (ROOT / PACKAGE).rglob("*.py")}
    lacking = {name for name in folders if not (ROOT / PACKAGE / name / "__init__.py").exists()}
    assert {name for name in lacking if not name.startswith("rasr/names")} == set()


def test_stub_has_the_public_names():
    """What type checkers see is what there is: each name comes from the same module."""
    with open(os.path.join(ROOT, PACKAGE, "__init__.pyi"), encoding="utf8") as f:
        stub = ast.parse(f.read())
    seen = {alias.asname: node.module for node in stub.body for alias in node.names}
    (table,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf8")).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_HOME_OF_NAME"
    )
    assert seen == {**table, "__version__": PACKAGE + "._version"}


@pytest.mark.slow
def test_public_names():
    """All names of the package's face are there, and come from where they live."""
    code = (
        "import returnn_tf\nfor name in returnn_tf.__all__: assert getattr(returnn_tf, name) is not None, name\n"
        "assert set(returnn_tf.__all__) <= set(dir(returnn_tf))\n"
        "try: returnn_tf.nothing\nexcept AttributeError as exc: print(exc)\n"
    )
    assert run_python(code).strip() == "module 'returnn_tf' has no attribute 'nothing'"
