"""Files that ops of graphs need, such as language models: they know them by name.

In this process a library has what was read of a file; in an export, the file is in the folder of the library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The attribute of an op with the name of a file; "" if it needs none.
ATTRIBUTE = "file"

_contents: dict[str, NDArray[np.uint8]] = {}


def share_file(name: str, content: NDArray[np.uint8]) -> None:
    """Keep the content of a file that an op of this process may have, decompressed, for exports."""
    _contents[name] = content


def files_of(ops: Any) -> dict[str, NDArray[np.uint8]]:
    """Return the files that ops need: name -> bytes.

    :param ops: nodes of a graph
    """
    names = {op.attr[ATTRIBUTE].s.decode("utf8", "surrogateescape") for op in ops if ATTRIBUTE in op.attr}
    return {name: _contents[name] for name in sorted(names & _contents.keys())}
