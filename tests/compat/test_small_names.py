"""Small names of RETURNN without tensors: values that code of configs gets from them."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.user_files import resolving_imports

IMPORTS = """
import numpy as np
import os
from returnn.util import BehaviorVersion, better_exchook
from returnn.util.basic import *
from returnn.util.basic import human_size, hms_fraction, next_power_of_two, NotSpecified, OptionalNotImplementedError
from returnn.util.math import PiecewiseLinear, ceil_div
from returnn.util.pprint import pformat
from returnn.util.debug import init_faulthandler
from returnn.config import Config, get_global_config, global_config_ctx
from returnn.datasets.lm import english_cleaners, lowercase
from returnn.extern.WarpRna import rna_loss
from returnn.tf.util import basic, where_bc
LINE = PiecewiseLinear({10: 1.0, 20: 3.0, 0: 0.5}, kw_name="epoch")
"""

CASES: list[tuple[str, Any]] = [
    ("hms(3723.9)", "1:02:03"),
    ("hms_fraction(61.25)", "0:01:01.2500"),
    ("hms_fraction(61.25, decimals=1)", "0:01:01.2"),
    ("human_bytes_size(100)", "100B"),
    ("human_bytes_size(1536)", "1.5KB"),
    ("human_bytes_size(900)", "0.9KB"),
    ("human_bytes_size(3 * 1024 ** 3)", "3.0GB"),
    ("human_size(1500000, prec=2)", "1.50M"),
    ("[next_power_of_two(i) for i in (1, 2, 3, 8, 9)]", [1, 2, 4, 8, 16]),
    ("ceil_div(7, 2)", 4),
    ("camel_case_to_snake_case('SelfAttentionLayer')", "self_attention_layer"),
    ("camel_case_to_snake_case('HTTPServer')", "http_server"),
    ("camel_case_to_snake_case('Conv2DBlock')", "conv2_d_block"),
    ("camel_case_to_snake_case('linear')", "linear"),
    ("snake_case_to_camel_case('self_attention')", "SelfAttention"),
    ("(lambda x=NotSpecified: x is NotSpecified)()", True),
    ("[NotSpecified.resolve(x, 3) for x in (NotSpecified, None)]", [3, None]),
    ("issubclass(OptionalNotImplementedError, NotImplementedError)", True),
    ("[LINE(x) for x in (-1, 0, 5, 10, 15, 20, 99)]", [0.5, 0.5, 0.75, 1.0, 2.0, 3.0, 3.0]),
    ("LINE(epoch=15)", 2.0),
    ("PiecewiseLinear({0: 1}, kw_name='e', ignore_other_kwargs=True)(e=3, step=4)", 1.0),
    ("PiecewiseLinear({0: 0, 2: 1})(np.array([1, 4])).tolist()", [0.5, 1.0]),
    ("eval(repr(LINE)) == LINE and hash(eval(repr(LINE))) == hash(LINE)", True),
    ("repr(PiecewiseLinear({1: 2}))", "PiecewiseLinear({1: 2})"),
    ("pformat({'b': 1, 'a': [None, 'x']})", "{'b': 1, 'a': [None, 'x']}"),
    ("eval(pformat({'k%i' % i: list(range(9)) for i in range(99)})) == {'k%i' % i: list(range(9)) for i in range(99)}",
     True),
    ("eval('np.' + pformat(np.arange(2000)))[1999]", 1999),
    ("english_cleaners('Dr. Who')", "doctor who"),
    ("lowercase('AB')", "ab"),
    ("where_bc is basic.where_bc", True),
    ("callable(rna_loss)", True),
    ("init_faulthandler() is None and init_faulthandler(sigusr1_chain=True) is None", True),
    ("better_exchook.install() is None", True),
    ("list(uniq([1, 1, 2, 1]))", [1, 2, 1]),
    ("make_hashable({'a': [1, {2}]}) == make_hashable({'a': [1, {2}]}) and hash(make_hashable({'a': [1]})) != 0", True),
    ("dict_joined({'a': 1, 'b': 2}, {'a': 3})", {"a": 3, "b": 2}),
    ("prod([2, 3, 4])", 24),
    ("try_run(int, args=('x',), default=7)", 7),
    ("as_str(b'ab')", "ab"),
    ("sysexec_out('echo', 'a b')", "a b\n"),
    ("(RefIdEq(LINE) == RefIdEq(LINE), RefIdEq([]) == RefIdEq([]))", (True, False)),
    ("BehaviorVersion.get()", 14),
    ("BehaviorVersion.require(True, 'text', version=1)", None),
    ("get_global_config(return_empty_if_none=True).int('behavior_version', 0)", 14),
]  # fmt: skip

FAILING: list[tuple[str, type, str]] = [
    ("LINE(epoch=3, step=4)", TypeError, "expected the keyword 'epoch' and nothing else"),
    ("LINE()", TypeError, r"PiecewiseLinear\(\{0: 0.5, .*\): expected the keyword 'epoch'"),
    ("PiecewiseLinear({})", ConfigError, r"expected a dict \{position: value\} with an entry"),
    ("BehaviorVersion.set(1000)", ConfigError, r"there is no version 1000\. The latest one is"),
    ("BehaviorVersion.require(False, 'name the axis', version=5)", ConfigError, r"name the axis \(since behavior_ver"),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the namespace of a config with the imports."""
    path: pathlib.Path = tmp_path_factory.mktemp("names") / "my.config"
    path.write_text(IMPORTS + "behavior_version = 14\ndef run(code):\n    return eval(code, globals())\n")
    return Config.from_file(str(path))


@pytest.mark.parametrize("code, expected", CASES, ids=[code[:40] for code, _ in CASES])
def test_values(names: Any, code: str, expected: Any) -> None:
    names.become_global()
    assert names.typed("run")(code) == expected


@pytest.mark.parametrize("code, error, message", FAILING)
def test_mistakes(names: Any, code: str, error: type[Exception], message: str) -> None:
    names.become_global()
    with pytest.raises(error, match=message):
        names.typed("run")(code)


def test_the_version_that_code_sets(names: Any) -> None:
    """It counts for `get`; a config within `global_config_ctx` does so until then."""
    names.become_global()
    version = names.typed("BehaviorVersion")
    with names.typed("global_config_ctx")(Config({"behavior_version": 3})) as config, resolving_imports():
        assert names.typed("get_global_config")() is config and version.get() == 3 and not version.is_set()
        try:
            version.set_min_behavior_version(12)
            version.set_min_behavior_version(2)
            assert (version.get(), version.get_if_set(), version.is_set()) == (12, 12, True)
        finally:
            version.set(None)
    assert version.get() == 14
