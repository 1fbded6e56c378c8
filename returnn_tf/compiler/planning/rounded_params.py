"""The parameters that the setting ``quantize`` stores as smaller numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Optional

from returnn_tf.config.errors import SettingError, did_you_mean
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.reuse import CustomParam
from returnn_tf.graph.quantization import Quantization
from returnn_tf.graph.rounded_variable import KINDS, RoundedSpec
from returnn_tf.ops.rounded import RoundedMatrix

#: Smaller matrices stay float32: they take hardly any memory, and rounding their input takes long beside the product.
LEAST_SIZE = 2**14
#: Why `quantize` has no effect.
NOTHING_TO_STORE = "no matrix with at least %d numbers is left that could be rounded. Omit quantize." % LEAST_SIZE


def rounded_params(nodes: Sequence[Node], options: Quantization) -> dict[str, RoundedSpec]:
    """Return the parameters by name: large matrices that all their layers read as products or rows of labels.

    :param nodes: all layers, also those inside others
    :raises ConfigError: there are none; a pattern leaves nothing out; a product is too long for sums in int32
    """
    kind = KINDS[options.dtype]
    found = _matrices(nodes, kind)
    excluded: set[str] = set()
    for pattern in options.exclude:
        matching = {
            spec.param.name for spec, readers in found.values() if any(fnmatchcase(n.path, pattern) for n in readers)
        }
        if not matching:
            paths = sorted({node.path for _, readers in found.values() for node in readers})
            raise SettingError(
                "quantize: 'exclude' has %r, but no layer of this name or pattern has a parameter that would be stored "
                "as %s. %s" % (pattern, options.dtype, did_you_mean(pattern, paths))
            )
        excluded |= matching
    kept = {name: spec for name, (spec, _) in found.items() if name not in excluded}
    if not kept:
        raise SettingError("quantize: " + NOTHING_TO_STORE)
    for name, spec in kept.items():
        if kind.longest is not None and spec.depth > kind.longest:
            node = found[name][1][0]
            raise SettingError(
                "quantize: layer %r (class %r) sums up %d products, but int32 can hold the sum of %d products of int8. "
                "Leave it out: quantize = {'dtype': 'int8', 'exclude': [%r]}."
                % (node.path, node.layer.class_name, spec.depth, kind.longest, node.path)
            )
    return kept


def _matrices(nodes: Iterable[Node], kind: type[RoundedMatrix]) -> dict[str, tuple[RoundedSpec, list[Node]]]:
    """Return the matrices that could be rounded, with the layers that read them."""
    readers: dict[ParamSpec, list[Node]] = {}
    axes: dict[ParamSpec, set[Optional[int]]] = {}
    for node in nodes:
        for name, provider in node.params.items():
            if isinstance(provider, ParamSpec):
                readers.setdefault(provider, []).append(node)
                axes.setdefault(provider, set()).add(node.layer.channel_axes().get(name))
            elif isinstance(provider, CustomParam):
                for other in provider.used.values():  # a function of the config reads them as variables
                    axes.setdefault(other, set()).add(None)
    found = {}
    for spec, (axis, *others) in axes.items():
        if spec not in readers or axis is None or others:
            continue
        if spec.size >= LEAST_SIZE and spec.dtype == "float32":
            found[spec.name] = RoundedSpec(spec, axis, kind), readers[spec]
    return found
