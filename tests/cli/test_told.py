"""What a config asks for in vain is told, once in the log of the run and by ``returnn-tf check``, or is an error."""

from __future__ import annotations

import pathlib

import pytest

from returnn_tf.cli.main import main
from returnn_tf.logging.log import log

BASE = """
train = {"class": "Task12AXDataset", "num_seqs": 12}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
}
batch_size, behavior_version, num_epochs = 300, 21, 0
"""

#: Change of the config -> what is said of it; nothing else is said.
TOLD: dict[str, str] = {}

# layers that nothing needs
_AUX = 'network["aux"] = {"class": "softmax", "from": "hidden", '
_LEFT_OUT = "(Nothing needs this layer, so it is left out.)"
TOLD.update(
    {
        _AUX + '"los": "ce", "target": "classes"}': "unknown option 'los'. Did you mean 'loss'?",
        _AUX + '"is_output_layr": True, "n_out": 2}': "unknown option 'is_output_layr'. Did you mean",
        _AUX + '"target": "classes"}': "Layer 'aux' (class 'softmax'): it has a target, but no loss. " + _LEFT_OUT,
        'network["aux"] = float("nan")': "Layer 'aux' must be a dict such as {'class': 'linear', ...}, got nan.",
        'network["aux"] = float("inf")': "Layer 'aux' must be a dict",
        'network["aux"] = None': "Layer 'aux' must be a dict",
        'network["aux"] = set()': "Layer 'aux' must be a dict",
        'network["aux"] = {"class": "nosuch"}': "Layer 'aux': unknown layer class 'nosuch'.",
        'network["aux"] = {"class": "copy", "from": 1}': "'from' must be the name of a layer or a list of names",
        'network["aux"] = {"class": "copy", "from": "hiden"}': "there is no layer 'hiden'. " + _LEFT_OUT,
    }
)
# targets
_UNKNOWN = "target 'nosuch' is neither a layer nor a data key. Known: classes, data."
TOLD.update(
    {
        'network["hidden"]["target"] = "nosuch"': "Layer 'hidden' (class 'linear'): " + _UNKNOWN,
        'target = "nosuch"': "config key 'target': there is no data key 'nosuch'. Known: classes, data.",
    }
)

