"""What configs import from RETURNN: it is there for them, and for nobody else."""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from returnn_tf import Network
from returnn_tf.config import Config, ConfigError, WrapEpochValue
from returnn_tf.config.epoch_value import at_epoch, copied, same_value
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.tensor import Dim, batch_dim


def load(folder: pathlib.Path, text: str) -> Config:
    path = folder / "my.config"
    path.write_text("#!returnn\n" + text)
    return Config.from_file(str(path))


@pytest.mark.parametrize(
    "line, name",
    [
        ("from returnn.pretrain import WrapEpochValue", "WrapEpochValue"),
        ("from Pretrain import WrapEpochValue", "WrapEpochValue"),
        ("from returnn.forward_iface import ForwardCallbackIface", "ForwardCallbackIface"),
        ("from returnn.tf.util.basic import where_bc, nd_indices, tile_transposed", "where_bc"),
        ("from TFUtil import where_bc, safe_log, dropout, get_shape, Data, DimensionTag", "where_bc"),
        ("import returnn.tf.util.basic as tf_util\nfound = tf_util.where_bc", "found"),
        ("import returnn.tf.util.basic\nfound = returnn.tf.util.basic.where_bc", "found"),
        ("from returnn.tf.util.data import Dim, batch_dim, single_step_dim, SpatialDim, FeatureDim, Data", "Dim"),
        ("from returnn.util.basic import cleanup_env_var_path, cf, PY3", "cf"),
        ("from Util import load_txt_vector, py2_utf8_str_to_unicode", "load_txt_vector"),
        ("from returnn.config import get_global_config", "get_global_config"),
        ("from GeneratingDataset import Vocabulary", "Vocabulary"),
    ],
)
def test_imports_of_configs(tmp_path: pathlib.Path, line: str, name: str) -> None:
    before = set(sys.modules)
    config = load(tmp_path, line + "\ndef later():\n    %s\n    return %s\n" % (line.replace("\n", "\n    "), name))
    assert callable(config.typed(name))
    assert config.typed("later")() is config.typed(name)
    left = {module.split(".")[0] for module in set(sys.modules) - before}
    assert not left & {"returnn", "TFUtil", "Pretrain", "Util", "GeneratingDataset"}
    with pytest.raises(ImportError):
        importlib.import_module("TFUtil")


def test_helpers_beside_the_config_may_import_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "helper_of_compat_test.py").write_text("from Pretrain import WrapEpochValue\nvalue = WrapEpochValue\n")
    assert load(tmp_path, "from helper_of_compat_test import value\n").typed("value") is WrapEpochValue


LATE = """
import importlib, sys
import tensorflow as tf
sys.path.insert(0, LIB)
extern_data = {"data": {"dim": 5}}
wanted = importlib.import_module("returnn.pretrain").WrapEpochValue


def library():
    return importlib.import_module("late_library_of_compat_test.part")


def get_network(epoch, **others):
    return {**library().network, "add": {"class": "eval", "from": "data", "eval": add}}


def add(source, **others):
    return library().add(source(0))
"""


@pytest.mark.parametrize("epoch", [1, 2])
def test_modules_imported_by_functions_of_the_config(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """They find RETURNN's names when `get_network` runs, and when layers are computed, from any folder of the path."""
    library = tmp_path / "lib" / "late_library_of_compat_test"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("")
    (library / "part.py").write_text(
        "import returnn.tf.util.data as data\nfrom TFUtil import safe_log\nfrom Pretrain import WrapEpochValue\n"
        "def add(x):\n    from returnn.tf.util.basic import optional_add\n    return optional_add(x, 1.0)\n"
        "network = {'output': {'class': 'linear', 'from': 'add', 'out_dim': data.FeatureDim('out', 3)}}\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        config = load(tmp_path, LATE.replace("LIB", repr(str(tmp_path / "lib"))))
        assert config.typed("wanted") is WrapEpochValue and "late_library_of_compat_test" not in sys.modules
        net = Network.from_config(NetworkSchedule(config).at(epoch).config)
        x = np.zeros([1, 2, 5], "float32")
        assert net.run({"data": x, "data/size0": [2]}).layers["output"].value.shape == (1, 2, 3)
        with pytest.raises(ImportError):
            importlib.import_module("TFUtil")
        assert not [name for name in sys.modules if name.split(".")[0] in ("returnn", "TFUtil")]
    finally:
        for name in [name for name in sys.modules if name.startswith("late_library_of_compat_test")]:
            del sys.modules[name]


def test_the_real_modules_are_left_alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours are taken even if RETURNN is installed, and what other code imports is RETURNN's."""
    package = tmp_path / "checkout" / "returnn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "pretrain.py").write_text("WrapEpochValue = 'the real one'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "checkout"), *sys.path])
    try:
        config = load(tmp_path, "from returnn.pretrain import WrapEpochValue as w\nimport returnn.tf.util.basic\n")
        assert config.typed("w") is WrapEpochValue and "returnn" not in sys.modules
        assert importlib.import_module("returnn.pretrain").WrapEpochValue == "the real one"
        assert load(tmp_path, "from returnn.pretrain import WrapEpochValue as w\n").typed("w") is WrapEpochValue
        assert sys.modules["returnn.pretrain"].WrapEpochValue == "the real one"
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "returnn"]:
            del sys.modules[name]


