"""A corpus of millions of sequences: opening it, orders, resuming, shares of ranks, and memory of all processes.

    python bench/scale.py [--seqs 10000000]
        [--parts open,meta,manifest,corpora,orders,options,plans,ranks,resume,memory,budget]

The corpus is simulated: an HDF file whose frames are a hole in the file, with lengths and names as those of speech
(12 s on average, 40 labels). Asked, of 10^7 sequences: opened in 5 s with less than 1 GB, the order of an epoch in
10 s, resumed within an epoch in 5 s; 64 ranks read each sequence once, with the same work up to 2 %; one index per
machine. All times are CPU seconds, so that other load does not count. The part budget computes from measurements of
small corpora what large ones need.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import h5py
import numpy as np
from report import table

from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.seq_order import order_sequences, parse_ordering
from returnn_tf.datasets.core.share import Share
from returnn_tf.datasets.files import index_file
from returnn_tf.datasets.files.index_file import FOLDER

ORDERS = ("random", "laplace:.100", "laplace:.1000", "sorted", "sorted_reverse", "sort_bin_shuffle:.1000")
CLASSES, MEAN_FRAMES, LABELS = 100, 1200, 40
_NAMES = 1 << 17  # written at once


def lengths_of(count: int) -> np.ndarray:
    """Return frames [count] of sequences of speech."""
    return np.random.RandomState(1).gamma(4, MEAN_FRAMES / 4, count).astype("int32") + 1


def make_corpus(path: Path, count: int, *, backwards: bool = False) -> None:
    """Write an HDF file of this number of sequences; the disk has their names and lengths only.

    :param backwards: the last one first
    """
    lengths = np.stack([lengths_of(count), np.full(count, LABELS, "int32")], axis=1)
    with h5py.File(path, "w") as file:
        for name, frames in zip(("inputs", "targets/data/classes"), lengths.sum(axis=0, dtype=np.int64).tolist()):
            space, options = h5py.h5s.create_simple((frames,)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            file.require_group(os.path.dirname(name) or "/")
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_INT8, space, options)
        file.attrs["inputPattSize"] = CLASSES
        file.create_group("targets/size").attrs["classes"] = [CLASSES, 1]
        file["seqLengths"] = lengths
        names = file.create_dataset("seqTags", (count,), "S31")
        for start in range(0, count, _NAMES):
            numbers = range(start, min(start + _NAMES, count))
            numbers = range(count - 1 - start, count - 1 - numbers.stop, -1) if backwards else numbers
            names[start : start + len(numbers)] = [b"corpus/recording-%07d/s%05d" % divmod(n, 37) for n in numbers]


def make_manifest(path: Path, count: int) -> None:
    """Write a manifest of NeMo with this number of lines, 210 bytes each."""
    seconds = (lengths_of(count) / 100).tolist()
    texts = [text_of(number) for number in range(1000)]
    with open(path, "w", encoding="utf8") as file:
        file.writelines(
            '{"audio_filepath": "%d/recording-%07d/s%05d.flac", "duration": %.2f, "text": "%s"}\n'
            % (number // 10_000, *divmod(number, 37), duration, texts[number % 1000])
            for number, duration in enumerate(seconds)
        )


def options(path: Path, ordering: str = "random", **more: Any) -> dict[str, Any]:
    """Return the corpus as configs have it."""
    return {"class": "HDFDataset", "files": [str(path)], "seq_ordering": ordering, **more}


def proportional_share(pid: int) -> int:
    """Return the bytes of memory of a process, of shared pages its part."""
    with open("/proc/%d/smaps_rollup" % pid, encoding="utf8") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))


def memory() -> int:
    """Return the bytes of memory of this process."""
    gc.collect()
    return proportional_share(os.getpid())


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of an action, and its CPU seconds, those of the system included."""
    start = time.process_time()
    result = action()
    return result, time.process_time() - start


# ---- parts


def opened(spec: dict[str, Any]) -> Dataset:
    """Return a dataset of which the index is read."""
    dataset = Dataset.from_config(spec)
    assert dataset.num_seqs
    return dataset


