"""The check from the question whether there is a GPU to the report."""

from __future__ import annotations

import platform
import sys
import tempfile
import time

from returnn_tf._version import shown_version
from returnn_tf.cli.gpu_check import parts as all_parts
from returnn_tf.cli.gpu_check.messages import Row, machine_of
from returnn_tf.cli.gpu_check.page import failures, page
from returnn_tf.cli.gpu_check.parts import CheckOptions, run_process
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.util.python_child import python_command
from returnn_tf.util.temporary import Temporary

_LOOK = "from returnn_tf.cli.gpu_check.machine import tell; tell(sys.argv[1])"


def run_check(output: str, *, device: str = "gpu", quick: bool = False) -> int:
    """Run all parts, and write the report.

    :param output: path of the report
    :param device: "cpu": check the CPU in place of a GPU, to test this program
    :return: exit code: 0; 1 if something failed; 2 if there is no GPU that can be used
    :raises DataError: the report can't be written
    """
    done = run_process(python_command(_LOOK, device), 300)
    machine = machine_of(done.output)
    if machine is None or machine.reason:
        reason = machine.reason if machine else "TensorFlow can't be asked: %s" % (done.failure or "it said nothing")
        print("doctor --gpu: %s" % reason, file=sys.stderr)
        return 2
    print("%s; the report goes to %s" % (machine.facts["device"], output), flush=True)
    if quick:
        machine.remarks.append("With --quick: small sizes and few steps. Times and errors of trainings say nothing.")
    start = time.monotonic()
    title = "GPU check of returnn_tf %s on %s" % (shown_version(), platform.platform())
    results: list[tuple[str, list[Row]]] = []
    titles = [part.title for part in all_parts.PARTS]
    _write(output, page(title, machine, results, 0.0, titles))  # a path that can't be written is told before
    with tempfile.TemporaryDirectory(prefix="returnn_tf_gpu_check_") as work:
        for part in all_parts.PARTS:
            print("  %s ..." % part.title, end="", flush=True)
            began = time.monotonic()
            rows = part.run(CheckOptions(device, quick, work))
            results.append((part.title, rows))
            count = len(failures(results[-1:]))
            print(
                " %d:%02d, %s" % (*divmod(round(time.monotonic() - began), 60), "%d failed" % count if count else "ok")
            )
            _write(output, page(title, machine, results, time.monotonic() - start, titles[len(results) :]))
    failed = failures(results)
    for line in failed:
        print("FAILED " + line)
    print("%s has all figures. Please send it to the authors of returnn_tf." % output)
    return 1 if failed else 0


def _write(output: str, text: str) -> None:
    """Write the report after each part: the machine may not live to see the last one.

    :raises DataError: it can't be written
    """
    try:
        with Temporary(output) as temporary:
            temporary.write(text.encode("utf8"), sync=False)
            temporary.publish()
    except OSError as exc:
        raise not_writable("doctor --gpu: %r" % output, exc, topic="native-ops") from exc
