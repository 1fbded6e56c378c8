"""``from returnn.import_ import import_``: modules in checkouts of Git repositories."""

from __future__ import annotations

import os
import re
import sys
import types
from typing import Any, Optional

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.config.errors import CodeError
from returnn_tf.config.user_files import load_user_file

register_compat(__name__, "returnn.import_")

__all__ = ["import_"]

#: The environment variable with the folder of the checkouts.
FOLDER = "RETURNN_TF_CHECKOUTS"


def import_(repo: str, path: str = "", version: Optional[str] = None) -> Any:
    """Return a module in a checkout of a repository. Nothing is downloaded.

    The checkout is the folder ``$RETURNN_TF_CHECKOUTS/<repo>``, e.g. ``.../github.com/user/name``.

    :param repo: e.g. "github.com/user/name"
    :param path: of the module in it, a file without ".py" or a folder
    :param version: date and the first digits of the commit, e.g. "20211231-0123456789ab"; checked
    :raises ConfigError: there is no such checkout or module, or it has another commit; says what to run
    """
    base = os.environ.get(FOLDER)
    commit = version.rpartition("-")[2] if version else ""
    where = os.path.join(base or "FOLDER", *repo.split("/"))
    clone = "git clone https://%s %s%s" % (repo, where, " && git -C %s checkout %s" % (where, commit) if commit else "")
    if base is None or not os.path.isdir(where):
        raise CodeError(
            "import_(%r, %r): modules are not downloaded. Check the repository out once, and name the folder: "
            "%s; export %s=%s" % (repo, path, clone, FOLDER, base or "FOLDER")
        )
    found = _commit_of(where)
    if commit and found and not found.startswith(commit):
        raise CodeError("import_(%r, %r): the commit should be %s, but the checkout %r has %s. Run: git -C %s "
                          "checkout %s" % (repo, path, commit, where, found[: len(commit)], where, commit))  # fmt: skip
    return _module(where, path, "returnn_tf_checkout_%s" % _identifier(repo))


def _module(where: str, path: str, name: str) -> Any:
    """Return a module, with the folders around it as packages."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if parts and parts[-1].endswith(".py"):
        parts[-1] = parts[-1][: -len(".py")]
    for i in range(len(parts) + 1):
        place = os.path.join(where, *parts[:i])
        full = ".".join([name, *map(_identifier, parts[:i])])
        if os.path.exists(place + ".py"):
            module = load_user_file(full, place + ".py")
        elif os.path.exists(os.path.join(place, "__init__.py")):
            module = load_user_file(full, os.path.join(place, "__init__.py"))
        elif os.path.isdir(place):
            module = sys.modules.setdefault(full, types.ModuleType(full))
            module.__path__ = [place]
        else:
            raise CodeError("import_: there is no module %r in the checkout %r." % (path, where))
        if i:
            setattr(sys.modules[full.rpartition(".")[0]], full.rpartition(".")[2], module)
    return module


def _identifier(text: str) -> str:
    text = re.sub(r"\W", "_", text)
    return text if not text[:1].isdigit() else "_" + text


def _commit_of(folder: str) -> str:
    """Return the commit that is checked out, "" if it is unknown."""
    try:
        with open(os.path.join(folder, ".git", "HEAD"), encoding="utf8") as file:
            head = file.read().strip()
        if not head.startswith("ref: "):
            return head
        with open(os.path.join(folder, ".git", head[len("ref: ") :]), encoding="utf8") as file:
            return file.read().strip()
    except OSError:
        return ""
