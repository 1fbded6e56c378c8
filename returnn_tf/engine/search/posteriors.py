"""Log posteriors of all sequences of a dataset: of a layer, or of HDF files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import CtcDataError, CtcError
from returnn_tf.datasets import Dataset, HDFDataset
from returnn_tf.datasets.vocabulary.spelling import Spelling
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.decoding.posteriors import log_posteriors
from returnn_tf.engine.passes.dataset_pass import DatasetPass
from returnn_tf.engine.passes.dump import dump_of
from returnn_tf.engine.passes.forward_pass import in_order
from returnn_tf.engine.passes.forwarder import Forwarder, ForwardResult
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.engine.search.times import InputFrames, frames_of_input, input_frames
from returnn_tf.logging.lines import phase_text
from returnn_tf.tensor import Data


class Posteriors(NamedTuple):
    """The log posteriors of a sequence.

    :param seq_index: of the sequence in the dataset or the files
    :param values: [frames, labels]
    :param seconds: of audio; None if that is not known
    :param step: seconds of a frame of the values; None if that is not known
    """

    tag: str
    seq_index: int
    values: NDArray[np.float32]
    seconds: Optional[float] = None
    step: Optional[float] = None


def posteriors_of_layer(
    forwarder: Forwarder, source: DataSource, epoch: int, frame_seconds: Optional[float]
) -> Iterator[Posteriors]:
    """Yield the posteriors of all sequences in the order of an epoch; nothing but on the chief.

    :param forwarder: of a layer [batch, time, labels]
    :param frame_seconds: between the frames of the data that the layer is computed from
    :raises DataError: the values are no posteriors
    """
    net = forwarder.net
    one_pass: DatasetPass[ForwardResult] = DatasetPass(
        phase_text("decode", epoch, source.name),
        forwarder.tensors,
        lambda tensors, batch: forwarder.run(tensors),
        source.world,
    )
    one_pass.dump = dump_of(net, source.name, epoch, source.world)
    order = list(forwarder.order)
    assert forwarder.output.feature_axis is not None
    feature = order.index(forwarder.output.feature_axis)
    frames = frames_of_posteriors(net.plan, forwarder.layer)

    def rows(step: Any) -> list[Posteriors]:
        result, batch = step.result, step.batch
        values = np.moveaxis(result.value, feature, -1)
        (lengths,) = result.lengths.values()
        inputs = None if frames is None else batch.feed.get(frames.feed_key)
        found = []
        for row, tag in enumerate(batch.seq_tags):
            seconds = step = None
            if frame_seconds is not None and inputs is not None:
                seconds = float(inputs[row]) * frame_seconds
                step = input_frames(int(inputs[row]), int(lengths[row])) * frame_seconds
            where = "Layer %r, sequence %r" % (forwarder.layer, tag)
            own = log_posteriors(values[row, : lengths[row]], where)
            found.append(Posteriors(tag, int(batch.seq_indices[row]), own, seconds, step))
        return found

    state = PassState()
    with contextlib.closing(one_pass.steps(source.batches(epoch, chunking=None), state)) as steps:
        yield from in_order(source.world, (rows(step) for step in steps))
    one_pass.log_end(state)


def frames_of_posteriors(plan: Plan, path: str) -> Optional[InputFrames]:
    """Return the data whose frames those of a layer with posteriors come from; None if it is not known which."""
    node = plan.by_path()[path]
    (axis,) = node.output.dynamic_axes
    return frames_of_input(plan, node, axis)


def is_posterior_layer(output: Data) -> bool:
    """Return whether a layer has a value for each frame and label."""
    return (
        output.batch_axis is not None
        and output.feature_axis is not None
        and output.dim is not None
        and output.rank == 3
        and len(output.dynamic_axes) == 1
    )


def posteriors_of_files(paths: Sequence[str], num_labels: int) -> Iterator[Posteriors]:
    """Yield the posteriors of all sequences of HDF files.

    :raises DataError: a file is missing, or has no posteriors of so many labels
    """
    with contextlib.closing(HDFDataset(files=list(paths))) as dataset:
        for index, example in enumerate(dataset.sequences()):
            values = example.data["data"]
            if values.ndim != 2 or values.shape[1] != num_labels:
                raise CtcDataError(
                    "%s, sequence %r: the posteriors are %s, but the model has %d labels: [frames, %d]."
                    % (", ".join(paths), example.tag, list(values.shape), num_labels, num_labels)
                )
            where = "%s, sequence %r" % (", ".join(paths), example.tag)
            yield Posteriors(example.tag, index, log_posteriors(values, where))


def check_reference(dataset: Optional[Dataset], key: str, source: str) -> None:
    """Check that references can be read from a data key.

    :param source: of the key: the setting, for the error
    :raises ConfigError: there is no such key, or it has no labels
    """
    known = [] if dataset is None else dataset.data_keys
    if dataset is None or key not in known:
        raise CtcError(
            "%s: the dataset to decode has no data key %r; it has: %s."
            % (source, key, ", ".join(known) or "none, as there is none")
        )
    if not dataset.data_specs[key].sparse:
        having = [name for name, spec in dataset.data_specs.items() if spec.sparse]
        raise CtcError(
            "%s: data key %r has values, not labels, which make up words. Keys with labels: %s."
            % (source, key, ", ".join(having) or "none")
        )


def references(
    dataset: Dataset, key: str, names: Sequence[str], epoch: int, tags: Optional[Iterable[str]] = None
) -> dict[str, list[str]]:
    """Return the words of the references by tag.

    :param key: data key with labels
    :param names: of the labels; without any, 256 labels are bytes, and others words
    :param tags: of the sequences; default: all
    :raises DataError: see `Dataset`
    """
    if not names and dataset.num_outputs[key] == (256, 1):
        names = [chr(byte) for byte in range(256)]
    spelling = Spelling(names)
    wanted, found = None if tags is None else set(tags), {}
    with contextlib.closing(dataset.open_epoch(epoch, [key])) as reader:
        position = 0
        while reader.has(position):
            if not reader.is_usable(position):
                position += 1
                continue
            position, examples = reader.sequences(position)
            for example in examples:
                if wanted is None or example.tag in wanted:
                    labels = [int(label) for label in np.ravel(example.data[key])]
                    text = [names[label] if label < len(names) else str(label) for label in labels]
                    found[example.tag] = [word for word, _, _ in spelling.spans(text)]
    return found
