"""``returnn-tf new NAME --kind KIND``: a folder with a config that trains at once, and a small data set."""

from __future__ import annotations

import os
import shlex

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.new.kinds import KINDS, ProjectKind
from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.engine.support.atomic_files import staging

_DOC = """
Write the folder NAME: a config with comments, NAME/NAME.config, a small data set, and make_data.py, which made it. The
config trains at once. Then replace the data by yours; the lines to change are marked.

kinds:
"""
_CONFIG = ".config"


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    rows = ["  %-11s %s (about %d s)" % (kind.name, kind.help, kind.seconds) for kind in KINDS.values()]
    result = CommandParser("new", _DOC + "\n".join(rows))
    result.add_argument("name", metavar="NAME", help="the folder to write, which must not exist")
    result.add_argument("--kind", choices=tuple(KINDS), required=True, help="what to train, see above")
    return result


@register_command(
    "new",
    "NAME --kind KIND",
    "write a config that trains at once, with a small data set: %s" % ", ".join(KINDS),
    own_help=lambda _: parser().format_help(),
    group="start",
)
def run(args: list[str]) -> int:
    """Write the folder of a project.

    :param args: its name and kind
    :raises ConfigError: unknown kind; something of that name exists
    :raises DataError: the folder can't be written
    """
    given = parser().parse_args(args)
    if not given.name.strip():
        raise CommandError("new: the name of the folder is empty: %r. Write e.g. returnn-tf new my_model" % given.name)
    folder = os.path.normpath(given.name)
    config = write_project(folder, KINDS[given.kind])
    print(next_commands(config, KINDS[given.kind]))
    return 0


def write_project(folder: str, kind: ProjectKind) -> str:
    """Write the folder of a project; it appears when all of it is there.

    :return: path of the config
    :raises ConfigError: something of that name exists, or the name is none
    :raises DataError: the folder can't be written
    """
    parent, name = os.path.split(os.path.abspath(folder))
    if not name:
        raise CommandError("new: %r is no name of a folder" % folder)
    if not name.isprintable():
        raise CommandError("new: %r: a line break or control character in the name of a folder" % name)
    if name.endswith(_CONFIG):
        stem = name[: -len(_CONFIG)] or "my_model"
        raise CommandError("new: NAME is a folder, in which NAME%s is written. Did you mean %r?" % (_CONFIG, stem))
    if os.path.lexists(folder):
        raise CommandError("new: %s exists already, and is not overwritten. Choose another name, or remove it" % folder)
    try:
        os.makedirs(parent, exist_ok=True)
        with staging(parent, name) as temp:
            os.mkdir(os.path.join(temp, "data"))
            for file, text in ((name + _CONFIG, kind.config(name)), ("make_data.py", kind.make_data())):
                with open(os.path.join(temp, file), "w", encoding="utf8") as out:
                    out.write(text)
            kind.data.write(os.path.join(temp, "data"))
            os.rename(temp, folder)
    except OSError as exc:
        raise CommandDataError("new: %s can't be written: %s" % (folder, exc.strerror or exc)) from exc
    return os.path.join(folder, name + _CONFIG)


def next_commands(config: str, kind: ProjectKind) -> str:
    """Return the path that was written, and the next commands."""
    folder, path = os.path.dirname(config), shlex.quote(config)
    options, result = kind.after
    rows = [
        ("returnn-tf %s" % path, "train: about %d s on a CPU" % kind.seconds),
        ("returnn-tf %s %s" % (path, options), result),
        ("returnn-tf check %s" % path, "the layers of the network, and mistakes in the config, if there are any"),
        ("returnn-tf plot %s curve.png" % shlex.quote(os.path.join(folder, "out", "learning_rates")), "the scores"),
    ]
    width = max(len(command) for command, _ in rows)
    lines = ["Wrote %s, and data made by %s." % (config, os.path.join(folder, "make_data.py")), ""]
    lines += ["  %-*s  # %s" % (width, command, what) for command, what in rows]
    return "\n".join([*lines, "", "For your own data: the lines marked CHANGE in %s." % config])
