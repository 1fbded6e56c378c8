"""Config: typed readers against recorded ones, files, overrides, errors with the place, misspelt keys."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.config import Config, ConfigError, config_from_recipe, nearest_name
from returnn_tf.config.readers import RawSetting
from returnn_tf.config.settings import misspelt_keys
from returnn_tf.config.settings.network import NetworkSettings

DATA = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "config")
with open(os.path.join(DATA, "config_parsing.json"), encoding="utf8") as _f:
    CASES = json.load(_f)["cases"]

READERS = {
    "value": Config.str,
    "int": Config.int,
    "float": Config.float,
    "bool": Config.bool,
    "list": Config.list,
    "int_list": Config.int_list,
    "float_list": Config.float_list,
    "typed_value": Config.typed_value,
    "opt_typed_value": Config.opt_typed_value,
    "bool_or_other": Config.bool_or_other,
    "int_pair": Config.int_pair,
}


def from_arguments(args):
    """Return the config which a command line gives."""
    parsed = parse_arguments(args)
    return Config.from_files(parsed.files, parsed.overrides)


@pytest.mark.parametrize("case", [c for c in CASES if "exception" not in c], ids=lambda c: " ".join(c["args"]))
def test_recorded_readers(case, monkeypatch):
    """Each reader gives the recorded value, or an error where the recorded one is an error."""
    monkeypatch.chdir(DATA)
    config = from_arguments(case["args"])
    for key, expected in case["read"].items():
        raw = config.raw(key)
        assert expected["typed"] == (not isinstance(raw, RawSetting)), key
        if expected["raw"] == "function":
            assert callable(raw)
            continue
        assert repr(raw.parts if isinstance(raw, RawSetting) else raw) == expected["raw"], key
        for name, value in expected.items():
            if name in ("typed", "raw"):
                continue
            if value.startswith("error"):
                with pytest.raises(ConfigError, match=key):
                    READERS[name](config, key)
            else:
                assert repr(READERS[name](config, key)) == value, (key, name)


@pytest.mark.parametrize(
    "case",
    # "--config FILE" reads that file here, too
    [c for c in CASES if "exception" in c and "--config" not in c["args"]],
    ids=lambda c: " ".join(c["args"]),
)
def test_recorded_errors(case, monkeypatch):
    """What was an exception is a ConfigError."""
    monkeypatch.chdir(DATA)
    with pytest.raises(ConfigError):
        from_arguments(case["args"])


def test_text_has_a_sensible_type():
    """A new key from the command line: typed() understands Python literals."""
    config = Config.from_files([], [("batch_size", "{'data': 3000}"), ("model", "a/b"), ("load_epoch", "7")])
    assert config.typed("batch_size") == {"data": 3000}
    assert config.typed("model") == "a/b"
    assert config.typed("load_epoch") == 7
    assert config.typed("absent", 3) == 3


def test_override_of_none_may_be_a_path(tmp_path):
    """A setting of None says nothing on its type."""
    path = write(tmp_path, "load = None\n")
    assert Config.from_files([path], [("load", "model/net")]).typed("load") == "model/net"
    assert Config.from_file(path).str("load", "x") == "x"


def write(folder, text, name="my.config"):
    path = folder / name
    path.write_text(text, encoding="utf8")
    return str(path)


def test_python_config(tmp_path):
    """Names become settings; modules and config don't; functions see overrides."""
    path = write(
        tmp_path,
        "import numpy\nfrom collections import OrderedDict\nx = 3\n_private = 1\nold = config.int('x', 7)\n"
        "def f(a):\n  return a + x\n",
    )
    config = Config.from_files([path], [("x", "10")])
    assert config.keys() == ["OrderedDict", "_private", "f", "old", "x"]
    assert config.int("old") == 10 and config.typed("f")(1) == 11
    assert "config" not in config and "numpy" not in config
    assert config.describe_source("x") == "config key 'x' (the command line)"
    assert config.describe_source("old") == "config key 'old' (%s:5)" % path


BRANCHES = """
task = "train"
if task == "search":
    found = "search"
else:
    found = "train"
def later():
    task = "mine"
    return task, found
class Mine:
    task = "own"
"""


