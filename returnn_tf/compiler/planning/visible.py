"""What a layer needs, as users see it."""

from __future__ import annotations

from returnn_tf.graph.layer import Node


def visible_deps(node: Node) -> list[Node]:
    """Return what a layer needs, looking through the nodes that only connect a loop with the outside."""
    found: list[Node] = []
    todo = list(node.deps)
    seen: set[Node] = set()
    while todo:
        dep = todo.pop(0)
        if dep in seen:
            continue
        seen.add(dep)
        if not dep.layer.is_connector:
            found.append(dep)
        else:
            of = dep.layer.of
            todo += [of] if isinstance(of, Node) else dep.sources
    return found
