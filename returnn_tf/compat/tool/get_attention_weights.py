"""``returnn-tf tool get-attention-weights``: the attention weights of a model for sequences of a dataset."""

from __future__ import annotations

import argparse
import contextlib
import glob
import itertools
import os
from collections.abc import Generator
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.data.dump import file_name
from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.network_changes import change_networks, with_dropout, with_outputs_of_loop
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, configure_log, parse
from returnn_tf.compat.tool.shared.datasets import OpenDataset, of_config
from returnn_tf.compat.tool.shared.order import add_order_arguments, set_dataset
from returnn_tf.compat.tool.shared.text_files import check_is_new
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.datasets import HDFWriter
from returnn_tf.engine.monitoring.pictures import check_matplotlib, new_figure
from returnn_tf.engine.passes.dataset_pass import DatasetPass, steps_over_sequences
from returnn_tf.engine.passes.layer_values import LayerValues, SeqValue
from returnn_tf.engine.support.atomic_files import staging
from returnn_tf.engine.training.load_model import load_network

_DOC = """
Write the attention weights of a model, [labels, frames, ...] for each sequence of a dataset.

    returnn-tf tool get-attention-weights my.config --epoch 20 --data dev --num_seqs 10 --output_format png
    returnn-tf tool get-attention-weights my.config --layers att_weights --output_file weights.hdf --do_search

The labels are those of the data, or with --do_search the best hypothesis. Formats: npy, a file TAG.npy for each
sequence in --dump_dir, with a dict of tag, output, output_len, encoder_len and rec_<layer>; png, pictures; hdf, one
file with the weights of one layer, flattened to [labels * frames, ...], and their sizes.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool get-attention-weights", _DOC)
    add = result.add_argument
    add("source", metavar="CONFIG_OR_MODEL_DIR", help="a config, or a folder with one in it or beside it")
    add("--epoch", metavar="N", type=positive, help="of the checkpoint; default: as the config says, else the newest")
    add("--data", metavar="NAME", default="train", help="dataset in the config (train), or as text")
    add("--do_search", action="store_true", help="search, and write the weights of the best hypothesis")
    add("--beam_size", metavar="N", type=positive, default=12, help="of the search (12)")
    add("--dump_dir", metavar="FOLDER", default="get-attention-weights", help="folder for npy and png")
    add("--output_file", metavar="OUT.hdf", help="file for hdf")
    add("--layers", metavar="NAME", nargs="+", default=["att_weights"], help="layers in the loop (att_weights)")
    add("--rec_layer", metavar="NAME", default="output", help="the loop (output)")
    add("--enc_layer", metavar="NAME", default="encoder", help="the encoder (encoder), for its length")
    add("--batch_size", metavar="N", type=positive, default=5000, help="frames of a batch (5000)")
    add("--seq_list", metavar="TAG", nargs="+", help="these sequences")
    add("--num_seqs", metavar="N", type=positive, help="number of sequences")
    add("--output_format", choices=["npy", "png", "hdf"], help="default: hdf with --output_file, else npy")
    add("--train_flag", action="store_true", help="as in training: with dropout")
    add("--dropout", metavar="P", type=float, help="rate for all layers with dropout")
    add_order_arguments(result)
    add_verbosity(result)
    return result


@register_tool("get-attention-weights", parser)
def run(args: list[str]) -> int:
    """Write the weights.

    :param args: the arguments of the tool
    :raises ConfigError: there is no such layer or dataset, or no checkpoint
    :raises DataError: there are no sequences, or a file can't be written
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    output = _output(parsed)
    path = _config_of(parsed.source)
    config = read_config([path, *_settings(parsed), *overrides])
    _change(config, parsed)
    opened = of_config(config, parsed.data, path)
    set_dataset(config, "--dataset", opened.dataset, parsed)
    opened.close()
    net, _ = load_network(config, search=parsed.do_search)
    names = ["%s/%s" % (parsed.rec_layer, name) for name in parsed.layers]
    values = LayerValues(net, [*names, parsed.rec_layer, parsed.enc_layer], train=parsed.train_flag)
    count, complete = 0, False
    try:
        ordered = of_config(config, "--dataset", path)
        with contextlib.closing(_sequences(ordered, values, parsed)) as found:
            for sequence in itertools.islice(found, parsed.num_seqs):
                output.add(sequence)
                count += 1
        complete = count > 0
    finally:
        output.close(complete=complete)
    if not count:
        raise CommandDataError("%s has no sequences" % opened.title)
    print("wrote the weights of %d sequences to %s" % (count, output.place))
    return 0


