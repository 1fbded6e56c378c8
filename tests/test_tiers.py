"""The tiers of the suite and its account of seconds (``conftest.py``), on a small suite of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import os
import subprocess
import sys

import pytest

CODE = "import time\\nwhile time.process_time() < 0.3: pass"

def test_plain(): pass

@pytest.mark.parametrize("n", range(20))
def test_many(n): assert n != 7

@pytest.mark.slow
def test_slow(): subprocess.run([sys.executable, "-c", CODE], check=True)

@pytest.mark.long
def test_long(): pass

@pytest.mark.sampled
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", [1, 2])
def test_product(a, b): pass
"""
INI = """
[pytest]
testpaths = cases
markers =
  slow: x
  long: x
  sampled: x
budgets =
  a = 0
  b = 100
  --fast = %d
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    for name in ("a", "b"):
        folder = pytester.mkpydir("cases") if name == "a" else pytester.path / "cases"
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        (folder / name / "test_x.py").write_text(SUITE)
    (pytester.path / "cases" / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (pytester.path / "pytest.ini").write_text(INI % 100)
    return pytester


def _names(suite: pytest.Pytester, *args: str) -> list[str]:
    """Return the cases of a folder that would be run."""
    lines = suite.runpytest_inprocess("--collect-only", "-q", *args).outlines
    return [line.partition("::")[2] for line in lines if line.startswith("cases/a/")]


def test_a_fast_run_has_something_of_each_function_that_is_not_slow(suite: pytest.Pytester) -> None:
    names = _names(suite, "--fast")
    assert names == _names(suite, "--fast")
    assert [name.partition("[")[0] for name in names] == ["test_plain", "test_many", "test_product"]


def test_what_is_long_runs_on_request(suite: pytest.Pytester) -> None:
    whole = _names(suite)
    assert len(whole) == 25 and "test_slow" in whole and "test_long" not in whole
    assert "test_long" in _names(suite, "-m", "long")
    assert _names(suite, "--fast", "cases/a/test_x.py::test_long") == ["test_long"]
    assert _names(suite, "--fast", "cases/a/test_x.py::test_many[7]") == ["test_many[7]"]


def test_a_sample_of_a_product_has_each_value(suite: pytest.Pytester) -> None:
    """The other cases are long."""
    usual, long = (_names(suite, "-k", "product", "-m", tier) for tier in ("not long", "long"))
    assert usual == ["test_product[1-x]", "test_product[1-z]", "test_product[2-y]"]
    assert long == ["test_product[1-y]", "test_product[2-x]", "test_product[2-z]"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "workers"])
def test_a_folder_over_its_budget_is_told(suite: pytest.Pytester, workers: tuple[str, ...]) -> None:
    """With the processes that its tests start; it does not fail for it."""
    result = suite.runpytest_inprocess(*workers, "-k", "not many and not product")
    result.assert_outcomes(passed=4)
    result.stdout.re_match_lines([
        "=+ seconds of computing, by folder of tests/ =+",
        r"folder +cases +seconds +budget",
        r"a +2 +(0\.[3-9]|[1-9]\.)\d* +0   over its budget",
        r"b +2 +(0\.[3-9]|[1-9]\.)\d* +100$",
        r"all +4 +\d\.\d *$",
    ])  # fmt: skip
    assert result.ret == 0


def test_a_fast_run_has_one_budget(suite: pytest.Pytester) -> None:
    suite.runpytest_inprocess("--fast").stdout.re_match_lines([r"a +3 +\d+\.\d *$", r"all +6 +\d+\.\d +100$"])
    (suite.path / "pytest.ini").write_text(INI % -1)  # a few cases may take no seconds that could be measured
    result = suite.runpytest_inprocess("--fast")
    result.stdout.re_match_lines([r"all +6 +\d+\.\d +-1   over its budget"])


@pytest.mark.slow
def test_short_output_has_no_account(suite: pytest.Pytester) -> None:
    assert "budget" not in suite.runpytest_inprocess("-q", "cases/b").stdout.str()
    assert "budget" in suite.runpytest_inprocess("-q", "cases/a", "-k", "slow").stdout.str()
