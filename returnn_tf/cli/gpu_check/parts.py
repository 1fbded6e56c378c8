"""The parts of the check: what each runs, how long it may take, and what its rows are."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional, Union

from returnn_tf.cli.gpu_check.messages import Row, is_row, rows_of
from returnn_tf.cli.shared.children import killed_with
from returnn_tf.native.processes import signal_name
from returnn_tf.util.python_child import python_command

#: The largest error rate of a trained model: percent of the digits demo, share of the Transformer.
_DIGITS_ERROR = 5.0
_TRANSFORMER_ERROR = 0.05
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_DIGITS = os.path.join(_ROOT, "demos", "digits", "run.py")
_TESTS = os.path.join(_ROOT, "tests", "native")
_PROGRAM = "from returnn_tf.cli.main import main; sys.exit(main())"
_PYTEST = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
_FILE = """\
import os, runpy
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: What the report has of a process that failed: the last lines of its output, and of its errors.
_LINES = 30
#: Seconds for the end of a killed process, which the driver may block.
_PATIENCE = 10.0
_NOT_HERE = "it is part of a checkout, and this is an installed package"


@dataclass(frozen=True)
class CheckOptions:
    """How the check is run.

    :param device: "gpu", or "cpu"
    :param quick: small sizes and few steps: shows that all parts work, not what the device can do
    :param work: folder for what the parts write
    """

    device: str
    quick: bool
    work: str


@dataclass(frozen=True)
class CheckPart:
    """A part of the check.

    :param title: in the report
    :param run: computes the rows
    """

    title: str
    run: Callable[[CheckOptions], list[Row]]


@dataclass(frozen=True)
class Done:
    """A process that has ended.

    :param failure: how it failed, as one line; "" if it did not
    :param last: if it failed, the last lines of its output and of its errors
    """

    output: str
    failure: str
    seconds: float
    last: str = ""

    @property
    def failed(self) -> Row:
        """Return what tells in a row how it failed."""
        return {"failed": self.failure, "last": self.last}


def run_process(
    command: Sequence[str],
    seconds: float,
    *,
    folder: Optional[str] = None,
    environment: Optional[dict[str, str]] = None,
) -> Done:
    """Run a process to its end. It ends with this one; with it end the processes that it has started.

    :param seconds: time limit
    :param folder: its working directory
    :param environment: variables besides those of this process
    """
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command), cwd=folder, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True, preexec_fn=killed_with(os.getpid()),
        )  # fmt: skip
    except OSError as exc:
        return Done("", "it can't be run: %s" % exc, 0.0)
    failure = ""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        failure = "it did not end within %g seconds" % seconds
        output, errors = _kill(process)
    except BaseException:  # Ctrl-C, which does not reach other sessions
        _kill(process)
        raise
    if process.returncode and not failure:
        said = [line.strip() for text in (output, errors) for line in text.splitlines() if not is_row(line)]
        named = [line for line in said if re.search(r"(?i)\berror\b|[a-z]Error\b", line)]
        code = process.returncode
        ended = "exit code %d" % code if code > 0 else signal_name(-code)
        failure = "%s: %s" % (ended, next(filter(None, reversed(named or said)), "no message"))
    return Done(output, failure, time.monotonic() - start, _last_lines(output, errors) if failure else "")


