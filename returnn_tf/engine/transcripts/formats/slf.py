"""``slf``: lattices in the Standard Lattice Format of HTK, a file for each sequence.

A node ``I=`` is a state, with the time ``t=`` in seconds if it is known; a link ``J=`` from ``S=`` to ``E=`` is the
word ``W=``, with the natural log scores ``a=`` of the acoustic and ``l=`` of the language model. All paths end in the
last node, by links with the word ``!NULL``. A backslash stands before backslashes, and before quotes at the begin of a
word, where HTK takes them for quotes around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from returnn_tf.engine.transcripts.formats.base import column, register_format
from returnn_tf.engine.transcripts.lattice import Arc, lattice_of, number
from returnn_tf.engine.transcripts.transcript import Transcript


@register_format("slf", "lattices of HTK", ".slf", of_one=True, has_all=True)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    lattice = lattice_of(transcript)
    end = len(lattice.times)
    arcs = [*lattice.arcs, *(Arc(state, end, "!NULL", scores) for state, scores in lattice.finals.items())]
    yield "VERSION=1.0\nUTTERANCE=%s\nlmscale=1 wdpenalty=0\nN=%d L=%d\n" % (
        _string(column(transcript.tag, transcript, "tag")),
        end + 1,
        len(arcs),
    )
    known = [time for time in lattice.times if time is not None]
    last = transcript.duration if transcript.duration is not None else max(known)
    for node, time in enumerate([*lattice.times, last if len(known) == end else None]):
        yield "I=%d%s\n" % (node, "" if time is None else " t=%.3f" % time)
    for link, arc in enumerate(arcs):
        scores = number(arc.scores.acoustic), number(arc.scores.lm)
        word = _string(column(arc.word, transcript, "word"))
        yield "J=%d S=%d E=%d W=%s a=%s l=%s\n" % (link, arc.start, arc.end, word, *scores)


def _string(text: str) -> str:
    """Return a text as HTK reads it."""
    escaped = text.replace("\\", "\\\\")
    return "\\" + escaped if text[0] in "'\"" else escaped
