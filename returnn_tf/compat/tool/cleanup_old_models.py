"""``returnn-tf tool cleanup-old-models``: deletes old checkpoints, after a question."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import parse
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.engine.checkpoints.cleanup import CleanupOptions, options_from_config
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.tasks.clean_up import clean_up

_DOC = """
Delete old checkpoints, but not the newest and the best ones; which, says the setting cleanup_old_models.

    returnn-tf tool cleanup-old-models --config my.config --dry_run
    returnn-tf tool cleanup-old-models --model models/epoch --scores learning_rates

Asks before it deletes; the task cleanup_old_models does not.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool cleanup-old-models", _DOC)
    result.add_argument("--config", metavar="CONFIG", help="config of the training")
    result.add_argument(
        "--cwd", metavar="FOLDER", help="what paths in the config, --model and --scores are relative to"
    )
    result.add_argument("--model", metavar="PREFIX", help="of the checkpoints; default: the setting model")
    result.add_argument("--scores", metavar="FILE", help="learning-rate file; default: the setting learning_rate_file")
    result.add_argument("--dry_run", action="store_true", help="delete nothing, only tell")
    return result


@register_tool("cleanup-old-models", parser)
def run(args: list[str]) -> int:
    """Delete the checkpoints.

    :param args: the arguments of the tool
    :raises ConfigError: it is not known where the checkpoints are, or nobody answers the question
    """
    parsed, overrides = parse(parser(), args)
    config = read_config([parsed.config, *overrides]) if parsed.config else Config()
    model = parsed.model or CheckpointSettings(config).model
    scores = parsed.scores or LearningRateSettings(config).learning_rate_file
    for value, option, setting in ((model, "--model", "model"), (scores, "--scores", "learning_rate_file")):
        if not value:
            raise CommandError("cleanup-old-models: give %s, or --config with the setting %s" % (option, setting))
    with _working_directory(parsed.cwd):
        options = options_from_config(config) or CleanupOptions()
        clean_up(model, read_file(scores), options, dry=parsed.dry_run, confirm=_confirmed)
    return 0


@contextlib.contextmanager
def _working_directory(path: str) -> Iterator[None]:
    """Change the working directory within the context.

    :param path: empty: stay
    """
    before = os.getcwd()
    try:
        os.chdir(path or before)
    except OSError as exc:
        raise CommandError("--cwd: %r can't be entered: %s" % (path, exc.strerror)) from None
    try:
        yield
    finally:
        os.chdir(before)


def _confirmed(paths: list[str]) -> bool:
    print("\n".join(paths))
    try:
        answer = input("Delete these %d checkpoints? [y/n] " % len(paths))
    except EOFError:
        raise CommandError("cleanup-old-models: there is no answer, so nothing is deleted") from None
    if answer.strip().lower() in ("y", "yes"):
        return True
    print("Nothing is deleted.")
    return False
