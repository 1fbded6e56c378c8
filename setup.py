"""Packaging: what is installed, on which Pythons, with which extras."""

from __future__ import annotations

import os
import re
import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))

# The one TensorFlow release for which tensorflow-io and Horovod both work. It comes as an extra, not as a requirement,
# since three distributions provide the same module and pip would install a second one beside the first.
TENSORFLOW = ">=2.16.2,<2.17"


def read(*path: str) -> str:
    """The text of a file beside this one; empty if there is none."""
    path_ = os.path.join(HERE, *path)
    if not os.path.exists(path_):
        return ""
    with open(path_, encoding="utf8") as f:
        return f.read()


def version() -> str:
    """The version from the package, without importing it."""
    found = re.search(r'__version__ = "([^"]+)"', read("returnn_tf", "_version.py"))
    assert found
    return found.group(1)


class BuildWithNativeSources(build_py):
    """Puts the C++ sources, which the user's machine compiles, into the package. A checkout has them beside it."""

    def run(self) -> None:
        """See `build_py.run`."""
        super().run()
        if not self.editable_mode:
            to = os.path.join(self.build_lib, "returnn_tf", "native_ops")
            shutil.copytree(os.path.join(HERE, "native_ops"), to, dirs_exist_ok=True)


EXTRAS = {
    "cpu": ["tensorflow-cpu" + TENSORFLOW],
    "gpu": ["tensorflow[and-cuda]" + TENSORFLOW],
    "audio": ["tensorflow-io==0.37.1"],
    # built against the TensorFlow which is there: pip install --no-build-isolation, with setuptools < 80 and cmake
    "horovod": ["horovod==0.28.1", "packaging"],
    "kenlm": ["kenlm>=0.2"],
    "plot": ["matplotlib>=3.5"],
    "dev": ["mypy>=1.8", "pytest>=7.4", "pytest-xdist>=3.7,<4", "ruff>=0.6"],
}

setup(
    name="returnn-tf",
    version=version(),
    description="Sequence models written as a network dictionary, trained on TensorFlow 2",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9,<3.13",
    packages=find_packages(include=["returnn_tf", "returnn_tf.*"]),
    install_requires=["numpy>=1.23,<2", "h5py>=3,<4"],
    extras_require=EXTRAS,
    cmdclass={"build_py": BuildWithNativeSources},
    entry_points={"console_scripts": ["returnn-tf = returnn_tf.cli.main:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