@pytest.mark.parametrize("form", ["task = 'train'", "task: str = 'train'", "if True:\n  task = 'train'"])
def test_the_task_of_the_command_line_is_what_a_config_branches_on(tmp_path, form):
    """Also where the file sets another one; and in the file after it, and in another process."""
    path = write(tmp_path, BRANCHES.replace('task = "train"', form, 1))
    other = write(tmp_path, BRANCHES.replace("found", "again"), "other.config")
    config = Config.from_files([path, other], [("task", "search")])
    assert config.value("task") == config.typed("found") == config.typed("again") == "search"
    assert config.typed("later")() == ("mine", "search") and config.typed("Mine").task == "own"
    assert not config.stale_values()
    assert Config.from_files([path]).typed("found") == "train"
    assert config_from_recipe(config.recipe()).typed("again") == "search"


def test_values_that_were_read_before_the_command_line_changed_them(tmp_path):
    """As in RETURNN, code of a file sees what the file says, unless it asks the config; the log tells where."""
    path = write(
        tmp_path,
        "#!rnn.py\nnum_epochs = 5\nsize = config.int('size', 3)\nother = 4\nsame = 6\n"
        "rates = [0.1] * num_epochs + [size, same]\ndef f():\n  return other\n",
    )
    config = Config.from_files([path], [("num_epochs", "7"), ("size", "8"), ("other", "9"), ("same", "6")])
    assert config.typed("rates") == [0.1] * 5 + [8, 6] and config.int("num_epochs") == 7 and config.typed("f")() == 9
    assert config.stale_values() == [
        "++num_epochs 7: %s:6 has computed with 5 before, since the command line comes after the file. There, write "
        "num_epochs = config.int('num_epochs', 5)" % path
    ]


def test_python_without_shebang_and_dataclass(tmp_path):
    """A file is Python unless it looks like lines of key and value; classes with text annotations can be made."""
    path = write(
        tmp_path,
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n  x: int = 3\n"
        "network = {}\n",
    )
    assert Config.from_file(path).typed("network") == {}
    assert Config.from_file(write(tmp_path, "# nothing yet\n")).keys() == []


def test_import_of_a_file_beside(tmp_path):
    """A config imports a helper in its own folder."""
    write(tmp_path, "def size():\n  return 5\n", "helper_of_config_test.py")
    config = Config.from_file(write(tmp_path, "from helper_of_config_test import size\nn = size()\n"))
    assert config.int("n") == 5


