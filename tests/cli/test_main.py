"""The program as a whole: subcommands, exit codes, messages; no traceback for what a user did."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_tf._version import __version__, shown_version
from returnn_tf.cli.commands import COMMANDS, GROUPS, RUN, Command, fitted
from returnn_tf.cli.main import main
from returnn_tf.config import DataError
from returnn_tf.engine.distributed.world import World
from returnn_tf.logging.log import log
from returnn_tf.tasks import registry
from returnn_tf.util.lazy_tf import tf


@pytest.fixture
def config(tmp_path):
    """Return a function that writes a config file and returns its path."""

    def write(text):
        path = tmp_path / "my.config"
        path.write_text("#!returnn_tf\n" + text)
        return str(path)

    return write


@pytest.fixture
def task(monkeypatch):
    """Return a function that makes a task "for_test" of a function."""
    registry.TASKS.load()

    def register(function):
        monkeypatch.setitem(registry.TASKS._entries, "for_test", function)

    return register


def test_version_and_help(capsys):
    """Both end with 0; without arguments the help is an error."""
    assert main(["--version"]) == 0 and main(["-V"]) == 0
    assert capsys.readouterr().out == ("returnn_tf %s\n" % shown_version()) * 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    filled = " ".join(out.split())
    for name, command in COMMANDS.items():
        assert "%s %s" % (name, command.help) in filled
    assert COMMANDS[RUN].arguments in out
    assert max(map(len, out.splitlines())) <= 80
    groups = [out.index("\n%s\n" % title) for title in list(GROUPS.values())[:-1]]
    assert groups == sorted(groups)
    assert main([]) == 2
    assert capsys.readouterr().err == out


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("name", COMMANDS.names())
def test_help_of_a_command(name, option, capsys):
    """Each has its usage and what it does, and needs no other argument."""
    assert main([name, option]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: returnn-tf " + name) and len(captured.out.splitlines()) >= 3
    assert not captured.err


@pytest.mark.parametrize("name", COMMANDS.names())
def test_width_of_help(name):
    """Lines are broken between words, and no word is lost."""
    text = COMMANDS[name].help_text([])
    for width in (60, 80, 100):
        shown = fitted(text, width)
        assert sorted(shown.split()) == sorted(text.split())
        too_long = [line for line in shown.splitlines() if len(line) > width]
        # a command line of an example stays whole
        assert all(line.strip().startswith("returnn-tf " + name) and width < 100 for line in too_long)


def test_help_of_a_plugin_without_a_group(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS._entries, "plugged", Command("plugged", len, "", "does something"))
    monkeypatch.setitem(COMMANDS._spelled, "plugged", "plugged")
    assert main(["--help"]) == 0
    assert "From plug-ins\n  plugged     does something\n" in capsys.readouterr().out


def test_help_as_a_value(config, capsys):
    """After ``++`` all arguments are settings."""
    assert main(["check", config(""), "++model", "--help"]) == 2
    assert "usage" not in capsys.readouterr().out


def test_task_gets_the_config(config, task, capsys):
    """Settings of the command line win; the exit code of the task is that of the program."""
    seen = []

    def run(config):
        seen.append((config.int("x"), config.str("task")))
        return 7

    task(run)
    path = config("x = 3\ntask = 'train'\n")
    assert main([path, "++x", "5", "++task", "for_test"]) == 7
    assert seen == [(5, "for_test")]
    out = capsys.readouterr().out
    assert "task for_test" in out and "config: " + path in out
    assert re.search(r"elapsed: \d+:\d\d:\d\d\n", out)  # since the process started, which here runs other tests too


def test_log_file_and_callback(config, task, tmp_path):
    """The log goes to the file with its level; the callback runs before the task."""
    task(lambda config: log.write(4, "called=%s" % config.typed("called")) or 0)
    path = config(
        "log = ['%s/x.log']\nlog_verbosity = [4, 1]\ncalled = []\ntask = 'for_test'\n"
        "def startup_callback(config):\n  called.append(1)\n" % tmp_path
    )
    assert main([path]) == 0
    assert "called=[1]" in (tmp_path / "x.log").read_text()


@pytest.mark.parametrize(
    "text, args, message",
    [
        ("", ["++task", "for_tset"], "unknown task 'for_tset'. Did you mean 'for_test'?"),
        ("x = = 3", [], "my.config:2: not valid Python"),
        ("x = 1 / 0", [], "my.config:2: ZeroDivisionError: division by zero\n    x = 1 / 0"),
        ("behavior_version = 99", [], "behavior_version"),
        ("log_verbosity = 9", ["++task", "nop"], "log_verbosity"),
        ("log_format = 'x'", ["++task", "nop"], "log_format"),
        ("log = '/dev/null/x'", ["++task", "nop"], "'/dev/null' can't be written"),
        ("", ["++x"], "needs a value"),
        ("startup_callback = 3", ["++task", "nop"], "my.config:2) must be a function or None, got 3"),
        (
            "def startup_callback(config):\n  1 / 0",
            ["++task", "nop"],
            "my.config:3: ZeroDivisionError: division by zero\n    1 / 0",
        ),
        (
            "import sys\ndef startup_callback(config):\n  sys.exit(3)",
            ["++task", "nop"],
            "my.config:4: SystemExit: 3\n    sys.exit(3)",
        ),
        (
            "def startup_callback(config):\n  raise SystemExit('no data')",
            ["++task", "nop"],
            "my.config:3: SystemExit: no data\n",
        ),
        ("", ["++task", "config:run"], "no function 'run'"),
    ],
)
def test_mistakes_of_the_user(config, task, capsys, text, args, message):
    """Exit code 2, a message, no traceback."""
    task(lambda config: 0)
    assert main([config(text)] + args) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and "Traceback" not in err


@pytest.mark.parametrize("value, told", [("3", ["SystemExit: 3"]), ("'no data'", ["SystemExit: no data"]), ("0", [])])
def test_code_of_the_config_that_exits(config, task, monkeypatch, value, told):
    """The other processes learn that this one has failed, if it has."""
    seen = []
    monkeypatch.setattr(World, "failed", lambda world, text: seen.append(text))
    task(lambda config: 0)
    path = config("import sys\ndef startup_callback(config):\n  sys.exit(%s)" % value)
    if told:
        assert main([path, "++task", "for_test"]) == 2
    else:
        with pytest.raises(SystemExit) as end:
            main([path, "++task", "for_test"])
        assert not end.value.code
    assert seen == told


def test_missing_config(capsys):
    """A file that isn't there."""
    assert main(["no.config"]) == 2
    assert "config file 'no.config' not found" in capsys.readouterr().err


