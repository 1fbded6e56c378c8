"""batch_size = "auto": the numbers that fit are found, kept, and used by all tasks and processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.settings import check_settings
from returnn_tf.datasets import Dataset, batch_options_from_config, dataset_from_config
from returnn_tf.engine.data import batch_table
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support import device_memory
from returnn_tf.engine.support.device_memory import DeviceMemory
from returnn_tf.engine.training import auto_batch
from returnn_tf.engine.training.auto_batch import Lengths
from returnn_tf.engine.training.engine import Engine
from returnn_tf.util.lazy_tf import tf
from tests.results import reproducible
from tests.run_tasks import run_task

# --- how many fit ---

AFFINE = 1000.0


def _trials(peak: Callable[[int], Optional[float]], limit: float, most: int = 10**6, estimate: int = 1 << 24) -> Any:
    tried: list[int] = []

    def measured(number: int) -> Optional[float]:
        tried.append(number)
        return peak(number)

    found, used = auto_batch.largest(measured, estimate, int(limit), most)  # type: ignore[arg-type]
    return found, used, tried


@pytest.mark.parametrize("limit", [1100, 2000, 5000, 99_999, 10**7])
@pytest.mark.parametrize("each", [10.0, 37.0])
def test_memory_that_grows_linearly(limit: int, each: float) -> None:
    """The number that fits, to 5 %, after few steps."""
    found, used, tried = _trials(lambda number: AFFINE + each * number, limit)
    expected = int((limit - AFFINE) / each)
    assert 0.95 * expected - 1 < found <= expected and used == AFFINE + each * found <= limit
    assert len(tried) < 10 and max(tried) <= max(expected, 16)


@pytest.mark.parametrize("limit", [1500, 20_000, 10**6])
def test_memory_that_grows_faster(limit: int) -> None:
    """Close to what fits, and never above."""
    found, used, tried = _trials(lambda number: AFFINE + number**1.3, limit)
    best = int((limit - AFFINE) ** (1 / 1.3))
    assert 0.6 * best <= found <= best and used <= limit and len(tried) < 12


@pytest.mark.parametrize("fits", [1, 2, 7, 100, 1000])
def test_device_without_memory(fits: int) -> None:
    """Where an op fails before the limit is reached, what fits is found, and no larger number is tried again."""
    found, _, tried = _trials(lambda number: AFFINE + number if number <= fits else None, 10**5)
    assert fits * 0.39 <= found <= fits and len(tried) == len(set(tried)) < 40


@pytest.mark.parametrize("most,expected", [(1, 1), (5, 5), (16, 16), (20, 20)])
def test_no_more_than_there_are(most: int, expected: int) -> None:
    found, _, tried = _trials(lambda number: AFFINE + number, 10**5, most)
    assert found == expected and max(tried) == expected and len(tried) <= 3


def test_nothing_fits() -> None:
    assert _trials(lambda number: AFFINE + number, 1000)[:2] == (0, 0)


# --- the rows of the table ---


def _dataset(lengths: list[Any], **options: Any) -> Dataset:
    sizes = [size if isinstance(size, dict) else {"data": size, "classes": size} for size in lengths]
    data = [
        {
            "data": np.zeros([size["data"], 3], "float32"),
            "classes": np.arange(size["classes"], dtype="int32") % 4,
        }
        for size in sizes
    ]
    return Dataset.from_config({"class": "StaticDataset", "data": data, "target_list": ["classes"], **options})


def test_rows() -> None:
    """Up to lengths with a factor of 1.4 between them; none without sequences; the longest ones by key."""
    lengths = [{"data": 100, "classes": 20}, {"data": 99, "classes": 40}, {"data": 60, "classes": 10}]
    lengths += [{"data": 5, "classes": 60}, {"data": 30, "classes": 3}]
    rows = auto_batch.rows_of(_dataset(lengths), ["data", "classes"], {})
    assert [(row.most_frames, row.count) for row in rows] == [(30, 1), (60, 3), (100, 5)]
    assert rows[-1].frames() == {"data": 100, "classes": 60}
    assert {key: index for key, (index, _) in rows[-1].longest.items()} == {"data": 0, "classes": 3}
    assert rows[1].frames() == {"data": 60, "classes": 60} and rows[0].frames() == {"data": 30, "classes": 3}


@pytest.mark.parametrize(
    "options,batches,expected",
    [
        ({"chunking": "10:10"}, {}, [(5, 2), (10, 13)]),
        ({}, {"max_seq_length": 30}, [(5, 1), (30, 2)]),
        ({}, {"max_seq_length": {"classes": 30}, "min_seq_length": 10}, [(30, 1)]),
    ],
)
def test_rows_of_what_is_used(options: Any, batches: Any, expected: Any) -> None:
    """Chunks, and what the limits leave."""
    rows = auto_batch.rows_of(_dataset([5, 30, 85], **options), ["data", "classes"], batches)
    assert [(row.most_frames, row.count) for row in rows] == expected


def test_rows_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large corpus, sequences all over it are looked at, and stand for the others."""
    monkeypatch.setattr(auto_batch, "_LOOKED_AT", 11)
    monkeypatch.setattr(auto_batch, "_READ", 11)
    rows = auto_batch.rows_of(_dataset([10] * 50 + [20] * 51), ["data"], {})
    assert [(row.most_frames, row.count) for row in rows] == [(10, 46), (20, 101)]