def test_a_file_beside_the_config_may_have_an_old_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "SprintCache.py").write_text("mine = 3\n")
    try:
        assert load(tmp_path, "from SprintCache import mine\n").typed("mine") == 3
    finally:
        sys.modules.pop("SprintCache", None)


@pytest.mark.parametrize(
    "line, name, message",
    [
        ("from LmDataset import LmDataset as X", "X", "Use instead: the dataset class in the options of the dataset"),
        (
            "from returnn.tf.engine import Runner as X",
            "X",
            "'Runner' of RETURNN's module 'returnn.tf.engine' is not.*Use instead: ",
        ),
        ("from returnn.some.thing import X", "X", "Copy what you need of it into the config"),
        ("import TFSprint as X", "X.f", "'f' of RETURNN's module 'TFSprint'"),
        ("import returnn.some.thing as X", "X.f", "'f' of RETURNN's module 'returnn.some.thing'"),
        ("import returnn.some.thing", "returnn.some.thing.f", "'f' of RETURNN's module 'returnn.some.thing'"),
    ],
)
def test_what_there_is_not_is_an_error_when_it_is_used(
    tmp_path: pathlib.Path, line: str, name: str, message: str
) -> None:
    text = "%s\nclass Derived(%s): pass\ndef use(): return %s(3)\n" % (line, name, name)
    config = load(tmp_path, text)
    place = r"imported in .*my.config:%d: " % (2 if "." not in name else 4)
    with pytest.raises(ConfigError, match=message) as error:
        config.typed("use")()
    assert re.search(place, str(error.value))
    with pytest.raises(ConfigError, match=message):
        config.typed("Derived")()


