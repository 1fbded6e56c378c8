"""Planning the layers of a step in rounds, until the templates of all ``prev:`` values are known.

The template of a layer follows from those of its sources. In a loop that is circular: ``prev:output`` has the template
of ``output``, which follows from that of ``prev:output``. So all layers of a step are planned several times. In each
round ``prev:x`` has the template that ``x`` had in the previous round; in the first round it is unknown. A layer that
cannot be planned because a source is unknown gets a guess instead of a template: [batch, n_out] where its options
give the output size, else unknown again. Planning ends with the first round in which

* each layer has the template that its ``prev:`` value was given (`same_template`), and
* nothing was guessed.

Example, with a source of dim 4::

    "s": {"class": "layer_norm", "from": "prev:output"}
    "t": {"class": "copy", "from": ["s", "data:source"]}
    "output": {"class": "linear", "activation": None, "n_out": 3, "from": "t"}

    =====  ===============  =================  =================  ==================
    round  prev:output      s                  t                  output
    =====  ===============  =================  =================  ==================
    1      unknown          guessed: unknown   guessed: unknown   guessed: [batch,3]
    2      [batch,3]        [batch,3]          [batch,7]          [batch,3]
    =====  ===============  =================  =================  ==================

Round 2 guesses nothing and confirms [batch,3], so it is the last.

In these rounds errors are held back, since they may only mean that something is still unknown. Two conditions end
this: all values are known but have not converged, or they have converged and the same layers as in the previous round
are guessed, so that no further round will add information. The next round is then strict: a layer that cannot be
planned is an error. If a previous round found an error in a layer whose sources were all known, that one is raised,
since it is closer to the cause. Loops whose templates never converge, e.g. because each step appends to an axis, end
with an error after `MAX_ROUNDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.graph.hidden_state import HiddenState
from returnn_tf.loops.nodes import PrevLayer
from returnn_tf.tensor import Data

MAX_ROUNDS = 20


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings of one round.

    :param templates: by name of the layers referenced by ``prev:``
    :param states: the hidden states of these layers
    :param guessed: paths of the layers whose templates are guesses
    """

    templates: Mapping[str, Data] = dataclasses.field(default_factory=dict)
    states: Mapping[str, Optional[HiddenState]] = dataclasses.field(default_factory=dict)
    guessed: frozenset[str] = frozenset()

    def prev(self, name: str) -> KnownPrev:
        """Return ``prev:<name>`` for the next round."""
        return KnownPrev(name, self.templates.get(name), self.states.get(name))


class KnownPrev(PrevLayer):
    """`PrevLayer` with the template that the layer had in the previous round.

    :param of: name of the layer
    :param data: its template, None in the first round
    :param hidden_state: the state that it carries from step to step, if any
    """

    def __init__(self, of: str, data: Optional[Data], hidden_state: Optional[HiddenState]) -> None:
        super().__init__(of)
        self._data = data
        self.hidden_state = hidden_state

    def template(self, ctx: Any) -> Data:
        """Return the template known so far."""
        return Data((), unknown=True) if self._data is None else self._data


def same_template(a: Data, b: Data) -> bool:
    """Return whether two templates are the same, except for dims that a later round created again."""
    return (
        a.unknown == b.unknown
        and a.rank == b.rank
        and a.dtype == b.dtype
        and a.feature_axis == b.feature_axis
        and (a.sparse_dim is None) == (b.sparse_dim is None)
        and all(x is y or x.agrees_with(y) for x, y in zip(a.dims, b.dims))
    )