class Row(Lengths):
    """A row of sequences of one length."""

    def __init__(self, frames: int, count: int) -> None:
        super().__init__(frames, {"data": (0, {"data": frames})}, count)


def test_longest_sequences_come_first() -> None:
    """Memory grows with the square of the length; shorter ones never get fewer, and rows that add nothing are left."""
    rows = [Row(10, 5), Row(20, 400), Row(40, 500), Row(80, 9000)]
    tried: list[int] = []

    def peak(row: Lengths, number: int) -> int:
        tried.append(row.most_frames)
        return 1000 + number * row.most_frames**2

    found = auto_batch.fill(rows, peak, lambda row: row.most_frames**2, 500_000, None, World())
    assert found == {20: 400, 40: 311, 80: 77} and tried == sorted(tried, reverse=True)
    limited = auto_batch.fill(rows, peak, lambda row: row.most_frames**2, 500_000, 100, World())
    assert limited == {40: 100, 80: 77}


def test_heartbeat() -> None:
    """The number of steps of a row, and what follows the last one, may take long, and no step of training is done."""
    world = World()
    auto_batch.fill([Row(10, 5), Row(80, 9)], lambda row, number: 1 << 10, lambda row: 1, 1 << 20, None, world)
    assert world.heartbeat.long and world.heartbeat.step == -1


def test_one_sequence_does_not_fit() -> None:
    with pytest.raises(DataError, match="one sequence of 80 frames of 'data' does not fit into 4.9KB. Cut sequences"):
        auto_batch.fill([Row(10, 5), Row(80, 9)], lambda row, number: 1 << 20, lambda row: 1, 5000, None, World())


def test_ranks_agree() -> None:
    """For each length the smallest number of any rank."""
    assert auto_batch.smallest([{10: 8, 40: 2}, {20: 5, 40: 3}]) == {10: 5, 20: 2, 40: 2}
    assert auto_batch.smallest([{40: 2}]) == {40: 2}


# --- a training ---

FRAMES = 60


class FakeMemory(DeviceMemory):
    """A device for steps with a number of frames, which counts the steps that are tried."""

    steps = 0
    #: the lengths in the batches that are trained
    batches: ClassVar[list[list[int]]] = []

    def peak_of(self, step: Callable[[], Any]) -> Optional[int]:
        """Run the step; a frame is a byte."""
        FakeMemory.steps += 1
        self.__dict__["seen"] = 0
        step()
        return int(self.__dict__["seen"])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeMemory]:
    memory = FakeMemory("CPU:0", FRAMES)
    step = auto_batch.StepTrainer.step

    def spied(self: Any, feed: Any, *rate: Any) -> Any:
        memory.__dict__["seen"] = int(np.prod(np.shape(feed["data"])[:2]))
        if self.splits:
            FakeMemory.batches.append(np.sort(feed["data/size0"]).tolist())
        return step(self, feed, *rate)

    monkeypatch.setattr(auto_batch.StepTrainer, "step", spied)
    monkeypatch.setattr(device_memory, "of_this_process", lambda local_size: memory)
    monkeypatch.setattr(FakeMemory, "steps", 0)
    return FakeMemory


