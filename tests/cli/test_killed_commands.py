"""What commands leave that are killed while they write: the same command removes it."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

import returnn_tf
from returnn_tf.config import Config
from tests import processes
from tests.waiting import LONG

#: Command -> where it is killed, module and name, and its arguments, the first of which is written.
COMMANDS = {
    "export": ("returnn_tf.export.saved_model.exporter", "SavedModelExporter.check", ["my.config", "--output", "out"]),
    "new": ("returnn_tf.cli.new.text_data", "write", ["out", "--kind", "lm"]),
    "data oggzip": ("returnn_tf.cli.data.zip_writer", "_encoded", ["list.tsv", "--output", "out.zip"]),
    "native build": ("returnn_tf.cli.native", "compile_into", ["lstm", "--output", "out.so"]),
}
_CONFIG = """
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
train = {"class": "Task12AXDataset", "num_seqs": 3}
model = "net"
"""
_RUN = """
import importlib, os, sys
module, name, *arguments = sys.argv[1:]
owner = importlib.import_module(module)
*parts, last = name.split(".")
for part in parts:
    owner = getattr(owner, part)
function = getattr(owner, last)
if os.environ.get("KILLED"):
    setattr(owner, last, lambda *args, **kwargs: os._exit(9))
elif last == "check":
    setattr(owner, last, lambda *args: None)
elif last == "compile_into":
    setattr(owner, last, lambda entry, *args: open(entry.library, "w").close())
from returnn_tf.cli.main import main
sys.exit(main(arguments))
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_next_one_removes_it(command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.config").write_text(_CONFIG)
    returnn_tf.save_checkpoint(returnn_tf.Network.from_config(Config.from_file("my.config")), "net.001")
    if command == "data oggzip":
        soundfile = pytest.importorskip("soundfile")
        soundfile.write("a.wav", np.zeros(800), 8000)
        (tmp_path / "list.tsv").write_text("file\ttext\na.wav\tsome words\n")
    module, name, arguments = COMMANDS[command]
    line = ["-c", _RUN, module, name, *command.split(), *arguments]
    before = set(os.listdir())
    killed = processes.run(line, env={**os.environ, "KILLED": "1"}, timeout=LONG)
    left = set(os.listdir()) - before
    assert killed.returncode == 9 and len(left) == 1 and ".tmp-" in left.pop(), killed.stderr
    done = processes.run(line, timeout=LONG)
    assert done.returncode == 0, done.stderr
    (made,) = set(os.listdir()) - before
    assert made.startswith("out")
