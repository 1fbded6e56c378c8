"""`returnn-tf explain`: each topic of an error has a page, each page a use, and the examples in it are true."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import returnn_tf
from returnn_tf.cli.commands import COMMANDS
from returnn_tf.cli.explain.pages import page, title, topics
from returnn_tf.cli.main import main
from returnn_tf.config import ConfigError, DataError, errors
from returnn_tf.config.errors import FileDataError, LoopError, TextDataError, UserError, error_name
from returnn_tf.config.settings import all_settings

ROOT = Path(returnn_tf.__file__).parent
BASE = 'extern_data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}\nbehavior_version = 21\n'
EXAMPLE = re.compile(
    r"^(Wrong|Right):\n\n```python\n(.*?)^```\n(?:\nThe error says:\n\n```text\n(.*?)\n```\n)?", re.M | re.S
)
EXAMPLES = [(topic, *match) for topic in topics() for match in EXAMPLE.findall(page(topic))]


def used_topics() -> set[str]:
    """Return the topics of the classes of errors, and those that a finding or a single error gives."""
    text = "".join(path.read_text(encoding="utf8") for path in ROOT.rglob("*.py"))
    classes = {cls.class_topic for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, UserError)}
    return classes - {""} | set(re.findall(r'\b(?:topic=|topic = )"([\w-]+)"', text))


def test_topics_have_pages_and_pages_are_used() -> None:
    used = used_topics()
    assert sorted(used) == sorted(topics()) and len(used) > 20


@pytest.mark.parametrize("topic", topics())
def test_page(topic: str) -> None:
    """A heading, examples, and only links, commands and settings that exist."""
    text = page(topic)
    assert text.startswith("# ") and title(topic) and max(map(len, text.splitlines())) <= 130
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", text)) <= set(topics())
    assert all(name in COMMANDS for name in re.findall(r"returnn-tf ([a-z]+)\b(?!\.)", text) if name != "my")
    assert set(re.findall(r" \+\+(\w+)", text)) - {"key"} <= set(all_settings())
    assert ("```" in text) == (topic not in ("rasr", "native-ops"))


@pytest.mark.parametrize("topic,kind,code,message", EXAMPLES)
def test_examples(
    topic: str, kind: str, code: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What is wrong gives the message, which names this page; what is right passes the check."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "my.config"
    config.write_text(BASE + code)
    failed = main(["check", str(config)])
    err = capsys.readouterr().err.replace(str(config), "my.config")
    if kind == "Right":
        assert not failed and not err
    else:
        assert message.startswith("error: ") and " ".join(message.split()) in err
        assert failed and err.splitlines()[-1] == "More: returnn-tf explain " + topic


def test_list_and_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listing = capsys.readouterr().out
    assert all(re.search(r"(?m)^  %s +\S" % topic, listing) for topic in topics())
    assert main(["explain", "nan", "dims"]) == 0
    assert capsys.readouterr().out == page("nan").rstrip() + "\n\n" + page("dims").rstrip() + "\n"
    assert main(["explain", "horovod"]) == 0  # as it was called
    assert capsys.readouterr().out == page("distributed").rstrip() + "\n"
    assert main(["explain", "dmis"]) == 2
    assert "explain: there is no topic 'dmis'. Did you mean 'dims'?" in capsys.readouterr().err


def test_several_mistakes_name_all_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "my.config"
    config.write_text(BASE + "num_epochs = 'x'\nnetwork = {'output': {'class': 'copy', 'from': 'x'}}\n")
    assert main(["check", str(config)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "More: returnn-tf explain settings sources"


def test_topic_of_an_error() -> None:
    """By the argument, else by the error that led to it, else by the class; also behind a pickle."""
    assert ConfigError("x").topic == "" and str(ConfigError("x", topic="dims")) == "x"
    assert LoopError("x").topic == "loops" and LoopError("x", topic="dims nan").topic == "dims nan"
    with pytest.raises(ConfigError) as found:
        returnn_tf.Network.plan(returnn_tf.Config({"network": {"output": {"class": "x"}}}))
    assert found.value.topic
    for cause, topic in ((LoopError("x"), "loops"), (ConfigError("x"), "text-data"), (OSError("x"), "text-data")):
        with pytest.raises(DataError) as found_data:
            raise TextDataError("y") from cause
        assert found_data.value.topic == topic
    for error in (DataError("x", topic="nan"), FileDataError("x")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.topic) == (type(error), "x", error.topic)
    assert error_name(FileDataError("x")) == error_name(DataError("x")) == "DataError"
    assert error_name(OSError("x")) == "OSError"