LENGTHS = [3, 5, 6, 7, 9, 11, 12, 20, 20, 4, 6, 8, 10, 12]


def _config(folder: Path, **more: Any) -> Config:
    rng = np.random.default_rng(1)
    data = [
        {"data": rng.normal(size=(n, 3)).astype("float32"), "classes": rng.integers(0, 4, n).astype("int32")}
        for n in LENGTHS
    ]
    spec = {"class": "StaticDataset", "data": data, "target_list": ["classes"]}
    output = {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}
    return Config(
        {
            "task": "train",
            "device": "cpu",
            "train": spec,
            "dev": spec,
            "network": {"output": output},
            "extern_data": {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}},
            "batch_size": "auto",
            "batching": "random",
            "learning_rate": 0.1,
            "num_epochs": 2,
            "model": str(folder / "net"),
            "learning_rate_file": str(folder / "rates"),
            **more,
        }
    )


def _train(config: Config) -> list[list[int]]:
    """Train, and return the lengths in each training batch."""
    FakeMemory.batches.clear()
    with Engine(config) as engine:
        engine.train()
    return list(FakeMemory.batches)


@pytest.mark.slow
def test_a_training(fake: type[FakeMemory], tmp_path: Path) -> None:
    """Batches fit, nearly as well as they can; the table is kept, and used when the training is resumed."""
    batches = _train(_config(tmp_path))
    path = tmp_path / ".net.batches.json"
    found = {int(frames): count for frames, count in json.loads(path.read_text())["max_seqs_by_length"].items()}
    assert found[20] == 3 and all(frames * count <= FRAMES for frames, count in found.items())
    tried = fake.steps
    assert tried > 0 and all(max(lengths) * len(lengths) <= FRAMES for lengths in batches)
    assert sum(map(len, batches)) == 2 * len(LENGTHS)
    for lengths in batches:
        assert sum(lengths) >= 0.5 * max(lengths) * len(lengths)  # at most half of it is padding
    again = _train(_config(tmp_path, num_epochs=3))
    assert fake.steps == tried and sum(map(len, again)) == len(LENGTHS)


