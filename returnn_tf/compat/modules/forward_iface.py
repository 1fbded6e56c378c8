"""``from returnn.forward_iface import ForwardCallbackIface``: the base of classes for ``forward_callback``."""

from __future__ import annotations

from typing import Any

from returnn_tf.compat.imports.stand_ins import register_compat

register_compat(__name__, "returnn.forward_iface")

__all__ = ["ForwardCallbackIface"]


class ForwardCallbackIface:
    """Receives the outputs of task forward; a subclass implements `process_seq`, and the others if it needs them."""

    def init(self, *, model: Any) -> None:
        """Prepare for the sequences.

        :param model: `Network`
        """

    def process_seq(self, *, seq_tag: str, outputs: Any) -> None:
        """Process the outputs of a sequence.

        :param outputs: name -> output with ``raw_tensor`` (array without batch axis) and ``dims``
        """
        raise NotImplementedError("%s.process_seq" % type(self).__name__)

    def finish(self) -> None:
        """Finish, after the last sequence."""
