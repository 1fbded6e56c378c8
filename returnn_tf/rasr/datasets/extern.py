"""ExternSprintDataset: sequences that RASR computes, read through a pipe."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from returnn_tf.config.errors import DataError, RasrDataError, RasrError
from returnn_tf.config.options import above, at_least, option
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen, Share
from returnn_tf.datasets.core.stream import StreamDataset
from returnn_tf.rasr.datasets.targets import SentOptions, Targets, features_of
from returnn_tf.rasr.processes.command_line import command_words, list_words, program_words, trainer_words
from returnn_tf.rasr.processes.process import RasrProcess


@register_dataset()
class ExternSprintDataset(StreamDataset):
    """Sequences that a program of RASR computes, such as nn-trainer, started again for each epoch.

    RASR makes the order: with ``--*.corpus.segment-order-shuffle=true`` its seed is that of the epoch, and with
    ``partition_epoch`` an epoch is every n-th segment of that order. Keys: "data" float32 [time, dim], "classes" uint32
    [time] if RASR extracts alignments, "orth" and "speaker_name" uint8 [bytes], and "bpe" and "orth_classes" int32
    [labels] by the options ``bpe`` and ``orth_vocab``. ``$NAME`` in the words for RASR stands for an environment
    variable.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {
    ...     "class": "ExternSprintDataset",
    ...     "sprintTrainerExecPath": "sprint-executables/nn-trainer",
    ...     "sprintConfigStr": "--config=train.sprint.config --*.corpus.segment-order-shuffle=true",
    ...     "partition_epoch": 6,
    ...     "estimated_num_seqs": 37841,
    ... }
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    takes = frozenset({"seq_list"})
    makes_order = True
    makes_shards = True

    @dataclass
    class Options(SentOptions):
        sprintTrainerExecPath: Union[str, list[str]] = option(
            help="the program of RASR, or a list of it and its first arguments"
        )
        sprintConfigStr: Union[str, list[Any], Callable[..., Any]] = option(
            "", help="words for RASR: text, a function that returns text, or a list of these"
        )
        partitionEpoch: Optional[int] = option(
            None, help="as partition_epoch", check=at_least(1), old="partition_epoch"
        )
        suppress_load_seqs_print: bool = option(False, help="log less", inert="loading is not logged anyway")
        rasr_timeout: float = option(
            3600.0, help="seconds to wait for the next sequence, before RASR counts as hanging", check=above(0)
        )
        seq_ordering: Union[str, Callable[..., Any]] = option(
            "default", help="order of the sequences", inert="RASR makes the order"
        )

    def setup(self) -> None:
        """Check the options; RASR is started when sequences or their format are asked for."""
        opts = self.opts
        given = {name for name in ("partition_epoch", "partitionEpoch") if self._given.get(name) is not None}
        if len(given) > 1:
            raise RasrError("%s: give partition_epoch or partitionEpoch, not both" % self._owner())
        if opts.partitionEpoch is not None:
            opts.partition_epoch = opts.partitionEpoch
        if opts.repeat_epoch > 1:
            raise RasrError("%s: repeat_epoch is not possible: RASR goes over its corpus once" % self._owner())
        self._program = program_words(
            opts.sprintTrainerExecPath, owner="%s, option 'sprintTrainerExecPath'" % self._owner()
        )
        self._filter_tags: Optional[list[str]] = None
        if opts.seq_list_filter_file:  # RASR filters, also by short names
            with self._wanted_by("seq_list_filter_file"):
                self._filter_tags = safe_files.read_seq_tags(opts.seq_list_filter_file)
            opts.seq_list_filter_file = None
        self._targets = Targets(opts, owner=self._owner())
        #: (input dim, output dim) as RASR says it
        self._sizes: Optional[tuple[int, int]] = None
        self._first: Optional[Example] = None  # that gives the format
        #: what is to be read -> its first sequence, which has been read for the format, and the rest
        self._begun: dict[Any, tuple[Example, Generator[Example, None, None]]] = {}

    def __reduce__(self) -> Any:
        return (
            *super().__reduce__(),
            {"_specs": self._specs, "_sizes": self._sizes},
        )  # RASR need not be asked again

    # ---- format

    @property
    def dims(self) -> tuple[int, int]:
        """Return the dim of the features and the number of classes, 0 or less if absent; may start RASR."""
        if self._sizes is None:
            self.data_specs  # noqa: B018
        assert self._sizes is not None
        return self._sizes

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format of the keys of the first sequence, sorted; starts RASR for it."""
        first = self._first or self.first_sequence()
        input_dim, output_dim = self.dims
        specs = {}
        for key in sorted(first.data):
            if key == "data":
                specs[key] = DataSpec(input_dim, 2, "float32", (input_dim,))
            else:
                specs[key] = self._targets.spec(key, first.data[key], output_dim)
        return specs

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]]:
        """Return (dim, number of axes) by key, with ``window``, also of text that RASR does not send."""
        input_dim, output_dim = self.dims
        data = {"data": (input_dim * self.opts.window, 2)} if input_dim > 0 else {}
        return {**data, **self._targets.num_outputs(output_dim)}

    @property
    def num_inputs(self) -> int:
        """Return the dim of the features of RASR."""
        return max(self.dims[0], 0)

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return the labels by key."""
        return self._targets.labels()

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Return the labels of vocabularies, each of which has a name; RASR need not be asked for the dims."""
        return {key: names for key, names in self.labels.items() if key != "orth"}

    # ---- reading

    def sequences(self, epoch: int = 1, **chosen: Any) -> Iterator[Example]:
        """Iterate over all sequences of an epoch, uncut, see `Dataset.sequences`."""
        if chosen.get("seq_order") is None:
            self._begin_with(self, epoch, chosen.get("seq_list"))
        yield from super().sequences(epoch, **chosen)

    def batches(self, epoch: int = 1, *, share: Optional[Share] = None, **options: Any) -> Iterator[Batch]:
        """Iterate over the batches of an epoch, see `Dataset.batches`."""
        if options.get("seq_order") is None:
            self._begin_with(self._part(share), epoch, options.get("seq_list"))
        return super().batches(epoch, share=share, **options)

    def _part(self, share: Optional[Share]) -> Optional[ExternSprintDataset]:
        """Return a dataset for which RASR computes only this share; None if that is impossible."""
        opts = self.opts
        if share is None or (share.size == 1 and not share.done):
            return self
        if share.done or opts._num_shards > 1 or opts.unique_seq_tags:
            return None
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        estimate = opts.estimated_num_seqs and max(opts.estimated_num_seqs // share.size, 1)
        part.opts = dataclasses.replace(
            opts, _num_shards=share.size, _shard_index=share.rank, estimated_num_seqs=estimate
        )
        return part

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch; lets RASR compute only the share of this process, where possible."""
        part = self._part(chosen.share) if chosen.seq_list is None else None
        if part is None or part is self:
            return super().open_epoch(epoch, keys, chosen)
        return part.open_epoch(epoch, keys, chosen.of_all_processes())

    def _begin_with(self, part: Optional[ExternSprintDataset], epoch: int, seq_list: Optional[Sequence[str]]) -> None:
        """Derive the format from the first sequence that is read next; reading then continues after it."""
        if self._specs is not None or part is None:
            return
        items = StreamDataset.sequences_of_stream(part, epoch, **({} if seq_list is None else {"seq_list": seq_list}))
        first = next(items, None)
        if first is None:
            raise RasrDataError("%s: epoch %d is empty: RASR ended without any sequence" % (self._owner(), epoch))
        self._sizes = part._sizes
        self._begun = part._begun = {part._key(epoch, seq_list): (first, items)}
        self._first = first
        self.data_specs  # noqa: B018
        self._first = None

    def _key(self, epoch: int, seq_list: Optional[Sequence[str]]) -> Any:
        return epoch, None if seq_list is None else tuple(seq_list), self.opts._num_shards, self.opts._shard_index

    def sequences_of_stream(self, epoch: int, **how: Any) -> Generator[Example, None, None]:
        """Yield the sequences of `stream`, beginning with one that `make_specs` has read."""
        begun = self._begun.pop(self._key(epoch, how.get("seq_list")), None)
        for _, items in self._begun.values():
            items.close()
        self._begun.clear()
        if begun is None:
            yield from super().sequences_of_stream(epoch, **how)
            return
        first, items = begun
        with contextlib.closing(items):
            yield first
            yield from items

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Start RASR and yield its sequences."""
        seq_list: Optional[Sequence[str]] = how.get("seq_list")
        if seq_list is not None and self.opts.partition_epoch > 1:
            raise RasrError(
                "%s: with seq_list, partition_epoch must be 1: the list says what an epoch has" % self._owner()
            )
        self._targets.set_random_seed(self.epoch_seed(epoch))
        with contextlib.ExitStack() as stack:
            lists = list_words(seq_list, self._filter_tags, stack)
            words = [*self._program, *self._words(epoch, seq_list is None)]
            run = RasrProcess(
                lambda write, read: [*words, *trainer_words(write, read), *lists],
                owner="",
                timeout=self.opts.rasr_timeout,
            )
            stack.callback(run.close)
            reader = RunReader(run, self._targets, opts=self.opts, sizes=self._sizes, seq_list=seq_list)
            reader.begin()
            self._sizes = reader.sizes
            yield from reader.sequences()

    def _words(self, epoch: int, partition: bool) -> list[str]:
        """Return the words of the user and those for this epoch, which win."""
        words = command_words(self.opts.sprintConfigStr, owner="%s, option 'sprintConfigStr'" % self._owner())
        words.append("--*.seed=%d" % (self.epoch_seed(epoch) - 1))
        parts, shards = self.opts.partition_epoch, self.opts._num_shards
        if partition and parts * shards > 1:
            # every n-th segment of the partition is every n*parts-th of the corpus
            selected = (max(epoch, 1) - 1) % parts + parts * self.opts._shard_index
            words += ["--*.corpus.partition=%d" % (parts * shards), "--*.corpus.select-partition=%d" % selected]
        return words


class RunReader:
    """Reads what a run of RASR sends to ``ExternSprintDataset``: its dims, then the sequences.

    :param run: the process
    :param targets: how its targets become arrays
    :param opts: of the dataset
    :param sizes: (input dim, output dim) of earlier runs, which this one must have too; None: it is the first
    :param seq_list: the tags that RASR has to send, in this order; None: RASR chooses
    """

    def __init__(
        self,
        run: RasrProcess,
        targets: Targets,
        *,
        opts: SentOptions,
        sizes: Optional[tuple[int, int]],
        seq_list: Optional[Sequence[str]],
    ) -> None:
        self._run = run
        self._targets = targets
        self._opts = opts
        self.sizes = sizes
        self._seq_list = seq_list
        self._message: Any = None  # read, but not used yet

    def begin(self) -> None:
        """Read the dims, after which they are in ``sizes``, and the first sequence.

        :raises DataError: RASR sends something else, other dims than before, or no sequence
        """
        message = self._run.receive("its dims")
        if message[0] == "init":
            dims = message[1] if len(message) == 2 else None
            if not isinstance(dims, tuple) or len(dims) < 2 or not all(isinstance(dim, int) for dim in dims[:2]):
                raise self._run.strange("the dims are %.100r" % (message[1:],))
            if self.sizes is not None and dims[:2] != self.sizes:
                raise self._run.error(
                    "RASR now has %d features and %d classes, but %d and %d when it was started before. Check its "
                    "configuration." % (*dims[:2], *self.sizes)
                )
            self.sizes = dims[:2]
            message = self._run.receive("the first sequence")
        elif message[0] != "exit":
            raise self._run.strange("the first message is %.100r" % (message,))
        if message[0] == "exit":
            self._end()
            raise self._run.error(
                "RASR ended without any sequence. Check its corpus, whitelist, and whether partition_epoch=%d is too "
                "large." % self._opts.partition_epoch
            )
        self._message = message

    def sequences(self) -> Iterator[Example]:
        """Yield the sequences, after `begin`; in the end, wait until RASR has ended.

        :raises DataError: a sequence is not as it should be, one of the list is missing, or RASR fails
        """
        message, seq_list, index = self._message, self._seq_list, 0
        while message[0] != "exit":
            sequence = self._sequence(message, index)
            if seq_list is not None:
                self._check_tag(sequence.tag, seq_list, index)
                sequence = dataclasses.replace(sequence, complete=(index + 1) / len(seq_list))
            yield sequence
            index += 1
            message = self._run.receive("the end, after sequence %r" % sequence.tag)
        if seq_list is not None and index < len(seq_list):
            raise self._run.error(
                "RASR ended after %d of the %d sequences of the list; the next one is %r. Is it in the corpus of RASR?"
                % (index, len(seq_list), seq_list[index])
            )
        self._end()

    def _check_tag(self, tag: str, seq_list: Sequence[str], index: int) -> None:
        expected = seq_list[index] if index < len(seq_list) else "(the end)"
        if tag != expected:
            raise RasrDataError(
                "RASR sends the sequence %r, but number %d of the list is %r. It must have all of them, and keep their "
                "order: --*.segment-order-sort-by-time-length=false" % (tag, index, expected)
            )

    def _sequence(self, message: Any, index: int) -> Example:
        assert self.sizes is not None
        try:
            kind, (tag, features, targets) = message
            if kind != "data" or not isinstance(tag, str) or not isinstance(targets, dict):
                raise ValueError
        except (TypeError, ValueError):
            raise self._run.strange("a message is %.100r" % (message,)) from None
        try:
            data = {} if features is None else {"data": features_of(features, self.sizes[0], self._opts.input_stddev)}
            data.update(self._targets.arrays(targets, len(data["data"]) if data else None))
        except DataError as exc:
            raise RasrDataError("sequence %r: %s" % (tag, exc)) from None
        return Example(index=index, tag=tag, data=data, position=index)

    def _end(self) -> None:
        """Wait until RASR has ended; DataError if it failed."""
        code = self._run.wait()
        if code is None:
            raise self._run.error("RASR does not end after its last sequence.")
        if code:
            raise self._run.error("RASR failed after its last sequence, with %s." % self._run.status_text())