@pytest.mark.parametrize(
    "text, expected",
    [
        ("x = 1\ny = (2\n", [":2: not valid Python", "y = (2", "^"]),
        ("x = 1\ny = x / 0\n", [":2: ZeroDivisionError", "y = x / 0"]),
        ("def f():\n  return z\n\nf()\n", [":2: NameError", "return z"]),
        ("import sys\nsys.exit(3)\n", [":2: SystemExit"]),
        ("import no_such_module_\n", [":1: ModuleNotFoundError", "Install it"]),
        ("x = config.int('y', 0)\ny = 0.5\nz = config.int('y')\n", [":3: config key 'y'", "a whole number, got 0.5"]),
        ("this is no config at all\n", [":1: not valid Python", "lines 'key value'"]),
        ('{"a": 1,\n "b" 2}', [":2: not valid JSON"]),
        ("\x00\x01", ["not valid Python"]),
    ],
)
def test_errors_name_the_place(tmp_path, text, expected):
    """File, line number and the line."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as info:
        Config.from_file(path)
    for part in [path] + expected:
        assert part in str(info.value)


@pytest.mark.parametrize(
    "content",
    ["x = 'ü'\n".encode("utf-8-sig"), "# -*- coding: latin1 -*-\nx = 'ü'\n".encode("latin1"),
     '{"x": "ü"}'.encode("utf-8-sig"), "x ü\n".encode("utf-8-sig"), "x = 'ü'\r\n".encode(),
     "#!rnn.py\n# decoding: greedy\nx = 'ü'\n".encode()],
    ids=["mark", "cookie", "json", "lines", "crlf", "another word"],
)  # fmt: skip
def test_encodings(tmp_path, content):
    """Those that Python reads."""
    (tmp_path / "a.config").write_bytes(content)
    assert Config.from_file(str(tmp_path / "a.config")).typed("x") == "ü"


@pytest.mark.parametrize(
    "content, message",
    [
        (b"# coding: klingon\nx = 1\n", "a.config: unknown encoding: klingon"),
        (b"# coding: hex\nx = 1\n", "a.config: 'hex' is not a text encoding"),
        (b"# coding: undefined\nx = 1\n", "a.config: not a text file"),
        (b"# decoding: greedy\nx = '\xff'\n", "a.config: not a text file"),
        (b"x = 1\ny = 2\nz = '\xff'\n", "a.config: not a text file"),
        (b"raise ValueError('%s')\n" % (b"a" * 100000), "a.config:1: ValueError: aaa.*aaa\n    raise ValueError"),
        (
            b"x = 1\ny = [%s\n" % (b"1," * 50000),
            "a.config:2: not valid Python: '.' was never closed\n    y = .1,1.* [.][.][.] ",
        ),
        (b"x = %s1\n" % (b"1+" * 100000), "a.config: Python can't read it: an expression has too many parts"),
    ],
    ids=["unknown", "of bytes", "of nothing", "of no coding", "later line", "long error", "long line", "long sum"],
)
def test_errors_of_texts(tmp_path, content, message):
    """One error each, of a size that can be read."""
    (tmp_path / "a.config").write_bytes(content)
    with pytest.raises(ConfigError, match="(?s)" + message) as info:
        Config.from_file(str(tmp_path / "a.config"))
    assert len(str(info.value)) < 3000


def test_a_long_sum_that_python_reads(tmp_path):
    (tmp_path / "a.config").write_text("x = []\nx.append(%s1)\n" % ("1+" * 899))
    for overrides in ([], [("task", "search")]):
        assert Config.from_files([str(tmp_path / "a.config")], overrides).typed("x") == [900]


def test_a_device_in_place_of_a_config():
    """It has no end."""
    with pytest.raises(ConfigError, match="/dev/zero: has more than 64 MB, so it is not a config"):
        Config.from_file("/dev/zero")


def test_errors_of_files(tmp_path):
    """Missing, binary, a folder, including itself."""
    with pytest.raises(ConfigError, match="not found"):
        Config.from_file(str(tmp_path / "none.config"))
    (tmp_path / "b.config").write_bytes(b"\x89HDF\r\n\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file"):
        Config.from_file(str(tmp_path / "b.config"))
    with pytest.raises(ConfigError, match="can't be read"):
        Config.from_file(str(tmp_path))
    with pytest.raises(ConfigError, match="includes itself"):
        Config.from_file(write(tmp_path, "x 3\ninclude my.config\n"))


def test_reader_error_says_where(tmp_path):
    """The message names key, file, line and value."""
    path = write(tmp_path, "a = 1\nnum_epochs = 'many'\n")
    with pytest.raises(ConfigError) as info:
        Config.from_file(path).int("num_epochs", 5)
    assert str(info.value) == "config key 'num_epochs' (%s:2): expected a whole number, got 'many' (a string)" % path


def test_missing_key_suggests():
    """raw() and [] of a key which isn't set."""
    with pytest.raises(ConfigError, match="Did you mean 'batch_size'"):
        Config({"batch_size": 3})["batchsize"]


@pytest.mark.parametrize("value, expected", [(None, 0), (21, 21), (0, 0), (30, 30)])
def test_behavior_version(value, expected):
    """Absent is 0."""
    config = Config() if value is None else Config({"behavior_version": value})
    assert NetworkSettings(config).behavior_version == expected


@pytest.mark.parametrize("value", [-1, 31, 2.5, "21", True, "new"])
def test_behavior_version_errors(value):
    """Anything but an int of the known range."""
    with pytest.raises(ConfigError, match="behavior_version"):
        NetworkSettings(Config({"behavior_version": value})).behavior_version  # noqa: B018


