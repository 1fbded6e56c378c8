"""What the body of a loop shares with the lowering around it."""

import dataclasses
from typing import Any

from returnn_tf.graph.lowering import Lowering, LoweringOptions
from returnn_tf.graph.semantics import Semantics


def test_what_a_child_shares_with_its_parent() -> None:
    parent = Lowering(LoweringOptions(train=True, search=False, semantics=Semantics()))
    parent.loop.continues = True
    child = parent.child()
    assert child.is_child and not child.loop.continues
    shared = set()
    for topic in dataclasses.fields(Lowering):
        outer: Any = getattr(parent, topic.name)
        inner: Any = getattr(child, topic.name)
        for field in dataclasses.fields(outer) if dataclasses.is_dataclass(outer) else ():
            value = getattr(outer, field.name)
            if isinstance(value, (dict, list)) and value is getattr(inner, field.name):
                shared.add("%s.%s" % (topic.name, field.name))
    # All else that layers of a loop add must stay inside of it: its ops can't be read outside.
    assert shared == {"options.readers", "options.scales", "params.variables", "after_step.meta_losses"}


def test_updates_in_a_child_are_its_own() -> None:
    parent = Lowering(LoweringOptions(train=True, search=False, semantics=Semantics()))
    parent.after_step.updates.append(lambda: None)
    assert parent.child().after_step.updates == []