def _output(parsed: argparse.Namespace) -> Union[HDFOutput, NumpyFiles, Pictures]:
    kind = parsed.output_format or ("hdf" if parsed.output_file else "npy")
    if (kind == "hdf") != bool(parsed.output_file):
        raise CommandError("--output_format %s and --output_file do not fit: hdf is written to a file" % kind)
    if kind != "hdf":
        return NumpyFiles(parsed.dump_dir) if kind == "npy" else Pictures(parsed.dump_dir)
    if len(parsed.layers) > 1:
        raise CommandError("--output_format hdf: a file has one layer, not %d" % len(parsed.layers))
    check_is_new(parsed.output_file, "--output_file")
    return HDFOutput(parsed.output_file)


def _config_of(path: str) -> str:
    """Return the config; for a folder, the only one in it or in the folder around it."""
    if not os.path.isdir(path):
        return path
    for folder in (path, os.path.dirname(os.path.abspath(path))):
        found = sorted(glob.glob(os.path.join(glob.escape(folder), "*.config")))
        if len(found) == 1:
            return found[0]
        if found:
            raise CommandError("%r: which config? %s" % (path, ", ".join(found)))
    raise CommandError("%r: there is no *.config in it or beside it" % path)


def _settings(parsed: argparse.Namespace) -> list[str]:
    """Return the settings that the options stand for, as on the command line."""
    settings = ["++beam_size", str(parsed.beam_size)] if parsed.do_search else []
    return settings + (["++load_epoch", str(parsed.epoch)] if parsed.epoch else [])


def _change(config: Config, parsed: argparse.Namespace) -> None:
    """Apply the options that change the network."""

    def change(network: dict[str, Any]) -> dict[str, Any]:
        network = with_outputs_of_loop(network, parsed.rec_layer, parsed.layers)
        return network if parsed.dropout is None else with_dropout(network, parsed.dropout)

    change_networks(config, change)


def _sequences(
    opened: OpenDataset, values: LayerValues, parsed: argparse.Namespace
) -> Generator[SeqWeights, None, None]:
    """Yield the weights of each sequence."""
    axes = {name: _axis_of_labels(values, parsed.rec_layer, name) for name in parsed.layers}
    options = {"batch_size": parsed.batch_size, "seq_list": parsed.seq_list}
    one_pass: DatasetPass[list[dict[str, SeqValue]]] = DatasetPass(
        "attention weights", values.tensors, lambda tensors, batch: values.run(tensors)
    )
    over = steps_over_sequences(one_pass, opened.dataset, 1, values.used_data_keys, **options)
    with contextlib.closing(over) as steps:
        for step in steps:
            for tag, found in zip(step.batch.seq_tags, step.result):
                weights = {
                    name: found["%s/%s" % (parsed.rec_layer, name)].value.swapaxes(0, axis)
                    for name, axis in axes.items()
                }
                yield SeqWeights(tag, weights, found[parsed.rec_layer].value, len(found[parsed.enc_layer].value))
    opened.close()