# settings without effect: alone, or beside another one
_IDLE = {
    "momentum = 0.9; optimizer = {'class': 'adam'}": "momentum (optimizer takes its place)",
    "adam = True; optimizer = {'class': 'adam'}": "adam (optimizer takes its place)",
    "rmsprop = 0.9; optimizer = {'class': 'adam'}": "rmsprop (optimizer takes its place)",
    "optimizer = {'class': 'adam', 'epsilon': 1e-8}; optimizer_epsilon = 1": "the optimizer has an epsilon of its own)",
    "optimizer_epsilon = 0.1; momentum = 0.9": "optimizer_epsilon (the optimizer momentum has none)",
    "newbob_multi_num_epochs = 3": "newbob_multi_num_epochs (it needs learning_rate_control)",
    "newbob_learning_rate_decay = 0.7": "newbob_learning_rate_decay (it needs learning_rate_control)",
    "learning_rate_decay = 0.7": "learning_rate_decay (it needs learning_rate_control)",
    "learning_rate_decay = 0.7; learning_rate_control = 'constant'": "learning_rate_decay (it needs",
    "min_learning_rate = 0.1": "min_learning_rate (it needs learning_rate_control)",
    "newbob_relative_error_threshold = 0": "newbob_relative_error_threshold (it needs learning_rate_control)",
    "min_chunk_size = 3": "min_chunk_size (it needs chunking)",
    "chunking_variance = 0.3": "chunking_variance (it needs chunking)",
    "chunk_eval = True": "chunk_eval (it needs chunking)",
    "pretrain_repetitions = 3": "pretrain_repetitions (it needs pretrain)",
    "pretrain_learning_rate = 0.1": "pretrain_learning_rate (it needs pretrain)",
    "use_learning_rate_control_always = True": "use_learning_rate_control_always (it needs pretrain)",
    "max_skipped_steps = 3": "max_skipped_steps (it needs stop_on_nonfinite_train_score = False or loss_spike or",
    "gradient_clip_global_norm_tag = 'a'": "gradient_clip_global_norm_tag (it needs gradient_clip_global_norm)",
    "seq_drop_freq = 3": "seq_drop_freq (it needs seq_drop)",
    "inc_seq_length = 5": "inc_seq_length (it needs max_seq_length)",
    "horovod_reduce_type = 'param'": "horovod_reduce_type (it needs use_horovod or distributed)",
    "horovod_timeout = 10; use_horovod = False": "horovod_timeout (it needs use_horovod or distributed)",
    "tf_session_opts = {'allow_soft_placement': False}": "allow_soft_placement (only the numbers of threads have an",
    "tf_session_opts = {'gpu_options': {}}": "tf_session_opts: gpu_options (GPU memory is taken as it is needed;",
}
TOLD.update(_IDLE)
# contradictions
TOLD.update(
    {
        "num_inputs = 5": "extern_data has dim 9 for data key 'data', but num_inputs says 5. extern_data counts.",
        "num_outputs = {'data': [9, 2], 'classes': [3, 1]}": "dim 2 for data key 'classes', but num_outputs says 3.",
        "def get_network(epoch): return {'output': {'class': 'softmax', 'loss': 'ce', 'from': 'data'}}": (
            "'network' (my.config:4) has no effect: get_network makes the networks. Remove one of them."
        ),
        "dev = train; eval_datasets = {'dev': train}": "has a dataset 'dev', but so has the config itself, which is",
        "learning_rate = 0": "is 0, so the training changes nothing.",
        "learning_rate_decay = 2.0; learning_rate_control = 'newbob'": "is 2, so a learning rate that should decay",
    }
)
# options of layers
_IN_HIDDEN = "Layer 'hidden' (class 'linear'): option %r has no effect: it needs %s"
TOLD.update(
    {
        'network["hidden"]["%s"] = %s' % (name, value): _IN_HIDDEN % (name, needed)
        for name, value, needed in [
            ("dropout_noise_shape", "{'*': None}", "dropout"),
            ("dropout_axis", "'F'", "dropout"),
            ("dropout_on_forward", "True", "dropout"),
            ("loss_scale", "0.5", "loss"),
            ("loss_only_on_non_search", "True", "loss"),
            ("param_dropout_min_ndim", "2", "param_dropout"),
        ]
    }
)
TOLD.update(
    {
        'network["hidden"].update(with_bias=False, bias_init=1.0)': _IN_HIDDEN % ("bias_init", "with_bias"),
        'network["hidden"] = {"class": "conv", "n_out": 3, "filter_size": (1,), "padding": "same", "with_bias": False, '
        '"bias_init": 1.0, "from": "data"}': "option 'bias_init' has no effect: it needs with_bias",
    }
)
_CELL = 'network["hidden"] = {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data", %s}'
TOLD.update(
    {
        _CELL % ("%r: %r" % option): "option %r has no effect: it is for a network as unit, not for the cell"
        % option[0]
        for option in [
            *[("max_seq_len", 10), ("max_seq_len", "max_len_from('data')")],
            *[("include_eos", True), ("checkpoint_steps", True)],
        ]
    }
)
# misspelt settings, with the right one there, too
TOLD.update(
    {
        "%s = 0.5; learning_rate = 0.1" % name: "is not a known setting. Did you mean 'learning_rate'?"
        for name in ("learning_rte", "Learning_rate", "learning_rrate", "learning_rate_"[:-2], "laerning_rate")
    }
)

