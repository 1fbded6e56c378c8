"""Task ``decode``: words from the posteriors of labels per frame, with a lexicon, a language model and hot words."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.requested import with_outputs
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import CtcError
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.datasets import Dataset, dataset_from_config
from returnn_tf.datasets.audio.frame_seconds import frame_seconds
from returnn_tf.engine.data.data_source import DataSource, dataset_name
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.engine.decoding.decoder import Decoded
from returnn_tf.engine.decoding.transcripts import hypotheses_of
from returnn_tf.engine.decoding.tuning import Point, grid, table
from returnn_tf.engine.distributed import world
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.search.decoder_of_config import beam_options, decoded_node, decoder_of_config
from returnn_tf.engine.search.output import Found, SearchOutput
from returnn_tf.engine.search.posteriors import (
    Posteriors,
    check_reference,
    frames_of_posteriors,
    posteriors_of_files,
    posteriors_of_layer,
    references,
)
from returnn_tf.engine.search.times import InputFrames
from returnn_tf.engine.search.transcript_graph import TranscriptOptions
from returnn_tf.engine.search.words_of_choice import OF_TASK, check_settings, idle_scales, searched_choice, with_words
from returnn_tf.engine.support.signals import StopRequest
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.engine.transcripts.confidence import Confidence
from returnn_tf.engine.transcripts.edit_distance import Errors, align
from returnn_tf.engine.transcripts.transcript import Transcript, text
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.graph.layer import Node
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.logging.log import log
from returnn_tf.logging.text import counted
from returnn_tf.tasks.registry import register_task
from returnn_tf.tasks.search import errors_of_search, search_and_write

_BEAM_SIZE = "beam_size"
#: Sequences that are decoded together, by all threads.
_TOGETHER = 256


@register_task("decode")
def decode(config: Config) -> int:
    """Decode the posteriors of ``decode_layer`` for ``search_data``, or those in ``decode_posteriors``.

    If that layer is of a search by `choice`, or the network has nothing but such a search, it is task ``search`` with
    lexicon, language model and hot words.
    """
    settings = DecodingSettings(config)
    searching = search_with_words(config, settings.decode_layer, but=OF_TASK)
    if searching is None:
        return _decode(config)
    if settings.decode_tune:
        _tune_search(config, settings)
        return 0
    nbest = settings.decode_nbest if settings.is_set("decode_nbest") else None
    return search_and_write(searching, nbest, settings.decode_reference)


def _tune_search(config: Config, settings: DecodingSettings) -> None:
    """Search with each combination of scales, and print the table of the error rates.

    The scales are inputs of the graph, so there is one network for each beam_size.
    """
    assert settings.decode_tune is not None
    combinations = [values for values, _ in grid(settings.decode_tune, beam_options(settings), idle_scales(settings))]
    done: dict[int, Point] = {}
    for beam_size in dict.fromkeys(values.get(_BEAM_SIZE) for values in combinations):
        places = [place for place, values in enumerate(combinations) if values.get(_BEAM_SIZE) == beam_size]
        points = [combinations[place] for place in places]
        # 0 would leave out the layer, if nothing else needs it
        fixed = {name: next((point[name] for point in points if point[name]), 0.0) for name in points[0]}
        one = derived(config, {"decode_" + name: value for name, value in fixed.items()})
        searching = search_with_words(one, settings.decode_layer, but=OF_TASK)
        assert searching is not None  # as without these values
        scales = [{name: value for name, value in point.items() if name != _BEAM_SIZE} for point in points]
        begin = time.perf_counter()
        reports = errors_of_search(searching, settings.decode_layer, scales, settings.decode_reference)
        for report, place, values in zip(reports, places, points):
            what, errors = report.counted()
            done[place] = Point(values, errors, time.perf_counter() - begin)
            log.write(4, "decode: %s: %s %s" % (values, what, errors.text()))
            begin = time.perf_counter()
    if report.no_words:
        log.warn(report.no_words)
    log.write(1, "\n".join(table([done[place] for place in sorted(done)], what)))


def search_with_words(config: Config, name: str, but: Sequence[str] = ()) -> Optional[Config]:
    """Return the config of a search by `choice` with words, if that is meant; else None.

    :param name: of a layer of the search, see `searched_choice`; "": the only search, if no layer has the loss ``ctc``
    :param but: settings for scores of labels per frame that may be there
    :raises ConfigError: see `searched_choice` and `with_words`
    """
    schedule = NetworkSchedule(config)
    entry = schedule.at(max(TrainingSettings(config).num_epochs, schedule.pretrain_epochs + 1))
    plan = plan_from_config(with_outputs(entry.config, [name] if name else []), search=True)
    if not name and any(isinstance(loss.loss, CtcLoss) for loss in plan.losses):
        return None
    found = searched_choice(plan, name)
    if found is None:
        return None
    check_settings(config, found, but)
    return with_words(entry.config, entry.layers, plan, found)


def _decode(config: Config) -> int:
    settings, task = DecodingSettings(config), TaskSettings(config)
    tune, path = settings.decode_tune, task.search_output_file
    output = SearchOutput(path, task.search_output_file_format, [_LAYER]) if path and not tune else None
    members = world.start(config)
    schedule = NetworkSchedule(without_fine_tuning(config))
    plan = plan_from_config(schedule.at(schedule.pretrain_epochs + 1).config, train=True)
    node = decoded_node(plan, settings.decode_layer)
    names = LabelNames(plan, config)
    decoder = decoder_of_config(config, names, node)
    points = grid(tune, decoder.options, decoder.idle_options) if tune else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(StopRequest(config, idle="ending; nothing is written"))
        threads = stack.enter_context(_Threads(decoder, settings.decode_threads))
        data = _Data(config, names, node, members, stack)
        if data.reference_key is None and (points or output is None):
            raise CtcError(
                "There are no references for an error rate: decode_reference names their data key.%s"
                % ("" if points else " To keep the results, set search_output_file, e.g. to 'words.txt'.")
            )
        if output is not None and output.of_transcripts is not None and output.of_transcripts.needs_times:
            data.check_times(task.search_output_file_format)
        if points:
            _tune(points, data, threads)
            return 0
        confidence = TranscriptOptions.of(task).confidence
        by_index: dict[int, Transcript] = {}
        for part in _parts(data.posteriors()):
            for given, entry in zip(part, threads.transcripts(part, confidence, settings.decode_nbest)):
                if output is not None:
                    output.check(entry)
                by_index[given.seq_index] = entry
        found = [by_index[index] for index in sorted(by_index)]
        if not members.is_chief:
            return 0
        if output is not None:
            output.write([_row(transcript, settings.decode_nbest) for transcript in found])
            log.write(3, "Wrote %s: %s, %s" % (path, counted(len(found), "sequence"), output.content))
        log.write(1, threads.speed())
        if data.reference_key is not None:
            texts = [(transcript.tag, text(transcript.best)) for transcript in found]
            errors, missing = _errors(texts, data.references(tag for tag, _ in texts))
            if errors.reference:
                log.write(1, "decode: word errors %s" % errors.text())
            if missing:
                log.warn("%d of %d sequences have no reference; they do not count." % (missing, len(texts)))
    return 0


#: The column of the results in the output file, which may have several layers for a search.
_LAYER = "decode"


class _Data:
    """The posteriors and references of the sequences to decode.

    :param names: of the labels
    :param node: the layer with the posteriors
    :param stack: closes what is opened
    """

    def __init__(
        self, config: Config, names: LabelNames, node: Node, members: world.World, stack: contextlib.ExitStack
    ) -> None:
        settings, task = DecodingSettings(config), TaskSettings(config)
        name = dataset_name("search_data", task.search_data)
        given, self._epoch = settings.decode_posteriors, 1
        self._names, self._node = names, node
        self._files = [given] if isinstance(given, str) else list(given or [])
        self._source: Optional[DataSource] = None
        self._input: Optional[InputFrames] = None
        self._dataset: Optional[Dataset]
        if self._files:
            self._dataset = dataset_from_config(config, name)
            if self._dataset is not None:
                stack.callback(self._dataset.close)
        else:
            net, choice = load_network(config, losses=False, outputs=[node.path])
            stack.enter_context(net.sinks)
            self._epoch = choice.epoch or 1
            self._forwarder = Forwarder(net, node.path)
            self._input = frames_of_posteriors(net.plan, node.path)
            used = {key: net.extern_data[key] for key in self._forwarder.used_data_keys}
            self._source = DataSource(config, name, used, members, finite=True)
            stack.callback(self._source.close)
            self._dataset = self._source.dataset
        self._seconds = task.search_frame_seconds
        if self._seconds is None and self._dataset is not None:
            self._seconds = frame_seconds(self._dataset, "data" if self._input is None else self._input.key)
        #: The data key of the references; None: there are none.
        self.reference_key = self._key(settings, NetworkSettings(config).target)

    def _key(self, settings: DecodingSettings, target: str) -> Optional[str]:
        wanted = settings.decode_reference
        if wanted:
            check_reference(self._dataset, wanted, settings.describe_source("decode_reference"))
            return wanted
        spec = None if self._dataset is None else self._dataset.data_specs.get(target)
        return target if spec is not None and spec.sparse else None

    def check_times(self, form: str) -> None:
        """Check that times are known.

        :raises ConfigError: they are not
        """
        if self._files:
            raise CtcError(
                "The format %r needs times, but files of posteriors do not tell how long their audio is. Decode the "
                "dataset itself, or write another format, e.g. 'jsonl'." % form
            )
        if self._input is None:
            raise CtcError(
                "The format %r needs times, but the frames of layer %r are not computed from those of one data key. "
                "Write another format, e.g. 'jsonl'." % (form, self._node.path)
            )
        if self._seconds is None:
            raise CtcError(
                "The format %r needs times, but the options of the dataset do not tell how long a frame is: set "
                "search_frame_seconds." % form
            )

    def posteriors(self) -> Iterator[Posteriors]:
        """Yield all sequences; none but on the chief."""
        if self._source is None:
            assert self._node.output.dim is not None
            return posteriors_of_files(self._files, self._node.output.dim)
        return posteriors_of_layer(self._forwarder, self._source, self._epoch, self._seconds)

    def references(self, tags: Iterable[str]) -> dict[str, list[str]]:
        """Return the words of the references by tag."""
        assert self._dataset is not None and self.reference_key is not None
        key = self.reference_key
        names = self._dataset.label_names.get(key) or self._names.of_key(key)
        return references(self._dataset, key, names, self._epoch, tags)


class _Threads:
    """Decodes sequences in several threads, and measures how long that takes.

    :param count: 0: one for each CPU
    """

    def __init__(self, decoder: BeamDecoder, count: int) -> None:
        self.decoder = decoder
        self._pool = ThreadPoolExecutor(count or len(os.sched_getaffinity(0)))
        self._seconds = self._audio = 0.0  # of computing, in all threads
        self._frames = self._sequences = 0

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def decoded(self, part: Sequence[Posteriors]) -> list[list[Decoded]]:
        """Return the hypotheses of each sequence."""
        timed = list(self._pool.map(self._timed, part))
        self._seconds += sum(seconds for _, seconds in timed)
        self._audio += sum(given.seconds or 0.0 for given in part)
        self._frames += sum(len(given.values) for given in part)
        self._sequences += len(part)
        return [found for found, _ in timed]

    def _timed(self, given: Posteriors) -> tuple[list[Decoded], float]:
        begin = time.thread_time()
        found = self.decoder.decode(given.values)
        return found, time.thread_time() - begin

    def transcripts(self, part: Sequence[Posteriors], confidence: Confidence, nbest: int) -> list[Transcript]:
        """Return the transcript of each sequence.

        :param confidence: how it is computed
        :param nbest: hypotheses of each
        """
        labels = self.decoder.labels
        options: dict[str, Any] = {"confidence": confidence, "nbest": nbest}
        transcripts = []
        for given, found in zip(part, self.decoded(part)):
            hypotheses = hypotheses_of(found, labels, given.values, given.seconds, given.step, **options)
            transcripts.append(Transcript(given.tag, hypotheses, given.seconds))
        return transcripts

    def speed(self) -> str:
        """Return a line on the time of decoding, on one core."""
        line = "decode: %s, %d frames, %.2f s on one core" % (
            counted(self._sequences, "sequence"),
            self._frames,
            self._seconds,
        )
        if not self._audio:
            return line
        return "%s, real-time factor %.4f (%.1f s of audio)" % (line, self._seconds / self._audio, self._audio)


def _parts(given: Iterable[Posteriors]) -> Iterator[list[Posteriors]]:
    rest = iter(given)
    while part := list(itertools.islice(rest, _TOGETHER)):
        yield part


def _errors(transcripts: Iterable[tuple[str, str]], wanted: dict[str, list[str]]) -> tuple[Errors, int]:
    """Count word errors; return also how many sequences have no reference.

    :param transcripts: tag and text of each
    """
    errors, missing = Errors(), 0
    for tag, found in transcripts:
        if tag in wanted:
            errors.add(align(wanted[tag], found.split()))
        else:
            missing += 1
    return errors, missing


def _tune(points: Sequence[tuple[dict[str, float], BeamOptions]], data: _Data, threads: _Threads) -> None:
    """Decode with each combination of scales, and print the table of the error rates."""
    everything = list(data.posteriors())
    if not everything:
        return  # another process has them
    wanted = data.references([given.tag for given in everything])
    decoder, done = threads.decoder, []
    for values, options in points:
        decoder.set_options(options)
        begin = time.perf_counter()
        texts = [
            (given.tag, " ".join(word.text for word in best.words))
            for given, found in zip(everything, threads.decoded(everything))
            for best in hypotheses_of(found[:1], decoder.labels, given.values, None)
        ]
        errors, _ = _errors(texts, wanted)
        done.append(Point(values, errors, time.perf_counter() - begin))
        log.write(4, "decode: %s: word errors %s" % (values, errors.text()))
    log.write(1, "\n".join(table(done)))


def _row(transcript: Transcript, nbest: int) -> Found:
    """Return a result for the output file."""
    entries = [(found.score, text(found)) for found in transcript.hypotheses]
    entry = entries if nbest > 1 else entries[0][1]
    return Found(transcript.tag, {_LAYER: entry}, {_LAYER: entries[0][0]}, transcript)