def test_misspelt_keys(tmp_path):
    """Reported: near a known key, and used by nothing."""
    path = write(
        tmp_path,
        "bacth_size = 100\nnum_epoch = 5\nlearning_rates_ = 1\n_tarin = 3\nmax_seq = 30\nmax_seqs = max_seq\n"
        "def optimiser():\n  pass\nclass Network:\n  pass\nnetwork = {}\nEpochSplit = 3\nnetworks = 4\nfoo = 1\n"
        "learning_rat = 0.1\nBEAM_SIZE = 3\n",
    )
    config = Config.from_files([path], [("taks", "eval"), ("MODEL", "x")])
    assert config.int("num_epoch") == 5  # asked for by somebody: it has a meaning
    assert misspelt_keys(config) == [
        ("MODEL", "model"),
        ("bacth_size", "batch_size"),
        ("learning_rat", "learning_rate"),
        ("learning_rates_", "learning_rates"),
        ("taks", "task"),
    ]
    assert misspelt_keys(Config({"model": "x", "mask": 3, "cache_files": 1})) == []


def test_misspelt_beside_the_right_key(tmp_path):
    """Swapped letters are never a helper of the config."""
    path = write(tmp_path, "batch_size = 3\nbacth_size = 4\nnetwork = {}\nnetworks = 4\n")
    assert misspelt_keys(Config.from_file(path)) == [("bacth_size", "batch_size")]


@pytest.mark.parametrize(
    "name, known, nearest",
    [
        ("tahn", ["tan", "tanh", "sin"], "tanh"),
        ("adma", ["adam", "adamax", "adamw"], "adam"),
        ("adamm", ["adamw", "adam"], "adam"),
        ("SOFTMAX", ["softmax"], "softmax"),
        ("xyz", ["softmax"], None),
    ],
)
def test_nearest_name(name, known, nearest):
    """The one with the fewest slips, swapped letters being one."""
    assert nearest_name(name, known) == nearest


def test_pickle_and_recipe(tmp_path):
    """Another process gets the same config, functions included."""
    path = write(tmp_path, "x = 3\ndef f(a):\n  return a * x\nmodel = None\n")
    config = Config.from_files([path], [("x", "5"), ("new", "a,b")])
    config.update({"epochs": [1, 2]})
    config.set("model", "m")
    for copy in (pickle.loads(pickle.dumps(config)), config_from_recipe(config.recipe())):
        assert copy.keys() == config.keys()
        assert copy.typed("f")(2) == 10 and copy.list("new") == ["a", "b"]
        assert copy.typed("epochs") == [1, 2] and copy.str("model") == "m"
    code = "import pickle, sys; c = pickle.load(sys.stdin.buffer); print(c.typed('f')(4))"
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(config), capture_output=True, check=True)
    assert out.stdout.strip() == b"20"


def test_keys_must_be_strings():
    """Config({1: 2}) is a mistake."""
    with pytest.raises(ConfigError, match="strings"):
        Config({1: 2})


def test_a_list_may_be_spelled_as_in_python() -> None:
    """As job managers give it on the command line."""
    config = Config()
    for key, text in {"a": "[1,2]", "b": "(3,)", "c": "[]", "d": "['x','y']", "e": "[1,", "f": "[0.5]"}.items():
        config.set_text(key, text)
    assert config.int_list("a") == [1, 2] and config.int_list("b") == [3] and config.int("b") == 3
    assert config.list("c") == [] and config.list("d") == ["x", "y"] and config.list("e") == ["[1", ""]
    assert config.float("f") == 0.5 and config.value("a") == "[1,2]"
    with pytest.raises(ConfigError, match="expected a whole number"):
        config.int("c")


def test_a_name_in_place_of_a_dataset() -> None:
    """``++search_data dev``, where the config has the dataset itself, names another one."""
    config = Config({"search_data": {"class": "HDFDataset"}, "max_seqs": 3})
    config.set_text("search_data", "dev")
    assert config.typed("search_data") == "dev"
    for key, text in {"search_data": "dev + 1", "max_seqs": "dev"}.items():
        with pytest.raises(ConfigError, match="'dev' is not defined|dev is no number"):
            Config({"search_data": {"class": "HDFDataset"}, "max_seqs": 3}).set_text(key, text)