@pytest.mark.slow
def test_resuming_is_exact(fake: type[FakeMemory], tmp_path: Path) -> None:
    """Also if more would fit now."""
    folders = [tmp_path / name for name in ("whole", "parts")]
    for folder in folders:
        folder.mkdir()
    _train(_config(folders[0]))
    _train(_config(folders[1], num_epochs=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_memory, "of_this_process", lambda local_size: FakeMemory("CPU:0", 10 * FRAMES))
        _train(_config(folders[1]))
    rates = [Engine(_config(folder, num_epochs=2)).learning_rates.epochs for folder in folders]
    assert [reproducible(data.error) for data in rates[0].values()] == [
        reproducible(data.error) for data in rates[1].values()
    ]


def test_lengths_of_the_last_epoch(fake: type[FakeMemory], tmp_path: Path) -> None:
    """Batches fit also when inc_seq_length has let longer sequences in."""
    batches = _train(_config(tmp_path, max_seq_length=4, inc_seq_length=6, batching="sorted"))
    assert batches == [[3, 4], [3, 4, 5, 6, 6, 7, 8], [9, 10]]


@pytest.mark.slow
def test_other_networks_and_settings(fake: type[FakeMemory], tmp_path: Path) -> None:
    """What was found for others is not used."""
    _train(_config(tmp_path, num_epochs=1))
    tried = fake.steps
    batches = _train(_config(tmp_path, num_epochs=2, max_seqs=2))
    assert fake.steps > tried and max(map(len, batches)) == 2


def test_largest_network_of_the_run(fake: type[FakeMemory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a later stage of pretraining; numbers in "#config" are further limits, which code of the config sees."""
    names = []
    trial = auto_batch._Trial

    def spied(entry: Any, *others: Any) -> Any:
        names.append(entry.name)
        return trial(entry, *others)

    monkeypatch.setattr(auto_batch, "_Trial", spied)

    def layers(idx: int, net_dict: Any) -> Any:
        if idx > 1:
            return None
        net = dict(net_dict)
        if idx == 1:
            hidden = {"class": "linear", "activation": "tanh", "n_out": 50, "from": "data"}
            net.update(hidden=hidden, output={**net["output"], "from": "hidden"})
        return {**net, "#config": {"max_seqs": 1 + idx}}

    pretrain = {"construction_algo": layers, "repetitions": 1, "copy_param_mode": "subset"}
    batches = _train(_config(tmp_path, pretrain=pretrain, num_epochs=2))
    assert names == ["pretrain step 1"]
    assert [len(lengths) for lengths in batches[: len(LENGTHS)]] == [1] * len(LENGTHS)
    assert max(map(len, batches[len(LENGTHS) :])) == 2


def test_several_processes(fake: type[FakeMemory], tmp_path: Path) -> None:
    """Each finds what fits on its device; the smallest number counts."""

    class Two(World):
        size = 2

        def gather(self, value: Any) -> list[Any]:
            return [value, [[[20, 2]], "GPU:0", 5] if isinstance(value, list) else value]

    base, trials = auto_batch.with_known_batches(_config(tmp_path), Two())
    dataset = dataset_from_config(base, "train")
    assert trials is not None and dataset is not None
    config, table = trials.run(dataset)
    assert set(table.max_seqs_by_length.values()) == {2} and table.limit == 5
    assert config.typed("batch_size") is None and config.typed("max_pad_share") == 0.5


@pytest.mark.slow
def test_other_tasks_have_the_batches_of_the_training(fake: type[FakeMemory], tmp_path: Path) -> None:
    config = _config(tmp_path, num_epochs=1)
    with pytest.raises(ConfigError, match="there is no .*net.batches.json, where a training keeps what it finds"):
        batch_table.known(config)
    run_task(config)
    assert run_task(_config(tmp_path, task="eval", load_epoch=1)) == 0
    known = batch_table.known(_config(tmp_path, batch_size={"data": "auto", "classes": 7}))
    assert known.typed("batch_size") == {"classes": 7} and known.typed("max_seqs_by_length")[20] == 3


CONFIG_FILE = """
train = dev = {"class": "Task12AX", "num_seqs": 5}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}}
batch_size = "auto"
"""


def test_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config is checked, and its memory estimated for one sequence; tools that make batches ask for a number."""
    path = tmp_path / "my.config"
    path.write_text(CONFIG_FILE)
    assert main(["check", "--memory", str(path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("KB")]
    assert rows and all(row[1] == "1" for row in rows if row[0].isdigit())
    with pytest.raises(ConfigError, match="is found when the model is trained, and not known here. Give a number"):
        batch_options_from_config(Config.from_file(str(path)), train=True)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_seqs": 1}, "max_seqs = 1 leaves nothing to find"),
    ({"max_seqs_by_length": {5: 5}}, "finds max_seqs_by_length, but that is set, too"),
    ({"train": None}, "The config has no dataset 'train'"),
    ({"train": {"class": "Task12AX", "num_seqs": None}, "dev": {"class": "Task12AX", "num_seqs": 3},
      "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}}, "endless"),
    ({"train": {"class": "StaticDataset", "data": [], "output_dim": {"data": (3, 2), "classes": (4, 1)}}}, "is empty"),
    ({"min_seq_length": 1000}, "leave no sequence of the dataset 'train'"),
    ({"network": {"output": {"class": "softmax", "from": "lstm", "loss": "ce", "target": "classes"},
                  "lstm": {"class": "rec", "unit": "lstmp", "n_out": 3, "initial_state": "keep_over_epoch"}}},
     "layer 'lstm' keeps its state from batch to batch"),
    ({"batch_size": {"dat": "auto"}}, "the dataset 'train' has no data key 'dat'. Did you mean 'data'"),
    # what has nothing to do with the batches
    ({"dev": {"class": "StaticDataset", "data": [], "output_dim": {"data": (3, 2), "classes": (4, 1)}}},
     "The dataset 'dev' is empty"),
    ({"learning_rate_control": "newbop"}, "newbop"),
    ({"load_epoch": 7}, "load_epoch"),
]  # fmt: skip


@pytest.mark.parametrize("settings,words", WRONG, ids=[words for _, words in WRONG])
def test_where_it_makes_no_sense(settings: dict[str, Any], words: str, fake: type[FakeMemory], tmp_path: Path) -> None:
    """One error before any step, also for what has nothing to do with the batches, and nothing is written."""
    with pytest.raises((ConfigError, DataError), match=words):
        Engine(_config(tmp_path, **settings))
    assert fake.steps == 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["aut", {"data": "aut"}, {"data": 5, "classes": "Auto"}])
def test_other_words(value: Any) -> None:
    with pytest.raises(ConfigError, match="must be a number or 'auto', for all data keys or in a dict by key, got "):
        check_settings(Config({"batch_size": value}))


def test_on_size_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on_size_limit = 'chunk' cuts at batch_size"):
        Engine(_config(tmp_path, on_size_limit="chunk"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"max_seqs_by_length": {"a": 1}}', '{"max_seqs_by_length": {}}'])
def test_damaged_table(content: str, tmp_path: Path) -> None:
    path = tmp_path / ".net.batches.json"
    path.write_text(content)
    with pytest.raises(DataError, match="net.batches.json: .*Remove it to have them found again"):
        batch_table.known(_config(tmp_path))


# --- the memory of the device ---


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal: 2000 kB\nMemAvailable:   1000 kB\n"}
V2 = "sys/fs/cgroup/"
V1 = "sys/fs/cgroup/memory/"


@pytest.mark.parametrize(
    "files,expected",
    [
        ({}, 1_024_000),
        ({"proc/self/cgroup": "0::/\n", V2 + "memory.max": "max", V2 + "memory.current": "5"}, 1_024_000),
        ({"proc/self/cgroup": "0::/\n", V2 + "memory.max": "5000", V2 + "memory.current": "2000"}, 3000),
        ({"proc/self/cgroup": "0::/a/b\n", V2 + "a/memory.max": "900", V2 + "a/memory.current": "200",
          V2 + "a/b/memory.max": "max", V2 + "a/b/memory.current": "100"}, 700),
        ({"proc/self/cgroup": "0::/a\n", V2 + "a/memory.max": "900", V2 + "a/memory.current": "1000"}, 0),
        ({"proc/self/cgroup": "0::/\n", V2 + "memory.max": "5000", V2 + "memory.current": "4900",
          V2 + "memory.stat": "anon 900\nfile 4000\ninactive_file 3000\nactive_file 500\nshmem 500\n"}, 3600),
        ({"proc/self/cgroup": "7:memory:/\n", V1 + "memory.limit_in_bytes": "5000",
          V1 + "memory.usage_in_bytes": "4900", V1 + "memory.stat": "cache 9\ninactive_file 1\nactive_file 1\n"
          "total_cache 9\ntotal_inactive_file 3000\ntotal_active_file 500\n"}, 3600),
        ({"proc/self/cgroup": "4:cpu:/x\n7:memory:/slurm/job\n", V1 + "slurm/job/memory.limit_in_bytes": "4000",
          V1 + "slurm/job/memory.usage_in_bytes": "1"}, 3999),
        ({"proc/self/cgroup": "7:memory:/\n", V1 + "memory.limit_in_bytes": str((1 << 63) - 4096),
          V1 + "memory.usage_in_bytes": "1"}, 1_024_000),
    ],
)  # fmt: skip
def test_available_memory(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    """What the system has, within the limits of all cgroups around the process."""
    _write(tmp_path, {**MEMINFO, **files})
    assert device_memory.available_memory(tmp_path) == expected


def test_unknown_memory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/proc/meminfo does not tell.* Give batch_size a number of frames"):
        device_memory.available_memory(tmp_path)


def test_peak_of_steps_on_a_cpu() -> None:
    """Twice the values need twice the memory; the peak of an earlier step does not count."""
    memory = device_memory.of_this_process()
    assert memory.device == "CPU:0" and memory.limit > 1 << 20
    assert device_memory.of_this_process(2).limit < memory.limit

    def step(size: int) -> Any:
        return lambda: tf.reduce_sum(tf.tanh(tf.ones([size, 1000])) * 2.0)

    peaks = [memory.peak_of(step(size)) for size in (4000, 2000, 1000)]
    sizes = [float(peak) for peak in peaks if peak is not None]
    # differences, since the peak includes what the process keeps
    assert sizes[0] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[2]), rel=0.2) and sizes[2] >= 4e6


def test_a_step_without_memory() -> None:
    def fails() -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    assert device_memory.of_this_process().peak_of(fails) is None