def test_misspelt_command(capsys):
    """It is no config file either."""
    assert main(["chekc", "my.config"]) == 2
    assert "there is no command and no config file 'chekc'. Did you mean 'check'?" in capsys.readouterr().err
    assert main(["trian", "my.config"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


def test_task_as_a_command(capsys):
    assert main(["search", "my.config"]) == 2
    assert "To run this task: returnn-tf my.config ++task search" in capsys.readouterr().err


def test_train(config, monkeypatch, capsys):
    """The task is train, whatever the config says; another one on the command line is a mistake."""
    seen = []
    registry.TASKS.load()
    monkeypatch.setitem(registry.TASKS._entries, "train", lambda config: seen.append(config.int("x")) or 0)
    path = config("task = 'search'\nx = 3")
    assert main(["train", path]) == 0 and main(["train", path, "++x", "5", "++task", "train"]) == 0
    assert seen == [3, 5]
    capsys.readouterr()
    for args, message in {
        (): "train: which config? returnn-tf train my.config",
        (path, "++task", "eval"): "train: for another task: returnn-tf run %s ++task eval" % path,
        (path, "--sanity"): "train: for another task: returnn-tf run %s --sanity" % path,
    }.items():
        assert main(["train", *args]) == 2
        assert message in capsys.readouterr().err
    assert seen == [3, 5]


def test_misspelt_override_is_reported(config, task, capsys):
    """Also if the config sets the right key."""
    task(lambda config: 0)
    assert main([config("batch_size = 3\n"), "++task", "for_test", "++bacth_size", "5"]) == 0
    assert (
        "'bacth_size' (the command line) is not a known setting. Did you mean 'batch_size'?" in capsys.readouterr().out
    )


def test_traceback_at_level_5(config, task, capsys):
    """What stands behind a message, for who debugs code of their own."""
    task(lambda config: config.typed("run")())
    path = config("def run():\n  return {}['x']\n")
    assert main([path, "++task", "for_test"]) == 2
    captured = capsys.readouterr()
    assert "my.config:3: KeyError: 'x'" in captured.err and "Traceback" not in captured.out + captured.err
    assert main([path, "++task", "for_test", "++log_verbosity", "5"]) == 2
    captured = capsys.readouterr()
    assert "Traceback" in captured.out and "Traceback" not in captured.err


def raising(exc):
    """Return a task that raises."""

    def run(config):
        raise exc

    return run


@pytest.mark.parametrize(
    "exc, code, message, trace",
    [
        (DataError("a.hdf: truncated"), 1, "error: a.hdf: truncated", False),
        (KeyError("oops"), 1, "This looks like a bug in returnn_tf", True),
        (KeyboardInterrupt(), 130, "error: interrupted", False),
        (ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow"), 1, "pip install", False),
        (ModuleNotFoundError("No module named 'h5py'", name="h5py"), 1, "h5py is not installed. Install", False),
        (OSError(28, "No space left on device", "out/x"), 1, "error: out/x: No space left on device", False),
        (ModuleNotFoundError("No module named 'x'", name="x"), 1, "looks like a bug", True),
    ],
)
def test_other_errors(config, task, tmp_path, capsys, exc, code, message, trace):
    """Exit codes; the message goes to the log file, too."""
    task(raising(exc))
    assert main([config("task = 'for_test'\nlog = ['%s/x.log']\n" % tmp_path)]) == code
    err = capsys.readouterr().err
    assert message in err and ("Traceback" in err) == trace
    assert ("Traceback" in (tmp_path / "x.log").read_text()) == trace


def test_misspelt_key_is_reported(config, task, capsys):
    """As a warning with the suggestion."""
    task(lambda config: 0)
    path = config("bacth_size = 3\n")
    assert main([path, "++task", "for_test"]) == 0
    assert "Warning: config key 'bacth_size' (%s:2) is not a known setting. Did you mean 'batch_size'?" % path in (
        capsys.readouterr().out
    )


def test_setting_that_was_read_before_the_command_line_changed_it(config, task, capsys):
    """The log and check say where, and how to ask for the value."""
    task(lambda config: 0)
    path = config("num_epochs = 3\nrates = [0.1] * num_epochs\n")
    text = "Warning: ++num_epochs 4: %s:3 has computed with 3 before" % path
    assert main([path, "++num_epochs", "4", "++task", "for_test"]) == 0 and text in capsys.readouterr().out
    main(["check", path, "++num_epochs", "4"])
    assert text in capsys.readouterr().err
    assert main([path, "++task", "for_test"]) == 0 and "has computed" not in capsys.readouterr().out


def test_function_of_the_config_as_task(config, capsys):
    """config:<name>, optional-config:<name>, nop."""
    path = config("def run():\n  print('running')\n  return 3\n")
    assert main([path, "++task", "config:run"]) == 3
    assert "running" in capsys.readouterr().out
    assert main([path, "++task", "optional-config:walk"]) == 0
    assert main([path, "++task", "optional-config:run"]) == 3
    assert main([path, "++task", "nop"]) == 0


@pytest.mark.parametrize("args", [["--version"], ["++task", "nop"]])
def test_as_a_program(args):
    """python -m returnn_tf works and imports no TensorFlow."""
    code = (
        "import sys, runpy\nsys.argv[1:] = %r\n"
        "try:\n  runpy.run_module('returnn_tf', run_name='__main__')\n"
        "except SystemExit as exc:\n  assert not exc.code, exc.code\n"
        "assert 'tensorflow' not in sys.modules" % args
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "returnn_tf " + (shown_version() if args == ["--version"] else __version__) in done.stdout


@pytest.mark.slow
def test_output_that_nobody_reads():
    """``returnn-tf --help | true`` is no bug."""
    done = subprocess.run(
        "%s -m returnn_tf --help | true" % sys.executable, shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirection, args, code, message",
    [
        (">&-", "layers linear", 0, ""),
        (">&-", "layers no_such_layer", 2, "There is no layer class"),
        (">&- 2>&- <&-", "layers no_such_layer", 2, ""),
        (">/dev/full", "layers", 1, "error: No space left on device, while writing"),
        (">/dev/full 2>/dev/full", "layers", 1, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(redirection, args, code, message):
    """Neither a traceback, nor a file of ours in place of a stream."""
    command = "%s -m returnn_tf %s %s" % (sys.executable, args, redirection)
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr and (message or not done.stderr)


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["my.config"]) == 1
    assert "error: the working directory does not exist any more. Change to another one" in capsys.readouterr().err


LETTERS = """
print("a config that says ü")
train = dev = {"class": "Task12AXDataset", "num_seqs": 4}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "hidden ü": {"class": "linear", "n_out": 3, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden ü"},
}
batch_size = 1000
num_epochs = 1
learning_rate = 0.1
device = "cpu"
model = "nä t/ü"
tf_log_dir = None
log_verbosity = 5
"""


@pytest.mark.slow
@pytest.mark.parametrize("args", ["check my.config", "my.config"])
def test_a_terminal_that_lacks_letters(args, tmp_path):
    """They are shown as escapes, and end no run."""
    (tmp_path / "my.config").write_text(LETTERS, "utf8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "returnn_tf", *args.split()]
    done = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and b"\\xfc" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "exc, message",
    [
        (MemoryError(), "out of memory: allocation failed. Raise the limit"),
        (ImportError("lib.so: failed to map segment from shared object"), "out of memory: lib.so"),
        (OSError(errno.ENOSPC, "No space left"), "No space left on device, while writing"),
        (OSError(errno.EFBIG, "Too large"), "File too large, while writing"),
        (tf.errors.OutOfRangeError(None, None, "x.data; File too large"), "File too large, while writing. Raise"),
        (OSError(errno.EAGAIN, "Again"), "Raise the limit on processes and threads"),
        (OSError(errno.EMFILE, "Too many"), "Too many open files. Raise the limit of the process (ulimit -n)"),
        (OSError(errno.EMFILE, "Too many", "a.hdf"), "Too many open files. Raise the limit"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory: Cannot allocate memory. Raise the limit"),
    ],
)
def test_what_the_machine_lacks_is_no_bug(config, task, capsys, exc, message):
    """One line, exit code 1."""
    task(raising(exc))
    assert main([config(""), "++task", "for_test"]) == 1
    err = capsys.readouterr().err
    assert message in err and "looks like a bug" not in err


def test_a_name_that_is_no_utf8(config, capsys):
    """TensorFlow opens no such file."""
    for key in ("model", "load", "import_model_train_epoch1"):
        assert main([config("num_epochs = 1\n"), "++" + key, "a\udcff/m"]) == 2
        err = capsys.readouterr().err
        assert "'%s'" % key in err and "can be written in UTF-8" in err and "looks like a bug" not in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["submit", "--gpu", "1", "x.config"], "Did you mean '--gpus'?"),
        (["submit", "--dryrun", "x.config"], "Did you mean '--dry-run'?"),
        (["native", "build", "lsmt", "--output", "x.so"], "there is no op 'lsmt'. Did you mean 'lstm'?"),
        (["native", "build", "lstm", "--outptu", "x.so"], "--output"),
        (["native", "biuld"], "Did you mean 'build'?"),
    ],
)
def test_misspelt_arguments_of_commands(arguments, message, capsys) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
