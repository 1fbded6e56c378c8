"""Targets with the option ``state``: the network as a function of a block of frames and a state, checked by blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.config.options import at_least, option
from returnn_tf.engine.search.joined_hypotheses import JoinedHypotheses
from returnn_tf.export.exporters import ROUNDED_TOLERANCE, Exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.sample import random_batch
from returnn_tf.export.streaming import StreamingModel
from returnn_tf.export.tensor_info import VALUE, TensorInfo, graph_name
from returnn_tf.graph.layer import Node
from returnn_tf.loops.frame import loop_of
from returnn_tf.loops.nodes import ExitLayer
from returnn_tf.util.lazy_tf import tf

#: Sizes of the blocks in which the sample is fed, in multiples of the smallest one.
_BLOCKS = (3, 1, 1, 2, 5, 1)
_TOLERANCE = 1e-5
Arrays = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(eq=False, repr=False)
class StreamingExporter(Exporter):
    """A target with the option ``state``."""

    state: bool = option(
        False,
        help="the state of recurrent layers is input and output, so that sequences are computed block by block",
    )
    block: int = option(1, check=at_least(1), help="with state: number of frames that blocks are multiples of")

    def model(self, net: Network) -> InferenceModel:
        """Return the model; with state, it is checked to compute block by block what it does for whole sequences."""
        if not self.state:
            return super().model(net)
        model = StreamingModel(net, self.outputs)
        if model.has_search:
            raise ExportError(
                "Export with state: the layer %r has the hypotheses of a search, which would have to be followed from "
                "block to block of frames. Export its scores."
                % next(node.path for node in model.nodes if node.output.beam is not None)
            )
        check_stream(model, self.block)
        return model


def check_stream(model: StreamingModel, block: int) -> None:
    """Compare blocks of a ragged sample with its whole sequences.

    :param block: number of frames that blocks are multiples of
    :raises ConfigError: they differ; names the first layer that does, and why. Or there is no state
    """
    fault = stream_fault(model, block)
    if fault is not None:
        raise ExportError("%s Export without state, or replace it." % fault)
    if not model.states:
        raise ExportError(
            "Export with state: none of the layers is recurrent, a frame of the outputs depends on this frame alone.%s "
            "Export without." % _moved_out(model)
        )


def stream_fault(model: StreamingModel, block: int) -> Optional[str]:
    """Return which layer gives something else for blocks of a ragged sample than for its whole sequences, and how.

    None: none does. Parameters as for `check_stream`.
    """
    if _fault(model, block) is None:
        return None
    for nodes in ([_layers(model)], [[node] for node in _layers(model)]):
        for group in nodes:
            found = _first_wrong(model, group, block)
            if found is not None:
                return found
    return "The outputs depend on more than the frames so far."


def _layers(model: InferenceModel) -> list[Node]:
    """Return the layers that the outputs need, in the order of their computation."""
    needed = model.net.plan.needed(model.nodes)
    return [n for n in model.net.plan.nodes if n in needed and n.extern_key is None and not n.layer.is_connector]


def _moved_out(model: InferenceModel) -> str:
    """Return a sentence on the loops of which no layer is left in a loop, or ""."""
    needed = model.net.plan.needed(model.nodes)
    loops = {node.path.rpartition("/")[0] for node in needed if isinstance(node.layer, ExitLayer)}
    loops -= {loop.path for loop in map(loop_of, needed) if loop is not None}
    if not loops:
        return ""
    names = " and ".join(map(repr, sorted(loops)))
    return " No layer of %s needs an earlier step, so that all are computed for all frames at once." % names


def _first_wrong(model: StreamingModel, nodes: Sequence[Node], block: int) -> Optional[str]:
    """Return a sentence on the first layer that differs; None if none does, or several can't be run at once."""
    start = "Layer %r (class %r) can't go on from block to block of frames: "
    fault = _fault(StreamingModel(model.net, [node.path for node in nodes]), block)
    if fault is None:
        return None
    name, text = fault
    for node in nodes:
        if graph_name(node.path) == name or len(nodes) == 1:
            return (start + "%s.") % (node.path, node.layer.class_name, text)
    return None


def _fault(model: InferenceModel, block: int) -> Optional[tuple[str, str]]:
    """Return (name of the first output that differs, how); None if none does. The name is "" if it could not be run."""
    try:
        return _compared(model, block)
    except (tf.errors.OpError, ValueError) as exc:
        lines = [line for line in str(exc).splitlines() if line.strip()]
        return "", "a block of frames can't be computed by itself (%s)" % (lines[0] if lines else type(exc).__name__)