def _kill(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill a process and those that it has started; return what it has written."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired as exc:
        return _text(exc.stdout), _text(exc.stderr)


def _text(written: Union[bytes, str, None]) -> str:
    return written.decode("utf8", "replace") if isinstance(written, bytes) else written or ""


def _last_lines(*texts: str) -> str:
    lines = [[line.rstrip() for line in text.splitlines() if line.strip() and not is_row(line)] for text in texts]
    return "\n".join(line for part in lines for line in part[-_LINES:])


def _in_child(function: str, seconds: float) -> Callable[[CheckOptions], list[Row]]:
    """Return what runs a function of `kernels` in a process, whose rows up to a crash count."""

    def run(options: CheckOptions) -> list[Row]:
        code = "from returnn_tf.cli.gpu_check import kernels; kernels.%s(sys.argv[1], sys.argv[2] == '1')" % function
        done = run_process(python_command(code, options.device, str(int(options.quick))), seconds)
        return [*rows_of(done.output), *([done.failed] if done.failure else [])]

    return run


def _tests(options: CheckOptions) -> list[Row]:
    if not os.path.isdir(_TESTS):
        return [{"left_out": _NOT_HERE}]
    command = python_command(_PYTEST, "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "gpu", _TESTS)
    done = run_process(command, 3600, folder=_ROOT)
    counts = [line for line in done.output.splitlines() if re.search(r"\d+ (passed|failed|skipped|error)", line)]
    summary = counts[-1] if counts else ""
    failed = [line for line in done.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    rows: list[Row] = [{"test": line, "failed": "see pytest"} for line in failed]
    failure = "" if failed else done.failure
    if not failure and options.device == "gpu" and " passed" not in summary and not failed:
        failure = "no test passed on the GPU"
    return [*rows, {"tests": summary.strip("= "), "failed": failure, "last": done.last}]


def _digits(options: CheckOptions) -> list[Row]:
    if not os.path.isfile(_DIGITS):
        return [{"left_out": _NOT_HERE}]
    size = ["--quick"] if options.quick else ["--require", "%g" % _DIGITS_ERROR]
    rows = []
    for forms, environment in _forms(options):
        work = os.path.join(options.work, "digits " + forms)
        os.makedirs(work)
        done = run_process(python_command(_FILE, _DIGITS, "--work", work, *size), 3600, environment=environment)
        error = re.search(r"label error rate: ([\d.]+) %", done.output)
        took = re.search(r"of which training took ([\d:]+)", done.output)
        rows.append({
            "training": "digits: BLSTM, CTC", "forms": forms, "error": error[1] + " %" if error else "",
            "minutes": took[1] if took else "", **done.failed,
        })  # fmt: skip
    return rows


def _transformer(options: CheckOptions) -> list[Row]:
    rows = []
    for forms, environment in _forms(options):
        folder = os.path.join(options.work, "transformer " + forms)
        done = run_process(python_command(_PROGRAM, "new", folder, "--kind", "mt"), 600, folder=options.work)
        if not done.failure:
            config = os.path.join(folder, os.path.basename(folder) + ".config")
            words = ["run", config, "++device", options.device, *(["++num_epochs", "1"] if options.quick else [])]
            done = run_process(python_command(_PROGRAM, *words), 3600, folder=options.work, environment=environment)
        row: Row = {"training": "Transformer", "forms": forms, "error": "", **done.failed}
        row["minutes"] = "%d:%02d" % divmod(round(done.seconds), 60)
        if not done.failure:
            error = _last_error(os.path.join(folder, "out", "learning_rates"))
            row["error"] = "%.3f" % error
            if not options.quick and not error <= _TRANSFORMER_ERROR:
                row["failed"] = "it did not learn: the error rate is above %g" % _TRANSFORMER_ERROR
        rows.append(row)
    return rows


def _last_error(path: str) -> float:
    """Return the error rate on the dev data of the last epoch in a learning-rate file; NaN if there is none."""
    try:
        with open(path, encoding="utf8") as f:
            found = re.findall(r"'dev_error': ([-+.\de]+)", f.read())
    except OSError:
        return float("nan")
    return float(found[-1]) if found else float("nan")


def _forms(options: CheckOptions) -> list[tuple[str, dict[str, str]]]:
    """Return the forms of ops with which trainings run: the chosen ones, and those in TensorFlow alone."""
    path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
    environment = {"PYTHONPATH": path}
    if options.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    chosen, plain = ("chosen", environment), ("TensorFlow", {**environment, "RETURNN_TF_NATIVE": "0"})
    return [chosen] if options.quick else [chosen, plain]


PARTS = (
    CheckPart("Compiled and self-tested", _in_child("compile_ops", 3600)),
    CheckPart("Each kernel against its forms in TensorFlow and for the CPU", _in_child("try_ops", 7200)),
    CheckPart("A layer beside others", _in_child("compare_lstms", 1800)),
    CheckPart("Tests marked gpu", _tests),
    CheckPart("Training: digits", _digits),
    CheckPart("Training: Transformer", _transformer),
)