def test_place_of_what_there_is_not(tmp_path: pathlib.Path) -> None:
    """The error names the line that uses it, and the one that imports it."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, "from Pretrain import Pretrain\nPretrain()\n")
    for part in (":3: 'Pretrain' of RETURNN", "Copy what you need", ":2: from Pretrain"):
        assert part in str(error.value)


def test_small_helpers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PATHS", "/a/b:/c:/a/d")
    (tmp_path / "vector").write_text("1\n2.5  # two and a half\n\n")
    (tmp_path / "vocab").write_text("{'a': 0, 'b': 1, '<unk>': 2}")
    config = load(
        tmp_path,
        "from Util import *\nfrom Util import cleanup_env_var_path, load_txt_vector, cf, py2_utf8_str_to_unicode\n"
        "from GeneratingDataset import Vocabulary\nfrom returnn.config import get_global_config\n"
        "cleanup_env_var_path('SOME_PATHS', '/a')\nvector = load_txt_vector(%r)\nname = cf('x')\n"
        "vocab = Vocabulary.create_vocab(**{'class': 'Vocabulary', 'vocab_file': %r, 'unknown_label': '<unk>'})\n"
        "def ask(key):\n    return get_global_config().typed(key)\n"
        % (str(tmp_path / "vector"), str(tmp_path / "vocab")),
    )
    assert os.environ["SOME_PATHS"] == "/c"
    assert config.typed("vector") == [1.0, 2.5] and config.typed("name") == "x"
    vocab = config.typed("vocab")
    assert vocab.labels == ["a", "b", "<unk>"] and vocab.num_labels == 3
    assert vocab.get_seq("b x a") == [1, 2, 0] and vocab.get_seq_labels([1, 0]) == "b a"
    assert config.typed("ask")("name") == "x"


def test_dims_and_templates(tmp_path: pathlib.Path) -> None:
    config = load(
        tmp_path,
        "from TFUtil import DimensionTag, Data\nfrom returnn.tf.util.data import Dim, SpatialDim, batch_dim\n"
        "a = DimensionTag(kind=DimensionTag.Types.Spatial, description='a')\n"
        "b = Dim(kind=Dim.Types.Feature, dimension=5)\nare = [isinstance(a, Dim), isinstance(3, Dim)]\n"
        "data = Data(name='x', shape=(None, 5), dim=5)\nis_data = isinstance(data, Data)\nbatch = batch_dim\n",
    )
    a, b, data = (config.typed(key) for key in ("a", "b", "data"))
    assert isinstance(a, Dim) and a.is_dynamic() and a.description == "a" and b.size == 5
    assert config.typed("are") == [True, False] and config.typed("is_data") is True
    assert data.template.axis_kinds == ("B", "T", "F") and config.typed("batch") is batch_dim


FUNCTIONS: list[Any] = [
    ("where_bc([True, False], [[1], [2]], 0)", [[1, 0], [2, 0]]),
    ("nd_indices([[3, 4], [5, 6]])", [[[0, 3], [0, 4]], [[1, 5], [1, 6]]]),
    ("nd_indices([7, 8])", [[0, 7], [1, 8]]),
    ("nd_indices([[3, 4]], indices_batch_major=False)", [[[3, 0], [4, 1]]]),
    ("tile_transposed([1, 2], axis=0, multiples=3)", [1, 1, 1, 2, 2, 2]),
    ("get_shape(tf.zeros([2, 3]))", [2, 3]),
    ("expand_dims_unbroadcast([1, 2], 0, 2)", [[1, 2], [1, 2]]),
    ("dot([[1., 2.]], [[3.], [4.]])", [[11.0]]),
    ("dropout([1., 2.], keep_prob=1.0)", [1.0, 2.0]),
    ("sequence_mask_time_major([1, 2])", [[True, True], [False, True]]),
    ("flatten_with_seq_len_mask(tf.constant([[1, 2], [3, 4]]), [1, 2], time_major=False)", [1, 3, 4]),
    ("flatten_with_seq_len_mask(tf.constant([[1, 2], [3, 4]]), [1, 2], time_major=True)", [1, 2, 4]),
    ("matrix_triangular([2, 2], lower=True)", [[1.0, 0.0], [1.0, 1.0]]),
    ("get_shared_vocab(['a', 'bc'])", [b"a", b"bc"]),
    ("to_int32_64(tf.constant(2.0))", 2),
    ("tf.to_int32(1.5)", 1),  # a name of TensorFlow 1
    ("v1.log(1.0)", 0.0),
    # Names that modules of version 2 dropped; what both have is that of version 2.
    ("tf.nn.softmax_cross_entropy_with_logits_v2(labels=[1.0], logits=[3.0])", 0.0),
    ("tf.nn.xw_plus_b([[2.0]], [[3.0]], [1.0])", [[7.0]]),
    ("tf.nn.dropout([1.0], rate=0.0)", [1.0]),
    ("tf.math.reduce_sum([[1, 2]], 1, keep_dims=True)", [[3]]),
    ("tf.train.AdamOptimizer.__name__", "AdamOptimizer"),
    ("tf.nn.relu is tf.nn.relu", True),
    ("tf.reduce_sum([[1, 2]], reduction_indices=1, keep_dims=True)", [[3]]),
    # A vector selects rows, as in TensorFlow 1, unless it fits the last axis.
    ("tf.where([True, False], [[1, 2, 3], [4, 5, 6]], tf.zeros([2, 3], tf.int32))", [[1, 2, 3], [0, 0, 0]]),
    ("tf.where([True, False, True], [[1, 2, 3], [4, 5, 6]], tf.zeros([2, 3], tf.int32))", [[1, 0, 3], [4, 0, 6]]),
    ("tf.where([[False], [True]], 1, [[2, 3]])", [[2, 3], [1, 1]]),
    ("tf.where([False, True])", [[1]]),
]


def test_functions_for_tensors(tmp_path: pathlib.Path) -> None:
    lines = ["import tensorflow as tf", "from returnn.tf.compat import v1", "import TFUtil"]
    lines += ["def f():", "    return [%s]"]
    calls = [code if code.startswith(("tf.", "v1.")) else "TFUtil." + code for code, _ in FUNCTIONS]
    config = load(tmp_path, "\n".join(lines) % ", ".join(calls) + "\n")
    for (code, expected), value in zip(FUNCTIONS, config.typed("f")()):
        got = value.numpy().tolist() if hasattr(value, "numpy") else value
        assert got == expected, code


@pytest.mark.parametrize("name", ["contrib", "nn.rnn"])
def test_names_that_no_version_has(tmp_path: pathlib.Path, name: str) -> None:
    config = load(tmp_path, "import tensorflow as tf\ndef f():\n    return tf.%s\n" % name)
    with pytest.raises(AttributeError, match="TensorFlow has no name '%s', neither in version 2 nor in" % name):
        config.typed("f")()


def test_epoch_values_and_copies() -> None:
    dim = Dim(size=3)

    def function() -> None:
        pass

    network: dict[str, Any] = {"a": {"x": [WrapEpochValue(lambda epoch: epoch * 2), (dim, function)]}}
    resolved = at_epoch(network, 4)
    assert resolved == {"a": {"x": [8, (dim, function)]}} and resolved["a"]["x"][1][0] is dim
    other = copied(network)
    other["a"]["x"].append(1)
    assert len(network["a"]["x"]) == 2 and other["a"]["x"][1][1] is function


@pytest.mark.parametrize(
    "make, same",
    [
        (lambda i: {"a": [1, {"b": lambda x: x}]}, True),
        (lambda i: {"a": lambda x: x + i}, False),
        (lambda i: {"a": i}, False),
        (lambda i: {"a": 1.0 if i else 1}, True),
        (lambda i: {"a": (1,) if i else [1]}, False),
        (lambda i: {"a": __import__("numpy").zeros(2)}, False),  # an array is no plain value: it counts as changed
    ],
)
def test_whether_two_values_are_the_same(make: Any, same: bool) -> None:
    assert same_value(make(0), make(1)) is same


def test_a_config_may_be_the_first_to_import_numpy(tmp_path):
    """The stand-ins are loaded before the config runs, so that none of them is asked for a half-imported numpy."""
    config = tmp_path / "numpy.config"
    config.write_text("import numpy\nvalue = float(numpy.float32(3))\n", encoding="utf8")
    code = "import sys\nfrom returnn_tf.config import Config\nassert 'numpy' not in sys.modules\n"
    code += "print(Config.from_file(sys.argv[1]).float('value'))"
    command = [sys.executable, "-c", code, str(config)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "3.0\n"


def test_everything_of_a_module(tmp_path: pathlib.Path) -> None:
    text = "from returnn.tf.network import *\nfrom returnn.tf.layers.basic import *\nfrom returnn.some.thing import *\n"
    config = load(tmp_path, text + "from Util import *\n")
    assert {"LayerBase", "_ConcatInputLayer", "ExternData", "NumbersDict"} <= set(vars(config)["_values"])


def test_packages_beside_the_config(tmp_path: pathlib.Path) -> None:
    """With and without an __init__.py; functions import later, too, also TensorFlow with its old names."""
    for folder in ("a_package_of_compat_test", "a_folder_of_compat_test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.py").write_text(
            "from .other import PY3\ndef later():\n    import tensorflow as tf\n    from TFUtil import where_bc\n"
            "    return tf.log, where_bc, PY3\n"
        )
        (tmp_path / folder / "other.py").write_text("from Util import PY3\n")
    (tmp_path / "a_package_of_compat_test" / "__init__.py").write_text("from Pretrain import WrapEpochValue\n")
    config = load(
        tmp_path,
        "from a_package_of_compat_test.part import later\nfrom a_folder_of_compat_test import part\n"
        "import a_package_of_compat_test as package\nother, value = part.later, package.WrapEpochValue\n",
    )
    assert config.typed("value") is WrapEpochValue
    for name in ("later", "other"):
        log, where_bc, flag = config.typed(name)()
        assert callable(log) and callable(where_bc) and flag is True