#: What is usual, and therefore not worth a word.
SILENT: list[str] = [
    "",
    'network["aux"] = {"class": "softmax", "from": "hidden", "n_out": 3}',
    _AUX + '"target": "classes", "loss": None}',
    _AUX + '"target": "classes", "only_on_search": True}',
    _AUX + '"target": "classes"}; network["search"] = {"class": "copy", "from": "aux"}',
    'network["aux"] = {"class": "decide", "from": "output", "target": "classes", "loss": "edit_distance", '
    '"only_on_search": True}',
    'target = "classes"',
    """target = "classes"; extern_data["labels"] = extern_data.pop("classes"); network["output"]["target"] = "labels"
train = {"class": "StaticDataset", "data": [{"data": [[0.0] * 9], "labels": [1]}]}""",
    "num_inputs = 9; num_outputs = {'classes': (2, 1)}",
    "def get_network(epoch): return network",
    "def get_network(epoch): return globals()['network']",
    "import functools; get_network = functools.partial(lambda net, epoch: net, network)",
    "def changed(): return network\ndef get_network(epoch): return changed()",
    "tf_session_opts = dict(allow_soft_placement=True, log_device_placement=False, gpu_options={'allow_growth': True})",
    "optimizer = {'class': 'adam'}; optimizer_epsilon = 0.1",
    "adam = True; optimizer_epsilon = 0.1",
    "momentum = 0.9",
    "learning_rate_control = 'newbob_rel'; newbob_learning_rate_decay = 0.7; min_learning_rate = 0.1",
    "learning_rate_control = 'newbob_rel'; newbob_multi_num_epochs = 3; learning_rate_growth = 2",
    "chunking = '0'; min_chunk_size = 1; chunk_eval = False",
    "train['chunking'] = '5:5'; min_chunk_size = 2",
    "chunking = '5:0'",  # the step is the size
    "max_seq_length = 0; seq_drop_freq = 10",  # no limit
    "accum_grad_multiple_step = 0; gradient_clip = 0",  # off
    "stop_on_nonfinite_train_score = False; max_skipped_steps = 3",
    "learning_rate = 0; learning_rates = [0.1]",
    'network["hidden"].update(dropout=0.0, dropout_noise_shape={"*": None})',
    'network["hidden"].update(loss=None, loss_scale=0)',
    'network["hidden"].update(loss_scale=None, loss_only_on_non_search=False)',
    'network["hidden"].update(with_bias=False)',
    "batch_sizes = 3; learning_rate2 = 0.2; learning_rate = 0.1; LEARNING_RTE = 3",
    'network["labels"] = {"class": "copy", "from": "data:classes", "register_as_extern_data": "own"}; target = "own"',
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def lines_of(capsys: pytest.CaptureFixture[str], change: str, *command: str) -> list[str]:
    """Run a command on the changed config; return the lines of its output that tell of something."""
    pathlib.Path("my.config").write_text("%smodel = 'm'\n%s\n" % (BASE, change))
    assert main([*command, "my.config"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines() + captured.err.splitlines()
    return [line for line in lines if line.startswith(("Warning", "note: ", "Settings without effect", "config"))]


@pytest.mark.parametrize("change", TOLD)
def test_told_in_the_log_and_by_check(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("check",)):
        log.configure()  # what the first has told is forgotten
        lines = [line for line in lines_of(capsys, change, *command) if not line.startswith("config: ")]
        assert len(lines) == 1 and TOLD[change] in lines[0], (command, lines)


@pytest.mark.parametrize("change", SILENT)
def test_usual_configs_are_not_talked_about(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("check",)):
        assert [line for line in lines_of(capsys, change, *command) if not line.startswith("config: ")] == []


@pytest.mark.parametrize(
    "change, message",
    [
        (
            _AUX + '"loss": "ce", "target": "classes", "only_on_search": "xxx"}',
            "option 'only_on_search' must be True or False",
        ),
        (_AUX + '"loss": "ce", "target": "classes", "is_output_layer": "xxx"}', "option 'is_output_layer' must be"),
        ("chunking = '0:5'", "option 'chunking' is '0:5': chunks of 0 frames. Write '0' to cut nothing"),
        ("accum_grad_multiple_step = -1", "'accum_grad_multiple_step' (my.config:10) must be at least 0"),
        ("save_interval = 0", "'save_interval' (my.config:10) must be at least 1, got 0"),
        ("max_pad_size = -1", "'max_pad_size' (my.config:10) must be at least 0, got -1"),
        ("max_pad_size = {'data': -1}", "'max_pad_size' (my.config:10) must be at least 0, got {'data': -1}"),
        ("requeue_exit_code = 300", "'requeue_exit_code' (my.config:10) must be from 1 to 255, got 300"),
        ("requeue_exit_code = 0", "'requeue_exit_code' (my.config:10) must be from 1 to 255, got 0"),
        ("learning_rate = float('inf')", "'learning_rate' (my.config:10) must be finite, got inf"),
        ("tf_session_opts = {'intra_op_paralelism_threads': 1}", "Did you mean 'intra_op_parallelism_threads'?"),
        ('network["output"]["loss_opts"] = {"focal_loss_factor": -1}', "option 'focal_loss_factor' must be at least 0"),
        ('network["hidden"]["L2"] = -1', "Layer 'hidden' (class 'linear'): option 'L2' must be at least 0, got -1"),
        ('network["hidden"]["darc1"] = -2', "option 'darc1' must be at least 0, got -2"),
        ('network["output"]["loss_scale"] = float("inf")', "option 'loss_scale' must be finite, got inf"),
    ],
)
def test_is_an_error(change: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("my.config").write_text("%smodel = 'm'\n%s\n" % (BASE, change))
    for command in ((), ("check",)):
        assert main([*command, "my.config"]) == 2
        assert message in capsys.readouterr().err


def test_a_typo_in_the_options_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("my.config").write_text(BASE + "submit = {'tiem': '24:00:00'}")
    assert main(["check", "my.config"]) == 2
    assert "config key 'submit' (my.config:9): unknown option 'tiem'. Did you mean 'time'?" in capsys.readouterr().err
    pathlib.Path("my.config").write_text(BASE + "submit = {'gpus': 1}")
    assert main(["check", "my.config"]) == 0


def test_a_learning_rate_of_zero_is_no_matter_of_other_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(capsys, "learning_rate = 0; task = 'forward'; forward_data = 'train'", "check") == []


def test_a_wrong_switch_is_no_less_wrong_in_a_search() -> None:
    pathlib.Path("my.config").write_text(BASE + _AUX + '"loss": "ce", "target": "classes", "only_on_search": "xxx"}')
    assert main(["check", "my.config", "++task", "search"]) == 2


@pytest.mark.parametrize("code", ["user = os.getlogin()", "def get_network(epoch): return {os.getlogin(): {}}"])
def test_there_is_no_terminal(code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers and jobs."""

    def getlogin() -> str:
        raise OSError(6, "No such device or address")

    monkeypatch.setattr("os.getlogin", getlogin)
    pathlib.Path("my.config").write_text("import os\n" + BASE + code + "\n")
    for command in ((), ("check",)):
        assert main([*command, "my.config"]) == 2
        err = capsys.readouterr().err
        assert "use getpass.getuser() instead of os.getlogin()" in err and "my.config:10: OSError: [Errno 6]" in err


def test_check_tells_that_nothing_searches(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("my.config").write_text("%s" % BASE)
    assert main(["check", "my.config", "++task", "search"]) == 2
    err = capsys.readouterr().err
    assert (
        0 <= err.find("Warning: The network does not search: it has no layer 'choice'") < err.find("no dataset 'eval'")
    )


def test_what_holds_for_many_layers_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    conv = '{"class": "conv", "n_out": 3, "filter_size": (3,), "padding": "same", "strides": 2, "from": "data"}'
    change = "network.update({'c%%d' %% i: {**%s, 'is_output_layer': True} for i in range(5)})" % conv
    for command in ((), ("check",)):
        (line,) = [line for line in lines_of(capsys, change, *command) if not line.startswith("config: ")]
        assert "Layers 'c0', 'c1', 'c2' and 2 others: with stride 2, padding 'same' places the window" in line