def _axis_of_labels(values: LayerValues, loop: str, name: str) -> int:
    """Return the index of the label axis among the two axes with lengths: 0 or 1.

    :raises ConfigError: the layer has other axes
    """
    template, output = values.output("%s/%s" % (loop, name)), values.output(loop)
    dims = [template.dims[axis] for axis in template.dynamic_axes]
    if len(dims) != 2:
        raise CommandError("layer %r has the output %s, not labels and frames" % (name, template))
    labels = [output.dims[axis] for axis in output.dynamic_axes][:1]
    return 1 if dims[1:] == labels and dims[:1] != labels else 0


class SeqWeights(NamedTuple):
    """The attention weights of one sequence.

    :param weights: layer -> [labels, frames, ...]
    :param output: labels [labels]
    :param encoder_len: frames of the encoder
    """

    tag: str
    weights: dict[str, NDArray[Any]]
    output: NDArray[Any]
    encoder_len: int


class NumpyFiles:
    """Writes ``<folder>/<tag>.npy`` for each sequence: a pickled dict, to be loaded with ``allow_pickle``.

    Its keys are tag, output, output_len, encoder_len and ``rec_<layer>``.
    """

    def __init__(self, folder: str) -> None:
        self.place = folder

    def add(self, sequence: SeqWeights) -> None:
        """Write the file of a sequence."""
        _make(self.place)
        content = {
            "tag": sequence.tag,
            "output": sequence.output,
            "output_len": len(sequence.output),
            "encoder_len": sequence.encoder_len,
            **{"rec_" + name: value for name, value in sequence.weights.items()},
        }
        name = file_name(sequence.tag) + ".npy"
        with staging(self.place, name) as temp:
            np.save(os.path.join(temp, name), np.array(content, dtype=object))
            os.replace(os.path.join(temp, name), os.path.join(self.place, name))

    def close(self, *, complete: bool) -> None:
        """Complete the output."""


class Pictures:
    """Draws ``<folder>/<tag>.<layer>.png`` for each sequence: labels from top to bottom, frames from left to right."""

    def __init__(self, folder: str) -> None:
        check_matplotlib("--output_format npy")
        self.place = folder

    def add(self, sequence: SeqWeights) -> None:
        """Draw a sequence: a panel for each head."""
        _make(self.place)
        for name, value in sequence.weights.items():
            heads = value.reshape(*value.shape[:2], -1)
            count = heads.shape[2]
            figure = new_figure(8, 3 * count)
            for head, panel in enumerate(figure.subplots(count, 1, squeeze=False)[:, 0]):
                image = panel.imshow(heads[:, :, head], aspect="auto", interpolation="nearest", cmap="magma", vmin=0)
                panel.set_ylabel("label" if count == 1 else "label, head %d" % head)
                figure.colorbar(image, ax=panel, pad=0.01)
            panel.set_xlabel("frame")
            figure.suptitle("%s: %s" % (sequence.tag, name))
            figure.savefig(os.path.join(self.place, "%s.%s.png" % (file_name(sequence.tag), file_name(name))))

    def close(self, *, complete: bool) -> None:
        """Complete the output."""


class HDFOutput:
    """Writes an HDF file: each sequence has the weights [labels * frames, ...] of one layer, and "sizes"."""

    def __init__(self, path: str) -> None:
        self.place = path
        self._writer: Optional[HDFWriter] = None

    def add(self, sequence: SeqWeights) -> None:
        """Append a sequence."""
        ((_, value),) = sequence.weights.items()
        value = value.reshape(*value.shape[:2], -1)
        if self._writer is None:
            self._writer = HDFWriter(self.place, dim=value.shape[2], ndim=3, replace=True)
        lengths = {0: [value.shape[0]], 1: [value.shape[1]]}
        self._writer.insert_batch(value[None], lengths, [sequence.tag], {"output": sequence.output[None]})

    def close(self, *, complete: bool) -> None:
        """Complete the file, or remove what was written of it."""
        if self._writer is not None:
            self._writer.close() if complete else self._writer.abort()


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as exc:
        raise CommandDataError("the folder %r can't be made: %s" % (folder, exc.strerror)) from exc
