"""Compiling and caching ops: one compile for all, whole files only, and one clear line where it does not work."""

import contextlib
import ctypes
import dataclasses
import errno
import functools
import os
import pathlib
import re
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from returnn_tf.cli.main import main
from returnn_tf.native import at_once, cache, library, processes, sources, toolchain
from returnn_tf.native import build as build_module
from returnn_tf.native.build import build
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.portable import portable_ops
from returnn_tf.native.sources import NativeOp
from returnn_tf.util.lazy_tf import tf
from tests.processes import run
from tests.util.test_trust import made_by_another
from tests.waiting import until

TINY = NativeOp(name="tiny", kernels=("tiny/kernel.cc",), bindings=("tiny/op.cc",))
SOURCES = {
    "tiny/kernel.cc": 'extern "C" int rtf_tiny() { return 1; }\n',
    "tiny/op.cc": "int rtf_bridge();\nint rtf_calls() { return rtf_bridge(); }\n",
    "common/a.h": "// nothing\n",
    "common/tf_bridge.cc": "int rtf_bridge() { return 2; }\n",
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Return an op that compiles in no time, a cache of its own, and a compiler that counts its calls."""
    folder = tmp_path / "sources"
    for path, text in SOURCES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    compiler = tmp_path / "count-c++"
    compiler.write_text('#!/bin/sh\necho "$@" >> %s\nexec g++ "$@"\n' % (tmp_path / "calls"))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(sources, "shipped_folder", lambda name: str(folder))
    return tmp_path


@pytest.mark.parametrize(
    "files,pattern", [("*_op.cc", r'^REGISTER_OP\("(\w+)"\)'), ("*_cpu.cc", r'^(?:extern "C" )?\w+ (rtf_\w+)\(')]
)
def test_names_of_ops_and_kernels_differ(files, pattern):
    """One process may load all libraries, and TensorFlow has one list of ops for them."""
    folder = pathlib.Path(__file__).parents[2] / "native_ops"
    names = [name for path in folder.rglob(files) for name in re.findall(pattern, path.read_text(), re.MULTILINE)]
    assert len(names) > 20 and sorted(set(names)) == sorted(names)


def compiles(tmp_path, folder="tiny"):
    """Return how often files of a folder of sources were compiled."""
    calls = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    return sum(" -c " in call and "/%s/" % folder in call.split(" -c ")[1] for call in calls)


def test_compiled_once_and_found_again(tiny):
    path, is_new = build(TINY)
    assert is_new and compiles(tiny) == 2
    assert build(TINY) == (path, False) and compiles(tiny) == 2
    assert os.listdir(os.path.dirname(path)) and not [n for n in os.listdir(os.path.dirname(path)) if "build-" in n]


def test_what_joins_ops_to_tensorflow_is_compiled_once_for_all(tiny):
    """Only what it is compiled of makes it another one: not the sources of an op."""
    build(TINY)
    (tiny / "sources" / "tiny" / "kernel.cc").write_text(SOURCES["tiny/kernel.cc"] + "int more;\n")
    path, is_new = build(TINY)
    assert is_new and (compiles(tiny), compiles(tiny, "common")) == (4, 1)
    assert ctypes.CDLL(path)["_Z9rtf_callsv"]() == 2
    (tiny / "sources" / "common" / "tf_bridge.cc").write_text("int rtf_bridge() { return 3; }\n")
    path, is_new = build(TINY)
    assert is_new and (compiles(tiny), compiles(tiny, "common")) == (6, 2)
    assert ctypes.CDLL(path)["_Z9rtf_callsv"]() == 3


def test_what_joins_ops_is_compiled_anew_if_it_is_damaged(tiny):
    path, _ = build(TINY)
    (bridge,) = (tiny / "cache").glob("%s-*/bridge.o" % cache.SHARED_OBJECT)
    bridge.write_bytes(bridge.read_bytes()[:100])
    os.remove(path)
    assert build(TINY) == (path, True) and compiles(tiny, "common") == 2


def test_an_error_in_what_joins_ops(tiny):
    (tiny / "sources" / "common" / "tf_bridge.cc").write_text("int wrong = ;\n")
    with pytest.raises(NativeOpError, match=r"tf_bridge.cc:1:13: error: expected primary-expression"):
        build(TINY)
    assert not list((tiny / "cache").rglob("*.so"))


def test_many_at_once_compile_once(tiny):
    """Each thread has a lock file of its own open, as a process has."""
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: build(TINY), range(8)))
    assert compiles(tiny) == 2 and [is_new for _, is_new in results].count(True) == 1


IN_PROCESSES = """
import os, sys
from returnn_tf.native import sources
from returnn_tf.native.build import build
sources.shipped_folder = lambda name: sys.argv[1]
op = sources.NativeOp("tiny", ("tiny/kernel.cc",), ("tiny/op.cc",))
builders = []
for _ in range(8):
    builders.append(os.fork())
    if not builders[-1]:
        os._exit(10 + build(op)[1])
print(*sorted(os.waitstatus_to_exitcode(os.waitpid(builder, 0)[1]) for builder in builders))
"""


@pytest.mark.slow
def test_many_processes_compile_once(tiny):
    """All at once, as they are forked from one that has imported TensorFlow."""
    done = run(["-c", IN_PROCESSES, str(tiny / "sources")])
    assert done.stdout.endswith("10 " * 7 + "11\n") and compiles(tiny) == 2, done.stdout + done.stderr


@pytest.mark.parametrize("damage", ["truncate", "flip", "no manifest", "manifest is no json"])
def test_a_damaged_library_is_compiled_anew(tiny, damage):
    path, _ = build(TINY)
    manifest = os.path.join(os.path.dirname(path), "manifest.json")
    content = pathlib.Path(path).read_bytes()
    if damage == "truncate":
        pathlib.Path(path).write_bytes(content[:1000])
    elif damage == "flip":
        pathlib.Path(path).write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif damage == "no manifest":
        os.remove(manifest)
    else:
        pathlib.Path(manifest).write_text("{")
    assert build(TINY) == (path, True)
    assert pathlib.Path(path).stat().st_size == len(content)


def test_what_a_killed_compile_left_behind_does_no_harm(tiny):
    path, _ = build(TINY)
    folder = os.path.dirname(path)
    os.remove(path)
    os.mkdir(os.path.join(folder, "build-killed"))
    pathlib.Path(folder, "lock").touch()
    assert build(TINY) == (path, True)
    assert not [name for name in os.listdir(folder) if name.startswith(cache.BUILD_PREFIX)]


def test_a_compiler_behind_a_launcher(tiny, monkeypatch):
    monkeypatch.setenv("CXX", "env %s" % (tiny / "count-c++"))
    assert build(TINY)[1] and compiles(tiny) == 2


def test_another_source_is_another_op(tiny):
    first, _ = build(TINY)
    (tiny / "sources" / "common" / "a.h").write_text("// changed\n")
    second, is_new = build(TINY)
    assert is_new and first != second


@pytest.mark.parametrize("attribute, value", [("cpu_features", lambda: "avx9"), ("_OPTIMISE", ("-O1",))])
def test_another_machine_or_flag_is_another_op(tiny, monkeypatch, attribute, value):
    first, _ = build(TINY)
    monkeypatch.setattr(toolchain, attribute, value)
    assert build(TINY)[0] != first


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_to_is_read(tiny):
    path, _ = build(TINY)
    for folder, _, _ in os.walk(tiny / "cache"):
        os.chmod(folder, stat.S_IRUSR | stat.S_IXUSR)
    assert build(TINY) == (path, False)


def test_without_a_writable_folder_the_next_one_is_taken(tiny, monkeypatch):
    monkeypatch.delenv(cache.ENVIRONMENT)
    (tiny / "home").write_text("no folder")
    path, is_new = build(TINY)
    assert is_new and path.startswith(str(tiny / "returnn_tf_native_"))


def test_a_given_folder_is_the_only_one(tiny, monkeypatch):
    """Ops elsewhere are not found, and none is put there."""
    elsewhere, _ = build(TINY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny))
    (tiny / "returnn_tf").mkdir()
    (tiny / "cache").rename(tiny / "returnn_tf" / "native")
    path, is_new = build(TINY)
    assert is_new and path == elsewhere and compiles(tiny) == 4
    (tiny / "file").write_text("no folder")
    monkeypatch.setenv(cache.ENVIRONMENT, str(tiny / "file"))
    with pytest.raises(NativeOpError, match=r"can be written to \(%s: [^;]*\); set" % (tiny / "file")):
        build(TINY)
    monkeypatch.delenv(cache.ENVIRONMENT)
    path, is_new = build(TINY)
    assert not is_new and path.startswith(str(tiny / "returnn_tf" / "native"))


def entry_size(path):
    return os.path.getsize(path) + os.path.getsize(pathlib.Path(path).with_name("manifest.json"))


def test_clean(tiny, monkeypatch, capsys):
    """Ops of all kinds and what killed compilers left; nothing else, and no op that is being compiled."""
    old, _ = build(TINY)
    (tiny / "sources" / "common" / "a.h").write_text("// changed\n")
    new, _ = build(TINY)
    folder = os.path.dirname(new)
    os.mkdir(os.path.join(folder, "build-killed"))
    kept = [tiny / "cache" / "notes-2024" / "manifest.json", tiny / "cache" / "file-1", tiny / "cache" / "a b" / "lock"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    sizes = {path: entry_size(path) for path in (old, new)}
    bridges = [entry_size(path) for path in (tiny / "cache").glob("*/bridge.o")]
    capsys.readouterr()
    fingerprint = pathlib.Path(old).parent.name.partition("-")[2]
    with cache.CacheEntry(str(tiny / "cache"), "tiny", fingerprint).lock():
        assert main(["native", "clean"]) == 0
    text = "%s: removed 1 compiled op, %.1f MB\n" % (tiny / "cache", (sizes[new] + sum(bridges)) / 1e6)
    assert capsys.readouterr().out == text
    assert os.path.exists(old) and os.listdir(folder) == ["lock"] and all(path.read_text() == "mine" for path in kept)
    assert build(TINY) == (new, True)
    assert cache.clean(str(tiny / "cache")) == (2, sizes[old] + sizes[new] + bridges[0])
    monkeypatch.setenv(cache.ENVIRONMENT, str(tiny / "none"))
    assert main(["native", "clean"]) == 0 and "none: removed 0 compiled ops" in capsys.readouterr().out
    assert main(["native", "clean", "all"]) == 2 and "takes no arguments" in capsys.readouterr().err
    assert main(["native", "cleam"]) == 2 and "clean" in capsys.readouterr().err


def test_no_writable_folder_at_all(tiny, monkeypatch):
    (tiny / "file").write_text("no folder")
    monkeypatch.setattr(cache, "cache_folders", lambda: [str(tiny / "file")])
    with pytest.raises(
        NativeOpError, match="no folder for compiled ops can be written to.*set RETURNN_TF_NATIVE_CACHE"
    ):
        build(TINY)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o720])
def test_a_folder_that_others_may_write_to_is_not_trusted(tiny, mode, monkeypatch):
    path, _ = build(TINY)
    os.chmod(tiny / "cache", mode)
    with pytest.raises(NativeOpError, match="cache: .* others .*may write to it"):
        build(TINY)
    assert cache.clean(str(tiny / "cache")) == (0, 0) and os.path.exists(path)
    monkeypatch.delenv(cache.ENVIRONMENT)
    (tiny / "home" / "returnn_tf").mkdir(parents=True)
    (tiny / "cache").rename(tiny / "home" / "returnn_tf" / "native")
    again, is_new = build(TINY)
    assert is_new and again.startswith(str(tiny / "returnn_tf_native_"))


@pytest.mark.parametrize("part", ["cache", "entry", "library", "manifest"])
@pytest.mark.parametrize("how", ["group", "owner", "link"])
def test_all_of_an_entry_must_be_ours(tiny, monkeypatch, part, how):
    """Else it is compiled again, in another folder if this one can't be mended."""
    if how != "group" and os.getuid() != 0:
        pytest.skip("only root can give files to another user")
    monkeypatch.delenv(cache.ENVIRONMENT)
    path, _ = build(TINY)
    entry = pathlib.Path(path).parent
    changed = {
        "cache": entry.parent,
        "entry": entry,
        "library": entry / "rtf_tiny.so",
        "manifest": entry / "manifest.json",
    }
    there = changed[part]
    if how == "group":
        there.chmod(there.stat().st_mode | stat.S_IWGRP)
    if how == "link":
        there.rename(tiny / "elsewhere")
        there.symlink_to(tiny / "elsewhere")
    if how != "group":
        made_by_another(there, monkeypatch)
    again, is_new = build(TINY)
    assert is_new and compiles(tiny) == 4
    assert (again == path) == (part in ("library", "manifest") or (part, how) == ("entry", "group"))


def test_what_is_written_is_closed_to_others(tiny):
    """Whatever the umask is, it is found again."""
    before = os.umask(0)
    try:
        path, is_new = build(TINY)
        assert is_new and build(TINY) == (path, False)
    finally:
        os.umask(before)
    for name in (path, os.path.join(os.path.dirname(path), "manifest.json"), os.path.dirname(path)):
        assert not os.stat(name).st_mode & 0o022, name


def test_a_link_of_the_user_is_followed(tiny):
    (tiny / "disk").mkdir(mode=0o755)
    (tiny / "cache").symlink_to(tiny / "disk")
    path, _ = build(TINY)
    assert build(TINY) == (path, False) and path.startswith(str(tiny / "cache"))


def test_full_disk(tiny, monkeypatch):
    def full(*_args, **_facts):
        raise OSError(28, "No space left on device", "/cache/op.so")

    monkeypatch.setattr(cache.CacheEntry, "put", full)
    with pytest.raises(
        NativeOpError, match="/cache/op.so: No space left on device.* make room there, or set RETURNN_TF_"
    ):
        build(TINY)


@pytest.mark.parametrize(
    "number, fix", [(errno.ENOSPC, "make room there"), (errno.EACCES, "delete it, or mend its permissions")]
)
def test_no_file_for_the_lock(number, fix, tiny, monkeypatch):
    """The disk is full, or another user has compiled before."""

    def refused(path, *args, **options):
        if os.path.basename(path) == "lock":
            raise OSError(number, os.strerror(number), path)
        return open(path, *args, **options)

    monkeypatch.setattr(cache, "open", refused, raising=False)
    with pytest.raises(NativeOpError) as info:
        build(TINY)
    text = str(info.value)
    assert re.match("%s/.*/lock: %s. " % (tiny / "cache", os.strerror(number)), text)
    assert text.endswith("%s: %s, or set RETURNN_TF_NATIVE_CACHE to another folder" % (tiny / "cache", fix))


def test_leftovers_that_cannot_be_listed(tiny, monkeypatch):
    def denied(entry):
        raise PermissionError(errno.EACCES, "Permission denied", entry.folder)

    monkeypatch.setattr(cache.CacheEntry, "remove_leftovers", denied)
    with pytest.raises(NativeOpError, match="Permission denied. This is in the cache of compiled ops, "):
        build(TINY)


def test_a_compiler_that_is_not_there(tiny, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-c++")
    with pytest.raises(NativeOpError, match=r"\$CXX = 'no-such-c\+\+' was not found; on Debian and Ubuntu: apt-get"):
        build(TINY)


@pytest.mark.parametrize(
    "script, message",
    [
        ("kill -9 $$", "bad-c[+][+] --version was ended by SIGKILL .no message."),
        ("printf 'error: \\377\\n' >&2; exit 1", "bad-c[+][+] --version failed: error: \ufffd$"),
        ("exit 1", "bad-c[+][+] --version failed: no message$"),
    ],
    ids=["killed", "no UTF-8", "silent"],
)
def test_a_compiler_that_does_not_work(tiny, monkeypatch, script, message):
    compiler = tiny / "bad-c++"
    compiler.write_text("#!/bin/sh\n%s\n" % script)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeOpError, match=message):
        build(TINY)


def test_a_compiler_that_is_no_command(tiny, monkeypatch):
    monkeypatch.setenv("CXX", "g++ 'and more")
    with pytest.raises(NativeOpError, match="CXX = .* is not a command: No closing quotation"):
        build(TINY)


def test_the_failing_line_of_the_compiler_is_shown(tiny):
    (tiny / "sources" / "tiny" / "kernel.cc").write_text("int wrong = ;\n")
    with pytest.raises(
        NativeOpError, match=r"count-c\+\+ failed: .*kernel.cc:1:13: error: expected primary-expression"
    ):
        build(TINY)


def test_narrower_instructions_where_the_compiler_knows_no_others(tiny, monkeypatch):
    monkeypatch.setitem(toolchain._TARGETS, toolchain.platform.machine(), ("-march=z80", "-march=none", ""))
    assert toolchain.find_toolchain().target == ()
    assert build(TINY)[1]


def test_a_busy_compiler_is_not_taken_for_an_old_one(tiny, monkeypatch):
    """Else processes on one machine would compute with different instructions."""
    (tiny / "count-c++").write_text('#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\nexec sleep 60\n')
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    with pytest.raises(NativeOpError, match=r"count-c\+\+ .* did not end within 0.5 seconds"):
        toolchain.find_toolchain()


def test_another_flag_of_the_command_is_another_op(tiny, monkeypatch):
    path, _ = build(TINY)
    monkeypatch.setenv("CXX", os.environ["CXX"] + " -g")
    assert build(TINY)[0] != path and build(TINY)[1] is False


def test_no_more_compilers_at_once_than_cpus(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    script = "mkdir $0/$$; ls $0 | wc -l >> $0.counts; sleep 0.1; rmdir $0/$$"
    (tmp_path / "running").mkdir()
    monkeypatch.setattr(processes, "_slots", functools.cache(processes._slots.__wrapped__))
    processes.run_all([["sh", "-c", script, str(tmp_path / "running")] for _ in range(7)])
    counts = (tmp_path / "running.counts").read_text().split()
    assert len(counts) == 7 and max(map(int, counts)) <= 2


def test_the_longest_command_is_next():
    """Also one that comes later."""
    slots, order = processes.Slots(1), []

    def run_one(seconds):
        with slots.one(seconds):
            order.append(seconds)

    with ThreadPoolExecutor(4) as pool:
        with slots.one(0.0):
            for seconds in (0.5, 2.0, 6.0, 2.0):
                pool.submit(run_one, seconds)
            until(lambda: len(slots._waiting) == 4)
    assert order == [6.0, 2.0, 2.0, 0.5]


def test_one_warning_and_the_plain_form_takes_over(tiny, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-c++")
    monkeypatch.setattr(library, "_loaded", {})
    assert library.native_op("lstm", lambda ops: None) is None
    assert library.native_op("lstm", lambda ops: None) is None
    assert len(caplog.records) == 1
    assert "The native op lstm cannot be used; falling back to plain TensorFlow, which is slower: $CXX" in caplog.text


def test_switched_off(monkeypatch, caplog):
    monkeypatch.setenv(library.SWITCH, "0")
    monkeypatch.setattr(library, "_loaded", {})
    assert library.native_op("lstm", lambda ops: None) is None and not caplog.records


def test_a_library_that_is_none(tiny, monkeypatch):
    (tiny / "no.so").write_text("no library")
    monkeypatch.setattr(library, "built", lambda name: str(tiny / "no.so"))
    with pytest.raises(NativeOpError, match="no.so cannot be loaded: "):
        library.load("lstm", lambda ops: None)


def test_a_library_is_tested_until_it_passed_once(tiny, monkeypatch):
    """Also in a process which did not compile it, and though the first use is while a graph is traced."""
    monkeypatch.setitem(library.OPS._entries, "tiny", TINY)
    eager = []

    def wrong(_ops):
        raise NativeOpError("wrong results")

    for _ in range(2):
        with pytest.raises(NativeOpError, match="wrong results"):
            library.load("tiny", wrong)

    @tf.function(autograph=False)
    def traced():
        library.load("tiny", lambda _: eager.append(tf.executing_eagerly()))
        library.load("tiny", wrong)  # not called
        return tf.zeros([])

    traced()
    assert eager == [True] and compiles(tiny) == 2
    path, _ = build(TINY)
    os.remove(path)
    with pytest.raises(NativeOpError, match="wrong results"):
        library.load("tiny", wrong)  # compiled anew


def test_sources_are_missing(monkeypatch):
    monkeypatch.setattr(sources, "shipped_folder", lambda name: "/nowhere")
    with pytest.raises(NativeOpError, match="sources of the native ops are missing: there is no folder /nowhere"):
        build_module.build(TINY)


@pytest.fixture
def two(tiny, monkeypatch):
    """Return a function that traces a graph of two ops, the second of which is asked for if there is the first."""
    for name in ("tiny", "other"):
        monkeypatch.setitem(library.OPS._entries, name, dataclasses.replace(TINY, name=name))
    monkeypatch.setattr(library, "_loaded", {})

    def traced(trace=at_once.with_ops_at_once, test=lambda ops: None):
        asked = []

        def graph():
            asked.append([])
            for name in ("tiny", "other"):
                found = library.native_op(name, test)
                asked[-1].append((name, found is not None, library.native_op(name, test) is found))
                if found is None:
                    break
            return len(asked)

        return trace(graph), asked

    return traced


def test_a_graph_is_traced_again_when_its_ops_are_compiled(tiny, two):
    count, asked = two()
    first, second = ("tiny", True, True), ("other", True, True)
    assert count == 3 and asked == [[("tiny", False, True)], [first, ("other", False, True)], [first, second]]
    assert two() == (1, [[first, second]]) and compiles(tiny) == 4 and compiles(tiny, "common") == 1


def test_a_graph_with_ops_in_the_cache_is_traced_once(two):
    for name in ("tiny", "other"):
        build(library.OPS[name])
    assert two() == (1, [[("tiny", True, True), ("other", True, True)]])


def test_an_op_that_cannot_be_compiled_is_tried_once(tiny, two, caplog):
    (tiny / "sources" / "tiny" / "kernel.cc").write_text("int wrong = ;\n")
    assert two() == (2, [[("tiny", False, True)]] * 2) and compiles(tiny) == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert re.match("The native op tiny cannot be used; falling back .* error: expected primary-expr", warning)


@pytest.mark.parametrize("why", ["no compiler", "switched off", "portable"])
def test_a_graph_that_has_no_ops_is_traced_once(two, monkeypatch, why):
    monkeypatch.setenv("CXX" if why == "no compiler" else library.SWITCH, "0" if why == "switched off" else "no-c++")
    with portable_ops() if why == "portable" else contextlib.nullcontext():
        assert two() == (1, [[("tiny", False, True)]])


def test_ops_of_one_graph_compile_at_the_same_time(tiny, two, monkeypatch):
    """The compiler waits for the other one to begin."""
    script = """#!/bin/sh
case "$*" in *tiny/kernel.cc*)
  mkdir {began}/$$
  for _ in $(seq 600); do [ "$(ls {began} | wc -l)" = 2 ] && exec g++ "$@"; sleep 0.1; done; exit 1
esac
exec g++ "$@"
"""
    (tiny / "count-c++").write_text(script.format(began=tiny / "began"))
    (tiny / "began").mkdir()
    monkeypatch.setattr(processes, "_slots", lambda: processes.Slots(4))
    found = at_once.with_ops_at_once(lambda: [library.native_op(name, lambda ops: None) for name in ("tiny", "other")])
    assert None not in found


def test_another_thread_may_load_an_op_that_a_graph_waits_for(two):
    """As the self-test of an op that needs another one."""
    found = []

    def graph():
        found.append(library.native_op("tiny", lambda ops: None))
        with ThreadPoolExecutor(1) as thread:
            found.append(thread.submit(library.native_op, "tiny", lambda ops: None).result())

    at_once.with_ops_at_once(graph)
    assert found[0] is None and found[1] is found[2] is found[3] is not None


def test_an_error_while_tracing_is_raised_at_once(two):
    def trace(graph):
        return at_once.with_ops_at_once(lambda: 1 // (graph() - 1))

    with pytest.raises(ZeroDivisionError):
        two(trace)
    assert two()[0] >= 1  # what was begun is used


def test_the_compiler_is_examined_once(tiny):
    for name in ("tiny", "other"):
        build(dataclasses.replace(TINY, name=name))
    calls = (tiny / "calls").read_text().splitlines()
    assert sum("--version" in call for call in calls) == sum("-fsyntax-only" in call for call in calls) == 1
