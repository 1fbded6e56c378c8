"""One cell of the table of layers and targets: the example of a layer class is exported, reloaded and compared.

Each cell is computed in a process of its own, since converters may abort theirs. It is forked from one that has loaded
TensorFlow and nothing else, which takes milliseconds; the program that runs a graph is another such process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from returnn_tf.compiler.network import Network
from returnn_tf.config import ConfigError, DataError
from returnn_tf.export.export import make_exporter, write_export
from returnn_tf.export.exporters import EXPORTERS
from returnn_tf.export.layer_table import columns
from returnn_tf.export.saved_model import run
from tests.layers.examples import CLASSES, example_config

SECONDS = 300.0
#: Names of the layer classes of the package.
LAYERS = sorted(name.partition(":")[2] for name in CLASSES if name.startswith("layer:"))
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tensorflow", __name__])


def compute(layer: str, column: str) -> str:
    """Return why the example of a class can't be exported; "" if it can.

    :param column: see `returnn_tf.export.layer_table.columns`
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_compute, args=(layer, column, sender))
    child.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return "it takes more than %d seconds" % SECONDS
        return str(receiver.recv())
    except EOFError:
        return "the process ends without an answer"
    finally:
        child.kill()
        child.join()
        receiver.close()


def _compute(layer: str, column: str, sender: Connection) -> None:
    run._run_program = _Program()
    target, options = columns()[column]
    config = example_config("layer:" + layer)
    with tempfile.TemporaryDirectory() as temp:
        try:
            EXPORTERS.load()
            for search in (False, True) if '"choice"' in (CLASSES["layer:" + layer].__doc__ or "") else (False,):
                net = Network.from_config(config, search=search)
                exporter = make_exporter(target, {**options, "outputs": _outputs(net, layer)})
                write_export(exporter, net, os.path.join(temp, "search" if search else "out"))
        except (ConfigError, DataError) as exc:
            sender.send(_reason(str(exc).replace(temp + "/", ""), target))
        except Exception as exc:  # a bug of ours, which the table shows
            sender.send("%s: %s" % (type(exc).__name__, str(exc).splitlines()[:1]))
        else:
            sender.send("")


def _outputs(net: Network, layer: str) -> list[str]:
    """Return the outputs and losses of a network, with layers of a class that none of them needs."""
    nodes = net.plan.roots()
    needed = net.plan.needed(nodes)
    of_class = [node for node in net.plan.by_path().values() if node.layer.class_name == layer]
    if not any(node in needed for node in of_class):
        nodes += [node for node in net.plan.nodes if node in of_class]
    return [node.path for node in nodes]


def _reason(text: str, target: str) -> str:
    """Return a message without what differs from run to run, and without advice."""
    text = text.splitlines()[0]
    text = re.sub(r"^export to %s: |^The export to %s " % (target, target), "", text)
    return re.split(r"\. (?:Allow|Choose|Fix|Export)\b", text)[0].rstrip(".")


class _Program:
    """Stands in for `run._run_program`: the processes are forked from one that has loaded TensorFlow and nothing else.

    It is forked when this object is made, before its process has loaded a library of ops or made a graph.
    """

    def __init__(self) -> None:
        self._connection, other = _CONTEXT.Pipe()
        pid = os.fork()
        if not pid:
            self._connection.close()
            with contextlib.suppress(EOFError):
                while True:
                    other.send(_run(other.recv()))
            os._exit(0)
        other.close()

    def __call__(self, program: str, arguments: Sequence[str], cwd: str) -> tuple[int, str]:
        self._connection.send([program, *arguments])
        code, errors = self._connection.recv()
        return code, errors


def _run(command: list[str]) -> tuple[int, str]:
    """Fork, run a program there, and return its exit code and stderr."""
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if not pid:
            os.dup2(errors.fileno(), 2)
            sys.argv = command
            code = 0
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as exc:
                code = exc.code if isinstance(exc.code, int) else 1
                print(exc.code if code else "", file=sys.stderr)
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        return os.waitstatus_to_exitcode(status), errors.read().decode("utf8", "replace")
