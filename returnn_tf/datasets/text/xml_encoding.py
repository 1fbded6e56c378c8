"""XML files in encodings that the parser of Python does not know by the name which the file gives."""

from __future__ import annotations

import codecs
import re
from typing import IO, Any

#: The first line of a file with the name of its encoding, perhaps behind a byte order mark.
_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?\s*<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([A-Za-z][\w.-]*)[\"']")
_LONGEST = 256
#: Names of encodings that the parser knows; its errors tell the line.
_KNOWN = ("utf-8", "utf-16", "iso-8859-1", "us-ascii")


def decoded(file: IO[bytes]) -> Any:
    """Return an XML file for a parser: as text if it declares an encoding under a name that only Python knows.

    The parser knows ``UTF-8``, but not ``utf8``, as some programs write it, nor most encodings with several bytes per
    character.

    :param file: at its begin
    :raises ValueError: the encoding is unknown
    """
    match = _DECLARATION.match(file.read(_LONGEST))
    file.seek(0)
    name = match.group(1).decode("ascii").lower() if match else _KNOWN[0]
    if name in _KNOWN:
        return file
    try:
        codec = codecs.lookup(name).name
    except LookupError:
        raise ValueError("it declares the encoding %r, which is unknown" % name) from None
    return codecs.getreader("utf-8-sig" if codec == "utf-8" else codec)(file)
