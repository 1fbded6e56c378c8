"""Jobs that forward, search, evaluate and compute priors: the config as they write it, the files as they read them."""

from __future__ import annotations

import gzip
import os
import pathlib
from typing import Any

import h5py
import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.checkpoints.params import save_checkpoint
from tests.compat.jobs.manager import Code, Job, config_text

DATA = {"class": "Task12AXDataset", "num_seqs": 4, "fixed_random_seed": 1}
EXTERN = {"classes": {"dim": 2, "sparse": True}, "data": {"dim": 9}}
OUTPUT = {"class": "softmax", "from": "hidden", "loss": "ce", "target": "classes"}
NETWORK = {"hidden": {"activation": "tanh", "class": "linear", "from": "data", "n_out": 4}, "output": OUTPUT}
#: What each of these jobs adds, whatever the config of the user says.
COMMON: dict[str, Any] = {
    "batch_size": 400,
    "behavior_version": 21,
    "device": "cpu",
    "extern_data": EXTERN,
    "log": ["./returnn.log"],
    "log_verbosity": 4,
    "max_seqs": 4,
    "network": NETWORK,
    "target": "classes",
    "use_tensorflow": True,
}


@pytest.fixture(params=["here", pytest.param("process", marks=pytest.mark.long)])
def job(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Job:
    """Return a job whose program runs in this process, or in one of its own with a clean environment."""
    return Job(tmp_path, in_process=request.param == "here")


@pytest.fixture
def model(tmp_path: pathlib.Path) -> str:
    """Return the prefix of a checkpoint, whose name has its epoch."""
    net = Network.from_config(Config({**COMMON, "num_epochs": 1}))
    save_checkpoint(net, str(tmp_path / "models" / "epoch.003"), epoch=3)
    return str(tmp_path / "models" / "epoch.003")


def test_forward(job: Job, model: str) -> None:
    """What stands at the output is replaced."""
    config = {"eval": DATA, "forward_batch_size": 400, "load": model, "output_file": "output.hdf", "task": "forward"}
    job.write(config_text({**COMMON, **config, "forward_override_hdf_output": True}))
    for _ in range(2):
        assert "Loaded %s" % model in job.run()
        assert sorted(os.listdir(job.work)) == ["output.hdf", "returnn.log"]
    with h5py.File(job.work / "output.hdf") as file:
        assert file["inputs"].shape[1] == 2 and file["seqLengths"].shape[0] == 4
        assert sorted(file["seqTags"].asstr()) == ["seq-%d" % i for i in range(4)]


def test_forward_without_a_model(job: Job) -> None:
    """Of a network without parameters; a log file is there all the same."""
    features = {"output": {"class": "eval", "eval": "source(0) * 2", "from": "data"}}
    config = {"allow_random_model_init": True, "eval": DATA, "forward_batch_size": 400, "task": "forward"}
    job.write(config_text({**COMMON, **config, "network": features, "output_file": "output.hdf"}))
    assert "There is no checkpoint; 0 parameters have random values." in job.run()
    with h5py.File(job.work / "output.hdf") as file:
        assert set(np.unique(file["inputs"])) == {0.0, 2.0}


CALLBACK = """
from returnn.forward_iface import ForwardCallbackIface
from returnn.tensor import Tensor, TensorDict


class ReturnnForwardCallback(ForwardCallbackIface):
    def init(self, *, model):
        self.file = open("sizes.py", "wt")
        self.file.write("{\\n")

    def process_seq(self, *, seq_tag: str, outputs: TensorDict):
        output: Tensor = outputs["output"]
        assert output.feature_dim is output.dims[-1] and output.feature_dim.dimension == output.raw_tensor.shape[-1]
        assert output.shape == (None, 2) and output.dtype == output.raw_tensor.dtype == "float32"
        self.file.write("%r: %r,\\n" % (seq_tag, output.raw_tensor.shape))

    def finish(self):
        self.file.write("}\\n")
        self.file.close()


def forward_callback():
    return ReturnnForwardCallback()
"""


def test_forward_of_the_second_kind(job: Job, model: str) -> None:
    """The callback writes the files."""
    config = {"forward_data": DATA, "load": model, "task": "forward", "tf_log_dir": "returnn-tf-log"}
    job.write(config_text({**COMMON, **config}, epilog=CALLBACK))
    job.run()
    assert sorted(os.listdir(job.work)) == ["returnn.log", "sizes.py"]
    sizes = eval((job.work / "sizes.py").read_text())
    assert sorted(sizes) == ["seq-%d" % i for i in range(4)] and {size[1] for size in sizes.values()} == {2}


def test_evaluation(job: Job, model: str) -> None:
    """With an option of the user as JSON, since its repr can't be read."""
    config = {"eval": DATA, "eval_output_file": "scores", "load": model, "task": "eval"}
    options = {"learning_rate_control_error_measure": "dev_score", "limit": float("inf")}
    job.write(config_text({**COMMON, **config}, as_json=options))
    job.run()
    scores = eval((job.work / "scores").read_text(), {"nan": float("nan"), "inf": float("inf")})
    assert 0 < scores["eval"]["score"]["cost:output"] < 2
    assert sorted(os.listdir(job.work)) == ["returnn.log", "scores"]


def test_priors(job: Job, model: str) -> None:
    path = job.output / "prior.txt"
    config = {"epoch": 3, "load": model, "output_file": str(path), "task": "compute_priors", "train": DATA}
    job.write(config_text({**COMMON, **config}))
    job.run()
    assert np.exp(np.loadtxt(path)).sum() == pytest.approx(1.0)
    assert "exists already" in job.run(code=2)


SEARCH = {
    "decision": {"class": "decide", "from": "output", "loss": "edit_distance", "target": "classes"},
    "output": {
        "class": "rec",
        "from": [],
        "max_seq_len": 4,
        "target": "classes",
        "unit": {
            "embed": {"class": "linear", "from": "prev:output", "n_out": 3},
            "end": {"class": "compare", "from": "output", "value": 0},
            "output": {"beam_size": 2, "class": "choice", "from": "prob", "initial_output": 0, "target": "classes"},
            "prob": {"class": "softmax", "from": "embed", "loss": "ce", "target": "classes"},
        },
    },
}
DATASETS = "def get_dataset(name):\n    return {'dev': dev_data}[name]\n\ndev_data = %r\n" % DATA
SEARCHING = {
    **COMMON,
    "allow_random_model_init": True,
    "max_seq_length": 0,
    "need_data": False,
    "network": SEARCH,
    "search_do_eval": 0,
    "search_output_file_format": "py",
    "task": "search",
}


def test_search(job: Job) -> None:
    """The best hypotheses by their tags; the data set is code of the config."""
    path = job.output / "search_out.py"
    config = {"search_data": "config:get_dataset('dev')", "search_output_file": str(path)}
    job.write(config_text({**SEARCHING, **config, "search_output_layer": "decision"}, epilog=DATASETS))
    job.run()
    found = eval(path.read_text(), {"nan": float("nan"), "inf": float("inf")})
    assert sorted(found) == ["seq-%d" % i for i in range(4)] and all(isinstance(text, str) for text in found.values())


def test_search_of_the_second_kind(job: Job) -> None:
    """The n-best lists, compressed; the data is a name of the config."""
    path = job.output / "search_out.beam.gz"
    config = {"search_data": Code("dev_data"), "search_output_file": str(path), "search_output_layer": "output"}
    job.write(config_text({**SEARCHING, **config}, prolog="dev_data = %r" % DATA))
    job.run()
    with gzip.open(path, "rt") as file:
        found = eval(file.read(), {"nan": float("nan"), "inf": float("inf")})
    for best in found.values():
        assert len(best) == 2 and max(best) == best[0] and best[0][0] > best[1][0]


def test_search_by_options(job: Job) -> None:
    """As scripts of public recipes call it: the data set is text on the command line."""
    config = {key: value for key, value in SEARCHING.items() if not key.startswith(("search_", "task", "need"))}
    job.write(config_text(config, epilog=DATASETS))
    options = "++device cpu ++task search ++search_data config:get_dataset('dev') ++beam_size 3 ++need_data False"
    options += " ++max_seq_length 0 ++search_output_file hyps ++search_output_file_format py ++search_do_eval 0"
    job.run(*options.split(), "++search_output_layer", "decision")
    assert len(eval((job.work / "hyps").read_text())) == 4


def test_two_jobs_write_two_logs(tmp_path: pathlib.Path, model: str) -> None:
    """Log and results are in the working directory of each, not beside the config."""
    for name in ("a", "b"):
        job = Job(tmp_path / name, in_process=True)
        config = {"dev": DATA, "load": model, "task": "eval", "eval_output_file": "scores"}
        job.write(config_text({**COMMON, **config}))
        assert job.run().count("task eval") == 1
        assert os.listdir(job.output) == ["returnn.config"]
