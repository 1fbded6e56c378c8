"""Reads recorded cases (config + npz) and compares a network with their numbers. The format is in
tests/data/parity/README.md."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

import returnn_tf

ROOT = Path(__file__).parent / "data" / "parity"


def find_cases(*groups: str) -> list[str]:
    """Return names "<group>/<case>"."""
    names = []
    for group in groups:
        names += sorted(
            "%s/%s" % (group, p.stem) for p in (ROOT / group).glob("*.config") if p.with_suffix(".npz").exists()
        )
    return names


def contents(name: str) -> set[Any]:
    """Return what a case covers: its settings, and what `_contents_of` says of its network."""
    path = ROOT / (name + ".config")
    config: dict[str, Any] = {}
    exec(path.read_text("utf8"), config)
    with np.load(path.with_suffix(".npz")) as file:
        meta = json.loads(str(file["meta"]))
    network = config.pop("network")
    settings = {(key, value) for key, value in config.items() if isinstance(value, (str, int, float))}
    return settings | set(_contents_of(network, "", (meta["train_flag"], meta["search_flag"])))


def _contents_of(layers: Mapping[str, Any], around: str, task: Any) -> Iterator[Any]:
    """Yield each class with the task and with each option, both with the class around it, and each name as a value."""
    for layer in layers.values():
        cls = layer["class"]
        yield around, cls, task
        for option, value in layer.items():
            if option in ("class", "from"):
                continue
            inner = {"": value} if _is_layer(value) else value
            if isinstance(inner, dict) and any(map(_is_layer, inner.values())):
                inner = {key: part for key, part in inner.items() if _is_layer(part)}
                yield from _contents_of(inner, cls, task)
            elif isinstance(value, dict):
                yield from ((around, cls, option, key) for key in value)
            else:
                yield around, cls, option
                if isinstance(value, str) and value.isidentifier() and len(value) > 1 and value not in layers:
                    yield cls, option, value.lower()  # a name of what is computed


def _is_layer(value: Any) -> bool:
    return isinstance(value, dict) and "class" in value


def numbers_by_prefix(ref: Any, prefix: str) -> dict[str, np.ndarray]:
    """Return all arrays below a prefix."""
    return {k[len(prefix) :]: ref[k] for k in ref if k.startswith(prefix)}


def valid_mask(value: np.ndarray, axes: list[str], sizes: dict[int, np.ndarray]) -> np.ndarray:
    """Return True for the entries inside of the sequence lengths."""
    mask = np.ones(value.shape, bool)
    if not axes or axes[0] != "B":
        return mask
    for axis, lens in sizes.items():
        if lens.shape[:1] != value.shape[:1]:
            continue
        shape = [1] * value.ndim
        shape[axis] = value.shape[axis]
        mask &= np.arange(value.shape[axis]).reshape(shape) < lens.reshape(
            [*lens.shape, *[1] * (value.ndim - lens.ndim)]
        )
    return mask


def assert_close(
    what: str, got: Any, expected: Any, rtol: float, atol: float, mask: Optional[np.ndarray] = None
) -> None:
    """Check for the same shape, and for equality within the tolerance where the mask is True."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, "%s: shape %s, expected %s" % (what, got.shape, expected.shape)
    if mask is not None:
        got, expected = got[mask], expected[mask]
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=what)


def load_network(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return (network with the recorded parameters, the arrays by name, its meta dict)."""
    path = ROOT / (name + ".config")
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
        ref = dict(file)
    meta = json.loads(str(ref["meta"]))
    config = returnn_tf.Config.from_file(str(path))
    net = returnn_tf.Network.from_config(config, train=bool(meta["train_flag"]), search=bool(meta["search_flag"]))
    params = numbers_by_prefix(ref, "param/")
    assert set(net.params) == set(params)
    net.set_param_values(params)
    return net, ref, meta


def check_case(name: str, *, any_order: Collection[str] = ()) -> None:
    """Compare axes, lengths and values of all layers, losses, errors, the total loss and all gradients.

    :param any_order: layers [batch, time] with sequences whose labels may be in another order
    """
    net, ref, meta = load_network(name)
    rtol, atol = max(meta.get("rtol", 0.0), 1e-4), max(meta.get("atol", 0.0), 1e-5)
    grads = numbers_by_prefix(ref, "grad/")
    out = net.run(numbers_by_prefix(ref, "in/"), with_grad=bool(grads))
    for key in ref:
        if not (key.startswith("out/") and key.endswith("/axes")):
            continue
        layer = key[len("out/") : -len("/axes")]
        got = out.layers[layer]
        axes = [a for a in str(ref[key]).split(",") if a]
        assert list(got.axes) == axes, layer
        sizes = {int(k): v for k, v in numbers_by_prefix(ref, "out/%s/size" % layer).items()}
        for axis, lens in sizes.items():
            assert_close("lengths of %s axis %d" % (layer, axis), got.sizes[axis], lens, 0, 0)
        expected, value = ref["out/" + layer], got.value
        if layer in any_order:
            assert axes == ["B", "T"] and (sizes[1] == expected.shape[1]).all()
            expected, value = np.sort(expected), np.sort(value)
        assert_close(layer, value, expected, rtol, atol, valid_mask(expected, axes, sizes))
    for kind, mine in (("loss/", out.losses), ("error/", out.errors)):
        for layer, expected in numbers_by_prefix(ref, kind).items():
            assert_close(kind + layer, mine[layer], expected, rtol, atol)
    if "total_loss" in ref:
        assert_close("total_loss", out.total_loss, ref["total_loss"], rtol, atol)
    for param, expected in grads.items():
        assert_close("grad " + param, out.grads[param], expected, max(rtol, 1e-3), max(atol, 1e-4))
