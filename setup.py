"""The build steps that pyproject.toml cannot express: native sources and the folder for job managers in the wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CHECKOUT = Path(__file__).resolve().parent


class BuildWithFolders(build_py):
    """Copy folders that a checkout has beside the package into it.

    These are the native sources, which are compiled on the user's machine, and the folder ``i6`` with the scripts that
    it names, which ``returnn-tf root`` writes.
    """

    def run(self) -> None:
        """Build the package, then add ``returnn_tf/native_ops`` and ``returnn_tf/i6``."""
        super().run()
        if not self.editable_mode:
            ignored = shutil.ignore_patterns("*.md", "__pycache__")
            for name in ("native_ops", "i6"):
                to = Path(self.build_lib, "returnn_tf", name)
                shutil.copytree(CHECKOUT / name, to, dirs_exist_ok=True, ignore=ignored)
            for script in (CHECKOUT / "i6" / "tools").glob("*.py"):
                shutil.copy(CHECKOUT / "tools" / script.name, Path(self.build_lib, "returnn_tf", "i6", "tools"))


setup(cmdclass={"build_py": BuildWithFolders})
