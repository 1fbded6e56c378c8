"""The command line taken apart."""

import pytest

from returnn_tf.cli.shared.arguments import parse_arguments
from returnn_tf.config import ConfigError


@pytest.mark.parametrize(
    "args, files, overrides",
    [
        ([], [], []),
        (["a", "b.py", "++x", "1"], ["a", "b.py"], [("x", "1")]),
        (["a", "++x=1", "++y", "+-0.5"], ["a"], [("x", "1"), ("y", "-0.5")]),
        (["a", "-x", "eval", "-n", "7"], ["a"], [("task", "eval"), ("num_epochs", "7")]),
        (["--task=eval", "--max_sequences", "3"], [], [("task", "eval"), ("max_seqs", "3")]),
        (["--config", "c", "--verbose", "5"], ["c"], [("log_verbosity", "5")]),
        (["a", "--profile", "++x", "1"], ["a"], [("profile", "True"), ("x", "1")]),
        (["a", "-r", "-0.5"], ["a"], [("learning_rate", "-0.5")]),
    ],
)
def test_forms(args, files, overrides):
    """Files, short and long options, any setting."""
    parsed = parse_arguments(args)
    assert (parsed.files, parsed.overrides) == (files, overrides)


@pytest.mark.parametrize(
    "args, message",
    [
        (["a", "++x"], "needs a value"),
        (["a", "++", "x"], "needs a value"),
        (["a", "--taks", "eval"], "unknown option '--taks'. Did you mean '--task'"),
        (["a", "--profil"], "unknown option '--profil'. Did you mean '--profile'"),
        (["a", "-Q", "3"], "unknown option '-Q'"),
        (["a", "++x", "1", "b"], "unexpected argument 'b'"),
        (["a", "+x", "1"], "unknown option '+x'. Any setting"),
    ],
)
def test_errors(args, message):
    """Each says what is wrong."""
    with pytest.raises(ConfigError, match="command line: .*" + message.replace("+", r"\+")):
        parse_arguments(args)
