"""The one build step that pyproject.toml cannot express: the C++ and CUDA sources go into the wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCES = Path(__file__).resolve().parent / "native_ops"


class BuildWithNativeSources(build_py):
    """Copy the sources, which are compiled on the user's machine, into the package; a checkout has them beside it."""

    def run(self) -> None:
        """Build the package, then add ``returnn_tf/native_ops``."""
        super().run()
        if not self.editable_mode:
            to = Path(self.build_lib, "returnn_tf", "native_ops")
            shutil.copytree(SOURCES, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))


setup(cmdclass={"build_py": BuildWithNativeSources})
