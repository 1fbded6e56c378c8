"""One search pass over a dataset, longest sequences first so that running out of memory shows at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, SearchError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.passes.dataset_pass import DatasetPass, batch_sizes
from returnn_tf.engine.passes.dump import dump_of
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.engine.search.errors import ErrorReport
from returnn_tf.engine.search.labels import Labels
from returnn_tf.engine.search.output import Found
from returnn_tf.engine.search.searcher import SearchedLabels, Searcher, SearchResult
from returnn_tf.engine.search.transcriber import Transcriber
from returnn_tf.engine.support.scores import ERROR, Scores, added_sums, batch_means
from returnn_tf.engine.transcripts.transcript import Transcript
from returnn_tf.logging.lines import eval_line, phase_text
from returnn_tf.logging.log import log
from returnn_tf.logging.text import counted


class SearchPass:
    """Searches a dataset and keeps the texts of the hypotheses.

    :param labels: for each layer of the searcher
    :param reports: updated with each batch; they need the losses of the searcher
    :param transcriber: whose function ``emit`` the searcher has; None without transcripts
    :param check: called with each transcript
    :param nbest: hypotheses of a sequence that are kept; None: all
    """

    def __init__(
        self,
        searcher: Searcher,
        source: DataSource,
        labels: Mapping[str, Labels],
        reports: Sequence[ErrorReport],
        transcriber: Optional[Transcriber] = None,
        check: Optional[Callable[[Transcript], None]] = None,
        nbest: Optional[int] = None,
    ) -> None:
        self._nbest = nbest
        self._searcher = searcher
        self._source = source
        self._labels = labels
        self._reports = reports
        self._transcriber = transcriber
        self._check = check
        self._world = source.world
        self._scores = Scores()
        self._not_ended: dict[str, int] = {}  # loop -> sequences
        self._texts: dict[int, Found] = {}  # by position in the corpus

    def run(self, epoch: int) -> None:
        """Search all sequences.

        :param epoch: of the model, and of generated data
        :raises DataError: the options of the dataset exclude a sequence
        """
        # A state that is kept from batch to batch is that of the sequences before in the order of the dataset.
        whole = searched(self._source.dataset, epoch, in_order=bool(self._searcher.net.kept.specs))
        phase = phase_text("search", epoch, self._source.name)
        order: dict[str, Any] = {} if whole is None else {"seq_order": self._source.share(whole)}
        batches = self._source.batches(epoch, chunking=None, **order)
        one_pass: DatasetPass[SearchResult] = DatasetPass(
            phase, self._searcher.tensors, lambda tensors, batch: self._searcher.run(tensors), self._world
        )
        one_pass.dump = dump_of(self._searcher.net, self._source.name, epoch, self._world)
        state = PassState()
        self._searcher.net.kept.begin_pass()
        with contextlib.closing(one_pass.steps(batches, state)) as steps:
            for step in steps:
                self._add(step.batch, step.result)
                one_pass.log_step(step, functools.partial(self._values, step.batch, step.result))
        self._merge()
        self._check_complete(phase, whole)
        one_pass.log_end(state)
        self._warn_of_impossible()
        spread = [] if self._transcriber is None else self._transcriber.spread
        if spread:
            log.warn(
                "The best hypotheses of %s, e.g. %r, have more labels than frames, or labels that the source of times "
                "does not know: their words are spread evenly over the audio."
                % (counted(len(spread), "sequence"), spread[0])
            )
        for path, count in self._not_ended.items():
            if count:
                log.warn(
                    "Layer %r: of %d sequences the best hypothesis of %d had not ended after max_seq_len steps, so it "
                    "is truncated. Raise max_seq_len, or train the end better." % (path, len(self._texts), count)
                )

    def _warn_of_impossible(self) -> None:
        tags = [found.tag for found in self._texts.values() if -np.inf in found.scores.values()]
        if tags:
            log.warn(
                "All hypotheses of %s, e.g. %r, have a score of -inf, so their last labels mean nothing; words of a "
                "lexicon before them are kept. Raise beam_size. The lexicon may also lack words that are short enough."
                % (counted(len(tags), "sequence"), min(tags))
            )

    def _check_complete(self, phase: str, whole: Optional[NDArray[Any]]) -> None:
        """Check that no sequence of these corpus indices was dropped; None: of a stream of known number."""
        if whole is None:
            stats = self._source.batch_stats
            dropped = self._world.gather_values(stats.num_too_long + stats.num_too_short + stats.num_dropped)
            missing, count, total = "", sum(dropped), sum(dropped) + len(self._texts)
        else:
            absent = [int(index) for index in whole if int(index) not in self._texts]
            missing = ", e.g. %r" % self._source.dataset.tag(absent[0]) if absent else ""
            count, total = len(absent), len(whole)
        if count:
            raise DataError(
                "%s: %d of %d sequences are excluded%s. Raise the limits on the length of sequences."
                % (phase, count, total, missing),
                topic="search",
            )

    def _merge(self) -> None:
        """Combine the results of all processes, on all of them."""
        if self._world.size == 1:
            return
        states = [report.state() for report in self._reports]
        parts = self._world.gather_values((self._texts, self._not_ended, self._scores.sums(), states))
        self._not_ended = {}
        for texts, not_ended, _, _ in parts:
            self._texts.update(texts)
            for path, count in not_ended.items():
                self._not_ended[path] = self._not_ended.get(path, 0) + count
        self._scores = Scores(sums=added_sums([part[2] for part in parts]))
        for index, report in enumerate(self._reports):
            report.merge([part[3][index] for part in parts])

    def rows(self) -> list[Found]:
        """Return the results in corpus order."""
        return [self._texts[index] for index in sorted(self._texts)]

    def report(self, layer: str) -> ErrorReport:
        """Return the error counts of a layer."""
        return next(report for report in self._reports if report.layer == layer)

    def log_errors(self) -> None:
        """Log scores, error rates, and at level 4 the sequences with errors."""
        if self._searcher.with_losses:
            found = self._scores.scores(), {**self._scores.errors(), **self._without_ends("label_errors")}
            if any(found):
                log.write(1, eval_line({self._source.name: found}))
        for report in self._reports:
            for text in report.tables():
                log.write(4, text)
            if report.remark():
                log.write(3, report.remark())
            if report.no_words:
                log.warn(report.no_words)
            for line in report.lines():
                log.write(1, line)

    def _add(self, batch: Any, result: SearchResult) -> None:
        transcripts: Sequence[Transcript] = ()
        if self._transcriber is not None:
            frames = self._transcriber.frames_of_batch(batch.feed)
            transcripts = [
                replace(each, hypotheses=each.hypotheses[: self._nbest])
                for each in self._transcriber.transcripts(batch.seq_tags, result.further, frames)
            ]
            if self._check is not None:
                for transcript in transcripts:
                    self._check(transcript)
        for row, (index, tag) in enumerate(zip(batch.seq_indices, batch.seq_tags)):
            texts = {name: self._entry(name, found[row]) for name, found in result.hypotheses.items()}
            scores = {name: found[row][0].score for name, found in result.hypotheses.items()}
            self._texts[index] = Found(tag, texts, scores, transcripts[row] if transcripts else None)
        for path, count in result.not_ended.items():
            self._not_ended[path] = self._not_ended.get(path, 0) + count
        if result.losses is not None:
            self._scores.add(result.losses)
        for report in self._reports:
            key = report.target.extern_key
            if key is None:
                references = result.references[report.target.path]
            else:
                lens = batch.feed["%s/size0" % key]
                references = [labels[:size] for labels, size in zip(batch.feed[key], lens)]
            report.add(batch, result.hypotheses[report.layer], references)

    def _values(self, batch: Any, result: SearchResult) -> dict[str, Any]:
        means = {} if result.losses is None else {**batch_means(result.losses), **self._without_ends("last")}
        return {**means, **batch_sizes(batch)}

    def _without_ends(self, errors: str) -> dict[str, float]:
        """Return error rates by the name of their loss, of those in which the loss counts the end label."""
        reports = [report for report in self._reports if report.leaves_out]
        return {ERROR + report.loss: getattr(report, errors).rate for report in reports}

    def _entry(self, name: str, found: Sequence[SearchedLabels]) -> Any:
        labels = self._labels[name]
        if self._searcher.nodes[name].output.beam is None or self._nbest == 1:
            return labels.text(found[0].labels)
        return [(hypothesis.score, labels.text(hypothesis.labels)) for hypothesis in found[: self._nbest]]


def searched(dataset: Dataset, epoch: int, *, in_order: bool = False) -> Optional[NDArray[Any]]:
    """Return each sequence of an epoch once, longest first; in corpus order if lengths are unknown; None for a stream.

    :param in_order: in the order of the epoch instead
    :raises ConfigError: the dataset is endless
    """
    if dataset.endless:
        raise SearchError(
            "The dataset %r is endless, so a search in it would never end; give it num_seqs." % dataset.name
        )
    if dataset.is_stream:
        log.write(4, "%r is a stream, so it is searched in its own order." % dataset.name)
        return None
    in_epoch = dataset.seq_order(epoch)
    assert in_epoch is not None  # only a stream has no order
    if in_order:
        return np.asarray(list(dict.fromkeys(int(index) for index in in_epoch)))
    order: NDArray[Any] = np.unique(in_epoch)
    lengths = dataset.seq_lengths()
    if lengths is None:
        log.write(
            4, "The lengths of %r are not known before reading, so it is searched in its own order." % dataset.name
        )
        return order
    by_length: NDArray[Any] = order[np.argsort(-np.asarray(lengths)[order], kind="stable")]
    return by_length