def _compared(model: InferenceModel, block: int) -> Optional[tuple[str, str]]:
    frames = block * sum(_BLOCKS)
    feed = random_batch(model.net.extern_data, model.keys, frames=frames, shorter=0)
    sample = {name: feed[key] for name, key in model.feed_keys.items()}
    if isinstance(model, StreamingModel) and model.has_search:
        # where padding counts in a search, it does not in a stream
        lengths = [name for info in model.input_infos.values() for name in info.lengths.values()]
        sample.update({name: np.full_like(sample[name], frames) for name in lengths})
    whole = model.of_whole_sequences.expected(sample)
    blocks = list(_run_blocks(model, sample, block))
    tolerance = ROUNDED_TOLERANCE if model.net.plan.rounded else _TOLERANCE
    for name, info in model.outputs.items():
        if info.kind == VALUE and info.beam is not None:
            found = _search_difference(info, whole, blocks, tolerance)
        elif info.kind == VALUE:
            found = _difference(info, whole, blocks, tolerance)
        else:
            found = None
        if found is not None:
            return name, found
    return None


def _run_blocks(model: InferenceModel, sample: Arrays, block: int) -> Iterator[Arrays]:
    """Yield the outputs for each block of the sample."""
    batch = next(
        (len(sample[n]) for n, info in model.input_infos.items() if info.axes[:1] == ("B",) and n in sample), 1
    )
    states = model.zero_states(batch) if isinstance(model, StreamingModel) else {}
    begin = 0
    for size in _BLOCKS:
        end = begin + size * block
        if isinstance(model, StreamingModel) and end == sum(_BLOCKS) * block:
            states = model.at_end(states)
        outputs = model.expected({**_cut(model.input_infos, sample, begin, end), **states})
        yield outputs
        if isinstance(model, StreamingModel):
            states = {name: outputs[after] for name, after in model.states.items()}
        begin = end


def _cut(infos: Mapping[str, TensorInfo], sample: Arrays, begin: int, end: int) -> dict[str, NDArray[Any]]:
    """Return some frames of all sequences."""
    found = dict(sample)
    for name, info in infos.items():
        for axis, lens in info.lengths.items():
            found[lens] = np.clip(sample[lens] - begin, 0, end - begin)
            found[name] = np.take(found[name], range(begin, min(end, found[name].shape[axis])), axis)
    return found


def _difference(info: TensorInfo, whole: Arrays, blocks: Sequence[Arrays], tolerance: float) -> Optional[str]:
    """Return the difference of the frames of the blocks from those of the whole sequences, or None.

    Of a value without lengths, only the last block counts.
    """
    expected = whole[info.name]
    if not info.lengths or info.axes[:1] != ("B",):
        return _differs(expected, blocks[-1][info.name], "its value after the last block", tolerance)
    axis, lens = next(iter(info.lengths.items()))
    for seq in range(len(expected)):
        parts = [_frames(b[info.name][seq], b[lens], seq, axis - 1) for b in blocks]
        if len({tuple(np.delete(part.shape, axis - 1)) for part in parts}) > 1:
            return "the shape of its output depends on the number of frames"
        found = _differs(
            _frames(expected[seq], whole[lens], seq, axis - 1),
            np.concatenate(parts, axis - 1),
            "some of its frames",
            tolerance,
        )
        if found is not None:
            return found
    return None


def _search_difference(info: TensorInfo, whole: Arrays, blocks: Sequence[Arrays], tolerance: float) -> Optional[str]:
    """Return the difference of the hypotheses, followed through the blocks, from those of whole sequences, or None.

    Those with almost the same scores may have another order.
    """
    expected = whole[info.name + "_scores"]
    found = _differs(expected, blocks[-1][info.name + "_scores"], "the scores of its hypotheses", tolerance)
    if found is not None or not info.lengths:
        return found
    axis, lens = next(iter(info.lengths.items()))
    for seq, scores in enumerate(expected):
        beam, joined = len(scores), JoinedHypotheses()
        rows = range(seq * beam, (seq + 1) * beam)
        for outputs in blocks:
            values = [
                {"": np.moveaxis(_frames(outputs[info.name][r], outputs[lens], r, axis - 1), axis - 1, 0)} for r in rows
            ]
            joined.add(values, outputs[info.name + "_sources"][seq].tolist())
        near = tolerance * max(1.0, float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0)))
        for entry, row in enumerate(rows):
            if np.isfinite(scores[entry]) and (np.abs(np.delete(scores, entry) - scores[entry]) > near).all():
                own = np.moveaxis(_frames(whole[info.name][row], whole[lens], row, axis - 1), axis - 1, 0)
                found = _differs(own, joined.values(entry)[""], "its hypotheses", tolerance)
                if found is not None:
                    return found
    return None


def _frames(value: NDArray[Any], lens: NDArray[Any], seq: int, axis: int) -> NDArray[Any]:
    length = lens[seq] if lens.ndim == 1 else value.shape[axis]
    return np.take(value, range(min(int(length), value.shape[axis])), axis)


def _differs(expected: NDArray[Any], got: NDArray[Any], what: str, tolerance: float) -> Optional[str]:
    if expected.shape != got.shape:
        return "it gives %s frames in all, but %s for whole sequences" % (list(got.shape), list(expected.shape))
    if expected.dtype.kind in "fc":
        bound = tolerance * max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        equal = np.isclose(got, expected, rtol=0, atol=bound, equal_nan=True)
    else:
        equal = got == expected
    return None if equal.all() else "%s depend on more than the frames before them" % what