def measure_open(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Open a corpus, order an epoch, read its first batch, and one in its middle; in a process of its own."""
    before = memory()
    dataset, opening = timed(lambda: opened(spec))
    grown = memory() - before
    order, ordering = timed(lambda: dataset.seq_order(1))
    count = len(order)
    del order
    limits = {"batch_size": 60_000, "max_seqs": 200}
    _, first = timed(lambda: next(iter(dataset.batches(1, **limits))))
    position = int(np.random.RandomState(2).randint(1, count - 1000))
    start = {"start_batch": position // 50, "start_seq": position}
    batch, resuming = timed(lambda: next(iter(dataset.batches(1, **start, **limits))))
    assert next(iter(batch.slices.values()))[0][0] == position
    with open("/proc/self/status", encoding="utf8") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1e6
    return [
        ("open", "%.2f s, %.0f MB" % (opening, grown / 1e6)),
        ("order of an epoch, laplace:.1000", "%.2f s" % ordering),
        ("first batch, with order and names", "%.2f s" % first),
        ("batch at a random position, likewise", "%.2f s" % resuming),
        ("most memory of the process", "%.2f GB" % peak),
    ]


def opened_specs(what: str, path: Path, count: int) -> dict[str, Any]:
    """Return the dataset that a part opens, and write what it needs beside the corpus.

    :param what: ``open``: the corpus; ``meta``: joined with one in the other order; ``manifest``: lines of JSON
    """
    if what == "open":
        return options(path, "laplace:.1000")
    other = path.with_name("%s.other" % what)
    if what == "manifest":
        make_manifest(other, count)
        return {"class": "NeMoDataset", "path": str(other), "seq_ordering": "laplace:.1000"}
    make_corpus(other, count, backwards=True)
    datasets = {"a": options(path, "laplace:.1000"), "b": options(other, "default")}
    data_map = {"data": ("a", "data"), "classes": ("b", "classes")}
    return {"class": "MetaDataset", "datasets": datasets, "data_map": data_map, "seq_order_control_dataset": "a"}


def text_of(number: int) -> str:
    """Return 15 words, others for each number."""
    return " ".join("word%d" % (number * factor % 9973) for factor in range(1, 16))


def _nemo(folder: Path, count: int) -> dict[str, Any]:
    make_manifest(folder / "nemo.json", count)
    return {"class": "NeMoDataset", "path": str(folder / "nemo.json")}


def _lhotse(folder: Path, count: int) -> dict[str, Any]:
    source = {"type": "file", "channels": [0], "source": "a.flac"}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 192000, "duration": 12.0}
    with gzip.open(folder / "cuts.jsonl.gz", "wt", compresslevel=1) as file:
        for number in range(count):
            name = "recording-%07d-s%05d" % divmod(number, 37)
            supervision = {"id": name, "recording_id": name, "start": 0, "duration": 12.0, "text": text_of(number)}
            cut = {"id": name, "start": 0, "duration": 12.0, "channel": 0, "supervisions": [supervision]}
            file.write(json.dumps({**cut, "recording": recording, "type": "MonoCut"}) + "\n")
    return {"class": "LhotseDataset", "path": str(folder / "cuts.jsonl.gz")}


def _kaldi(folder: Path, count: int) -> dict[str, Any]:
    names = ["recording-%07d-s%05d" % divmod(number, 37) for number in range(count)]
    (folder / "text").write_text("".join("%s %s\n" % (name, text_of(n)) for n, name in enumerate(names)))
    (folder / "utt2dur").write_text("".join("%s 12.34\n" % name for name in names))
    return {"class": "KaldiDataset", "path": str(folder)}


def _bliss(folder: Path, count: int) -> dict[str, Any]:
    segment = '<segment name="s%05d" start="%d" end="%d"><orth> %s</orth></segment>\n'
    with open(folder / "corpus.xml", "w", encoding="utf8") as file:
        file.write('<corpus name="c">\n')
        for number in range(0, count, 37):
            parts = [segment % (n, n, n + 1, text_of(number + n)) for n in range(min(37, count - number))]
            head = '<recording name="recording-%07d" audio="r%d.flac">\n' % (number // 37, number)
            file.write("%s%s</recording>\n" % (head, "".join(parts)))
        file.write("</corpus>\n")
    return {"class": "BlissDataset", "path": str(folder / "corpus.xml")}


def _webdataset(folder: Path, count: int) -> dict[str, Any]:
    with tarfile.open(folder / "shard.tar", "w") as file:
        for number in range(count):
            info = tarfile.TarInfo("recording-%07d-s%05d.txt" % divmod(number, 37))
            content = text_of(number).encode()
            info.size, info.mtime = len(content), 1.5  # type: ignore[assignment]  # a float, as that package gives
            file.addfile(info, io.BytesIO(content))
    return {"class": "WebDataset", "path": str(folder / "shard.tar")}


def measure_corpora(folder: Path, count: int = 200_000) -> list[Sequence[str]]:
    """Index corpora of texts in several formats, and open them again."""
    rows = []
    index_file.LEAST = 0
    for make in (_nemo, _lhotse, _kaldi, _bliss, _webdataset):
        own = folder / make.__name__
        own.mkdir()
        spec = {**make(own, count), "audio": None}
        os.environ[FOLDER] = str(own / "indexes")
        times = [timed(lambda spec=spec: opened(spec))[1] for _ in range(2)]
        dataset = opened(spec)
        _, first = timed(lambda dataset=dataset: next(iter(dataset.batches(1, batch_size=60_000, max_seqs=100))))
        size = sum(path.stat().st_size for path in Path(os.environ[FOLDER]).glob("*.index"))
        row = ("%.1f us" % (1e6 * times[0] / count), "%.0f B" % (size / count), "%.0f ms" % (1e3 * times[1]))
        rows.append((spec["class"], str(count), *row, "%.0f ms" % (1e3 * first)))
    return rows


def measure_orders(count: int) -> list[tuple[str, str]]:
    """Order a corpus of these lengths."""
    lengths = lengths_of(count)
    rows = []
    for text in ORDERS:
        ordering = parse_ordering(text)
        _, seconds = timed(lambda ordering=ordering: order_sequences(ordering, count, lambda: lengths, 1))
        rows.append((text, "%.2f s" % seconds))
    return rows


def measure_options(path: Path, folder: Path) -> list[tuple[str, str]]:
    """Order an epoch with the options that choose sequences by name."""
    count = Dataset.from_config(options(path)).num_seqs
    listed = folder / "list"
    listed.write_text("".join("corpus/recording-%07d/s%05d\n" % divmod(number, 37) for number in range(0, count, 10)))
    rows = []
    for name, more in {
        "partition_epoch=20": {"partition_epoch": 20},
        "seq_list_filter_file, a tenth": {"seq_list_filter_file": str(listed)},
        "unique_seq_tags": {"unique_seq_tags": True},
    }.items():
        dataset = Dataset.from_config(options(path, **more))
        times = [timed(functools.partial(dataset.seq_order, epoch))[1] for epoch in (1, 2)]
        rows.append((name, "%.2f s, then %.2f s" % tuple(times)))
    return rows


def measure_plans(path: Path, batches: int = 4000) -> list[tuple[str, str]]:
    """Plan batches, of which nothing is read."""
    from returnn_tf.datasets.core.batches.batch_options import BatchOptions
    from returnn_tf.datasets.core.batches.batching import BatchPlanner, BatchStats
    from returnn_tf.datasets.core.batches.slices import Cutting, Draws

    rows = []
    for name, chunking in (("whole sequences", None), ("chunks of 100 frames", ({"data": 100}, {"data": 50}))):
        dataset = Dataset.from_config(options(path, "laplace:.1000"))
        given = {"batch_size": 60_000, "max_seqs": 200, "used_data_keys": ["data"]}
        opts = BatchOptions.make("plans", dataset.data_keys, given).counting({"data"})
        cutting = Cutting.parse(chunking=chunking, min_chunk_size=0, chunking_variance=0.0, context_window=None)
        reader, rng = dataset.open_epoch(1, ["data"]), Draws(1)
        slices = cutting.slices(reader, opts.counted, recurrent_net=True, rng=rng)
        kind = {"is_whole": cutting.is_none, "is_chunked": chunking is not None, "tracks": chunking is not None}
        plans = BatchPlanner(opts, reader, rng, BatchStats(), **kind).plans(slices)
        count, seconds = timed(lambda plans=plans: sum(len(plan.parts) for plan, _ in zip(plans, range(batches))))
        rows.append((name, "%.2f us for each" % (1e6 * seconds / count)))
    return rows


def shares_of_ranks(lengths: np.ndarray, text: str, ranks: int, parts: int = 1) -> tuple[bool, float]:
    """Return whether ranks read each sequence of a pass once, and by how much the busiest one exceeds the mean.

    :param lengths: of the corpus
    :param text: order
    :param parts: epochs of a pass
    """
    order = order_sequences(parse_ordering(text), len(lengths), lambda: lengths, 1)
    seen = np.zeros(len(lengths), np.int8)
    work = []
    for part in np.array_split(order, parts):
        shares = [Share(rank, ranks).of_order(part) for rank in range(ranks)]
        work.append([int(lengths[share].sum()) for share in shares])
        for share in shares:
            seen[share] += 1
    excess = max(max(frames) / (sum(frames) / ranks) for frames in work) - 1
    return bool((seen == 1).all()), excess


def measure_ranks(count: int, ranks: int = 64) -> list[tuple[str, str]]:
    """Divide an epoch among ranks."""
    lengths, rows = lengths_of(count), []
    for text in ("random", "laplace:.1000", "sorted"):
        exact, excess = shares_of_ranks(lengths, text, ranks)
        rows.append(("%s, %d ranks" % (text, ranks), "%s, %.2f %%" % ("each once" if exact else "WRONG", 100 * excess)))
    return rows


class Counted:
    """An object of a config whose lengths are known by reading only; counts what is read."""

    data_types: Mapping[str, Any] = {"data": {"dim": 2}}

    def __init__(self, count: int):
        self.count, self.num_read = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.num_read += 1
        return {"data": np.zeros((index % 7 + 1, 2), "float32")}


def resumed_datasets(source: Counted) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield name, dataset, and options of its batches."""
    inner = {"class": "MapDatasetWrapper", "map_dataset": source, "seq_ordering": "random"}
    mapped = {"class": "PostprocessingDataset", "dataset": inner, "map_seq": lambda data, **_: data}
    data_map = {("a", "data"): "data"}
    combined = {"class": "CombinedDataset", "datasets": {"a": mapped}, "data_map": data_map}
    whole = {"class": "PostprocessingDataset", "dataset": inner, "map_seq_stream": lambda sequences: sequences}
    yield "MapDatasetWrapper", inner, {}
    yield "MapDatasetWrapper, chunking", inner, {"chunking": "3:2"}
    yield "MapDatasetWrapper, seq_drop", inner, {"seq_drop": 0.1}
    yield "MetaDataset", {"class": "MetaDataset", "datasets": {"a": inner}, "data_map": {"data": ("a", "data")}}, {}
    yield "ConcatDataset", {"class": "ConcatDataset", "datasets": [inner, inner]}, {}
    yield "CombinedDataset", combined, {}
    yield "PostprocessingDataset, map_seq", mapped, {}
    yield "PostprocessingDataset, map_seq_stream", whole, {}


def measure_resumption(count: int) -> list[Sequence[str]]:
    """Resume late in an epoch, by the number of the batch as once, and by what checkpoints have now."""
    rows = []
    source = Counted(count)
    for name, spec, more in resumed_datasets(source):
        dataset = Dataset.from_config(spec)
        limits = {"batch_size": 10**6, "max_seqs": 50, **more}
        last = None
        for batch in dataset.batches(1, **limits):
            if batch.slices["data"][-1][0] > 0.9 * count:
                break
            last = batch
        assert last is not None
        start = {"start_batch": last.number + 1}
        known = {"start_seq": last.slices["data"][-1][0] + 1, "resume": last.resume}
        row = [name]
        for how in (start, {**start, **known}):
            source.num_read = 0
            begin = time.process_time()
            found = next(iter(dataset.batches(1, **how, **limits)))
            row += ["%.1f ms" % (1e3 * (time.process_time() - begin)), str(source.num_read)]
            assert found.number == batch.number and found.seq_tags == batch.seq_tags
        rows.append(row)
    return rows


# ---- memory of several ranks, each with workers


def hold(path: Path, workers: int) -> None:
    """Read a batch by workers, and wait; the body of a rank."""
    spec = {"class": "MultiProcDataset", "dataset": options(path), "num_workers": workers, "buffer_size": 1}
    dataset = Dataset.from_config(spec)
    batches = iter(dataset.batches(1, batch_size=10**6, max_seqs=4 * workers))
    next(batches)
    print("ready", flush=True)
    sys.stdin.readline()


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found: list[int] = []
    for task in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(OSError):
            found += map(int, Path("/proc/%d/task/%s/children" % (pid, task)).read_text().split())
    return found


def memory_of_ranks(path: Path, ranks: int, workers: int) -> tuple[int, int]:
    """Return the number of processes of several ranks, and their bytes of memory."""
    command = [sys.executable, __file__, "--hold", str(path), "--workers", str(workers)]
    started: list[subprocess.Popen[str]] = []
    try:
        for _ in range(ranks):
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for rank in started:
            assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
        pids = [pid for rank in started for pid in (rank.pid, *children_of(rank.pid))]
        return len(pids), sum(map(proportional_share, pids))
    finally:
        for rank in started:
            rank.communicate("\n")


def measure_memory(path: Path, folder: Path, count: int, ranks: int = 4, workers: int = 4) -> list[tuple[str, str]]:
    """Compare ranks with a mapped index, and with an index in each process; a small corpus has the same processes."""
    small = folder / "small.hdf"
    make_corpus(small, 200)
    _, least = memory_of_ranks(small, ranks, workers)
    rows = []
    for name, cache in (("one index per machine", os.environ[FOLDER]), ("one per process", "")):
        os.environ[FOLDER], kept = cache, os.environ[FOLDER]
        number, size = memory_of_ranks(path, ranks, workers)
        os.environ[FOLDER] = kept
        rows.append(
            (name, "%d processes, %.2f GB more, %.0f B/seq" % (number, (size - least) / 1e9, (size - least) / count))
        )
    return rows


# ---- budget

#: Name -> number of sequences, and hours; LibriSpeech as it is, others with sequences of the same length.
CORPORA = {"LibriSpeech": (281_241, 961), "25 000 h": (7_317_000, 25_000), "1 000 000 h": (292_700_000, 1_000_000)}
_BYTES_PER_SECOND = 8_000  # of Ogg Vorbis for speech of 16 kHz, as LibriSpeech has in such files


def measure_costs(folder: Path, count: int = 20_000, with_audio: int = 300) -> dict[str, float]:
    """Return bytes and CPU seconds for each sequence or hour: of small corpora of audio."""
    import oggzip_loading

    text, audio = folder / "texts.zip", folder / "audio.zip"
    oggzip_loading.make_texts(str(text), count)
    oggzip_loading.make_corpus(str(audio), with_audio)
    dataset = Dataset.from_config(oggzip_loading.options(str(text), audio=False))
    index_file.LEAST = 0
    _, indexing = timed(lambda: dataset.num_seqs)
    (index,) = (path.stat().st_size for path in Path(os.environ[FOLDER]).glob("oggzip-*.index"))
    dataset = Dataset.from_config({**oggzip_loading.options(str(audio)), "read_threads": 1})
    assert dataset.num_seqs == with_audio
    batches, reading = timed(lambda: list(dataset.batches(1, batch_size=60_000, max_seqs=50)))
    hours = sum(batch.num_frames["data"] for batch in batches) / 360_000
    lengths = lengths_of(10 * count)
    laplace = parse_ordering("laplace:.1000")
    _, ordering = timed(lambda: order_sequences(laplace, len(lengths), lambda: lengths, 1))
    return {
        "index": index / count + 32,  # of the member of the zip file
        "indexing": indexing / count,
        "ordering": ordering / len(lengths),
        "reading": reading / hours,
    }


def budget(costs: Mapping[str, float], speed: float = 1000.0) -> list[Sequence[str]]:
    """Return what corpora need, computed from costs.

    :param costs: of `measure_costs`
    :param speed: of training on one GPU, in hours of audio per hour; a pass of the corpus takes hours / speed
    """
    rows: list[Sequence[str]] = []
    for name, (seqs, hours) in CORPORA.items():
        processes = speed * costs["reading"] / 3600
        rows.append(
            (
                name,
                "%.3g" % seqs,
                "%.0f GB" % (hours * 3600 * _BYTES_PER_SECOND / 1e9),
                "%.2f GB" % (seqs * costs["index"] / 1e9),
                "%.0f s" % (seqs * costs["indexing"]),
                "%.1f s" % (seqs * costs["ordering"]),
                "%.2f GB" % (seqs * 12 / 1e9),
                "%.0f h" % (hours * costs["reading"] / 3600),
                "%.1f" % processes,
                "%.0f h" % (hours / speed),
            )
        )
    return rows


BUDGET = ("corpus", "sequences", "audio", "index", "made in", "order", "its memory", "decoding a pass", "cores for a GPU at 1000 x", "GPU for a pass")  # fmt: skip  # noqa: E501

PARTS = ("open", "meta", "manifest", "corpora", "orders", "options", "plans", "ranks", "resume", "memory", "budget")


def main() -> None:
    """Measure all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqs", type=int, default=10_000_000)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--open", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold:
        hold(Path(args.hold), args.workers)
        return
    if args.open:
        print(
            table(
                ("%s, %s opening" % (os.environ["WHAT"], os.environ["WHICH"]), ""), measure_open(json.loads(args.open))
            )
        )
        return
    parts = args.parts.split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[FOLDER] = str(folder / "indexes")
        path = folder / "corpus.hdf"
        if set(parts) & {"open", "meta", "options", "plans", "memory"}:
            make_corpus(path, args.seqs)
        for what in ("open", "meta", "manifest"):
            if what not in parts:
                continue
            spec = json.dumps(opened_specs(what, path, args.seqs))
            for which in ("first", "second"):
                env = {**os.environ, "WHAT": what, "WHICH": which}
                subprocess.run([sys.executable, __file__, "--open", spec], check=True, env=env)
        if "corpora" in parts:
            header = ("corpus", "sequences", "index made, each", "index, each", "opened again", "first batch of texts")
            print(table(header, measure_corpora(folder)))
        if "orders" in parts:
            print(table(("order", "CPU seconds"), measure_orders(args.seqs)))
        if "options" in parts:
            print(table(("epochs 1 and 2", "CPU seconds"), measure_options(path, folder)))
        if "plans" in parts:
            print(table(("plan", "CPU"), measure_plans(path)))
        if "ranks" in parts:
            print(table(("shares", "more than the mean"), measure_ranks(args.seqs)))
        if "resume" in parts:
            header = ("%d sequences, at 90 %%" % 20_000, "from the start", "read", "by its state", "read")
            print(table(header, measure_resumption(20_000)))
        if "memory" in parts:
            print(table(("4 ranks with 4 workers each", ""), measure_memory(path, folder, args.seqs)))
        if "budget" in parts:
            costs = measure_costs(folder)
            print(", ".join("%s %.3g" % cost for cost in costs.items()))
            print(table(BUDGET, budget(costs)))


if __name__ == "__main__":
    main()
