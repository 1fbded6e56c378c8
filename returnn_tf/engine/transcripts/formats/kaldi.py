"""``kaldi``: lattices in the text form of Kaldi's compact lattices, an archive of all sequences.

The tag, a line ``from to word graph-cost,acoustic-cost,`` for each arc and ``state graph-cost,acoustic-cost,`` for
each final state, and an empty line. Costs are negative log scores. Words are texts, as behind ``utils/int2sym.pl -f
3``, and Kaldi's programs read them behind ``utils/sym2int.pl -f 3 words.txt``; there are no transition ids, hence the
comma at the end::

    dev-1
    0 1 seven 1.4,3.21,
    1 0,0,
"""

from __future__ import annotations

from collections.abc import Iterator

from returnn_tf.engine.transcripts.formats.base import column, register_format
from returnn_tf.engine.transcripts.lattice import ArcScores, lattice_of, number
from returnn_tf.engine.transcripts.transcript import Transcript


@register_format("kaldi", "lattices in Kaldi's text form", ".lat.txt", has_all=True)
def lines(transcript: Transcript) -> Iterator[str]:
    """Return the lines of a sequence, see above."""
    lattice = lattice_of(transcript)
    yield column(transcript.tag, transcript, "tag") + "\n"
    for arc in lattice.arcs:
        word = column(arc.word, transcript, "word")
        yield "%d %d %s %s\n" % (arc.start, arc.end, word, _costs(arc.scores))
    for state, scores in lattice.finals.items():
        yield "%d %s\n" % (state, _costs(scores))
    yield "\n"


def _costs(scores: ArcScores) -> str:
    return "%s,%s," % (number(-scores.lm), number(-scores.acoustic))
