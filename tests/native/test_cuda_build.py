"""Compiling ops for GPUs: which nvcc, for which GPUs, what the cache key names, what is said where it does not work."""

import dataclasses
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from returnn_tf.native import build as build_module
from returnn_tf.native import cache, gru, library, lstm, sources
from returnn_tf.native.build import build, find_compilers
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu import card, cuda_toolchain
from returnn_tf.native.gpu.cuda_toolchain import find_cuda_toolchain, nvcc_candidates, visible_archs
from returnn_tf.native.sources import OPS, NativeOp
from returnn_tf.util.lazy_tf import tf

TINY = NativeOp("tiny", kernels=("tiny/kernel.cc",), bindings=("tiny/op.cc",), cuda=("tiny/kernel.cu",))
SOURCES = {
    "tiny/kernel.cc": 'extern "C" int rtf_tiny() { return 1; }\n',
    "tiny/kernel.cu": 'extern "C" int rtf_tiny_cuda() { return 2; }\n',
    "tiny/op.cc": '#if RTF_CUDA\nextern "C" int rtf_tiny_binding() { return 3; }\n#endif\n',
    "common/a.h": "// nothing\n",
    "common/tf_bridge.cc": "// nothing\n",
    "common/cuda/b.h": "// nothing\n",
}
FAKE = """#!%s
import os, subprocess, sys
words = sys.argv[1:]
with open(%r, "a") as f:
    f.write(" ".join(words) + "\\n")
if words == ["--version"]:
    print("nvcc: NVIDIA (R) Cuda compiler driver\\nCuda compilation tools, release %s, V%s.1")
elif words == ["--list-gpu-code"]:
    print("sm_80\\nsm_90")
else:
    takes_one = ("-ccbin", "-gencode", "-Xcompiler", "-Xlinker", "-cudart", "--threads")
    rest, shared = [], "-shared" in words
    while words:
        word = words.pop(0)
        if word in takes_one:
            words.pop(0)
        elif word not in ("-allow-unsupported-compiler", "-shared"):
            rest.append(word)
    sys.exit(subprocess.call(["g++", "-fPIC", *(["-shared"] if shared else ["-x", "c++"]), *rest]))
"""


def fake_nvcc(folder, version="12.3"):
    """Return a program that says it is nvcc, and lets g++ do the work."""
    program = folder / "bin" / "nvcc"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(FAKE % (sys.executable, str(folder / "calls"), version, version))
    program.chmod(0o755)
    return program


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Return an op that compiles in no time, a cache of its own, a GPU that is not there, and an nvcc that is none."""
    for path, text in SOURCES.items():
        file = tmp_path / "sources" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "cache_folders", lambda: [str(tmp_path / "cache")])
    monkeypatch.setattr(sources, "shipped_folder", lambda name: str(tmp_path / "sources"))
    monkeypatch.setattr(build_module, "visible_archs", lambda: ("sm_90",))
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    fake_nvcc(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    return tmp_path


def symbols(path):
    return subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout


def test_all_parts_are_in_one_library(tiny):
    path, is_new = build(TINY)
    assert is_new and build(TINY) == (path, False)
    for symbol in ("rtf_tiny", "rtf_tiny_cuda", "rtf_tiny_binding"):
        assert "T %s\n" % symbol in symbols(path)
    calls = (tiny / "cuda" / "calls").read_text()
    assert "-gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90" in calls
    assert "-shared -cudart static" in calls
    manifest = json.loads(pathlib.Path(os.path.dirname(path), "manifest.json").read_text())
    assert manifest["compiler"].endswith(", nvcc V12.3.1 for sm_90")


def test_without_a_gpu_nvcc_is_not_asked(tiny, monkeypatch):
    with_gpu, _ = build(TINY)
    os.remove(tiny / "cuda" / "calls")
    monkeypatch.setattr(build_module, "visible_archs", lambda: ())
    path, is_new = build(TINY)
    assert is_new and path != with_gpu and "rtf_tiny_cuda" not in symbols(path) and "binding" not in symbols(path)
    assert not (tiny / "cuda" / "calls").exists()


@pytest.mark.parametrize("change", ["nvcc", "gpu", "cu", "header"])
def test_another_compiler_gpu_or_source_is_another_op(tiny, monkeypatch, change):
    first, _ = build(TINY)
    if change == "nvcc":
        fake_nvcc(tiny / "other", "12.4")
        monkeypatch.setenv("CUDA_HOME", str(tiny / "other"))
    elif change == "gpu":
        monkeypatch.setattr(build_module, "visible_archs", lambda: ("sm_80", "sm_90"))
    else:
        path = {"cu": "tiny/kernel.cu", "header": "common/cuda/b.h"}[change]
        (tiny / "sources" / path).write_text(SOURCES[path] + "// changed\n")
    second, is_new = build(TINY)
    assert is_new and second != first


def test_the_same_nvcc_in_another_place_is_the_same(tiny, monkeypatch):
    first, _ = build(TINY)
    fake_nvcc(tiny / "other")
    monkeypatch.setenv("CUDA_HOME", str(tiny / "other"))
    assert build(TINY) == (first, False)


def test_cuda_sources_do_not_matter_without_a_gpu(tiny, monkeypatch):
    monkeypatch.setattr(build_module, "visible_archs", lambda: ())
    first, _ = build(TINY)
    (tiny / "sources" / "tiny" / "kernel.cu").write_text("changed\n")
    assert build(TINY) == (first, False)


def test_where_nvcc_is_looked_for(tiny, monkeypatch):
    folders = [tiny / name for name in ("cudacxx", "cuda", "path", "path_too")]
    for folder in folders:
        fake_nvcc(folder)
    monkeypatch.setenv("CUDACXX", "env %s" % (tiny / "cudacxx" / "bin" / "nvcc"))
    monkeypatch.setenv("CUDA_PATH", str(tiny / "path"))
    monkeypatch.setenv("PATH", "%s:%s" % (tiny / "path_too" / "bin", os.environ["PATH"]))
    pip = tiny / "site" / "nvidia" / "cu13"
    fake_nvcc(pip)
    monkeypatch.setattr(cuda_toolchain.sysconfig, "get_paths", lambda: {"purelib": str(tiny / "site")})
    found = [command for command in nvcc_candidates() if command != ["/usr/local/cuda/bin/nvcc"]]
    places = [tiny / "cuda", tiny / "path", tiny / "path_too", pip]
    assert found == [["env", str(tiny / "cudacxx/bin/nvcc")], *([str(place / "bin" / "nvcc")] for place in places)]


def test_an_nvcc_that_does_not_work_is_passed_over(tiny, monkeypatch):
    broken = tiny / "broken"
    broken.write_text("#!/bin/sh\necho 'fatal: no cicc' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(broken))
    assert find_cuda_toolchain(["sm_90"]).nvcc == (str(tiny / "cuda" / "bin" / "nvcc"),)
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter([[str(broken)]]))
    with pytest.raises(NativeOpError, match="broken --version failed: fatal: no cicc; install the CUDA toolkit"):
        find_cuda_toolchain(["sm_90"])


@pytest.mark.parametrize(
    "wanted, version, told", [("12", "12.3", 0), ("13", "13.0", 0), ("11", "12.3", 1), ("", "12.3", 0)]
)
def test_nvcc_of_the_release_of_tensorflow_is_preferred(tiny, monkeypatch, caplog, wanted, version, told):
    """Else the first one is taken, and the log says so once."""
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"cuda_version": wanted and wanted + ".1"})
    fake_nvcc(tiny / "thirteen", "13.0")
    places = [[str(tiny / name / "bin" / "nvcc")] for name in ("cuda", "thirteen")]
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter(places))
    with caplog.at_level(logging.INFO, logger="returnn_tf"):
        for _ in range(2):
            assert find_cuda_toolchain(["sm_90"]).version == "nvcc V%s.1" % version
    text = (
        "No nvcc of CUDA 11, which is TensorFlow's, was found: native ops are compiled by nvcc V12.3.1, with its CUDA"
    )
    assert [line.startswith(text) for line in caplog.messages] == [True] * told


@pytest.mark.parametrize("driver, runs", [(12, False), (13, True), (14, True), (None, True)])
def test_nvcc_of_a_later_release_than_the_driver_runs(tiny, monkeypatch, driver, runs):
    """It is passed over before anything is compiled, unless the op is for another machine."""
    only = [str(fake_nvcc(tiny / "thirteen", "13.0"))]
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter([only]))
    monkeypatch.setattr(build_module, "cuda_of_driver", lambda: driver)
    assert find_compilers(TINY, ["sm_90"]).cuda.version == "nvcc V13.0.1"
    if runs:
        assert build(TINY)[1]
        return
    text = r"\(nvcc V13.0.1\) makes programs for CUDA 13, but the driver runs none above CUDA 12; install"
    with pytest.raises(NativeOpError, match=text):
        build(TINY)
    both = [only, [str(tiny / "cuda" / "bin" / "nvcc")]]
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter(both))
    assert build(TINY)[1] and "12.3" in find_cuda_toolchain(["sm_90"], driver).version


@pytest.mark.parametrize("says, release", [(12040, 12), (13000, 13), (None, None), ("failure", None)])
def test_release_that_the_driver_runs(monkeypatch, says, release):
    """Without a driver there is no library."""

    class Library:
        def __init__(self, name):
            assert name == "libcuda.so.1"
            if says is None:
                raise OSError("cannot open shared object file")

        def cuDriverGetVersion(self, version):
            version._obj.value = 0 if says == "failure" else says
            return int(says == "failure")

    monkeypatch.setattr(card.ctypes, "CDLL", Library)
    assert card.cuda_of_driver() == release


@pytest.mark.parametrize("remains", ["build-1234/0.o", "rtf_tiny.so", ""])
def test_the_remains_of_an_interrupted_compiler(tiny, monkeypatch, remains):
    """The op is compiled again, the log says why, and nothing of them stays."""
    path, _ = build(TINY)
    folder = pathlib.Path(path).parent
    os.remove(folder / "manifest.json")
    os.remove(path)
    if remains:
        (folder / remains).parent.mkdir(exist_ok=True)
        (folder / remains).write_text("half")
    lines = []
    monkeypatch.setattr(build_module.log, "write", lambda level, text: lines.append(text))
    assert build(TINY) == (path, True)
    why = "as the one in the cache is damaged or incomplete" if remains else "once"
    assert lines == ["Compiling the native op tiny for this machine, %s ..." % why]
    assert sorted(os.listdir(folder)) == ["lock", "manifest.json", "rtf_tiny.so"]


def test_a_gpu_that_nvcc_does_not_know(tiny, monkeypatch):
    only = [str(tiny / "cuda" / "bin" / "nvcc")]
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter([only]))
    with pytest.raises(NativeOpError, match=r"nvcc \(nvcc V12.3.1\) does not compile for sm_120; install the CUDA"):
        find_cuda_toolchain(["sm_90", "sm_120"])


@pytest.mark.parametrize("archs, told", [(("sm_75", "sm_90"), "7.5"), (("sm_100", "sm_80"), ""), ((), "")])
def test_a_gpu_that_is_too_old_for_the_kernels(tiny, monkeypatch, archs, told):
    """One line says what they need, before nvcc is asked."""
    monkeypatch.setattr(build_module, "visible_archs", lambda: archs)
    monkeypatch.setattr(build_module, "find_cuda_toolchain", lambda *_: None)
    op = dataclasses.replace(TINY, capability=(8, 0))
    if not told:
        assert find_compilers(op, archs).cuda is None
        return
    with pytest.raises(NativeOpError, match="its kernels need compute capability 8.0, but the GPU has %s$" % told):
        build(op)


def test_no_architecture():
    with pytest.raises(NativeOpError, match="'hopper' is not a GPU architecture; expected e.g. sm_90"):
        find_cuda_toolchain(["hopper"])


def test_architectures_are_sorted_by_number(tiny, monkeypatch):
    monkeypatch.setattr(cuda_toolchain, "output_of", lambda command: "sm_80 sm_90 sm_100")
    toolchain = find_cuda_toolchain(["sm_100", "sm_80", "sm_90"])
    assert toolchain.archs == ("sm_80", "sm_90", "sm_100")
    assert toolchain.kernel_flags()[-1] == "arch=compute_100,code=compute_100"


def test_the_failing_line_of_nvcc_is_shown(tiny):
    (tiny / "sources" / "tiny" / "kernel.cu").write_text("int wrong = ;\n")
    with pytest.raises(NativeOpError, match=r"nvcc failed: .*kernel.cu:1:13: error: expected primary-expression"):
        build(TINY)


class Gpu:
    name = "/physical_device:GPU:0"


@pytest.fixture
def gpus(monkeypatch):
    """Make TensorFlow say that it has GPUs of these capabilities."""

    def have(*capabilities, cuda=True):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Gpu()] * len(capabilities))
        details = iter(capabilities)
        monkeypatch.setattr(
            tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": next(details)}
        )
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: cuda)

    return have


def test_architectures_of_the_gpus(gpus):
    gpus()
    assert visible_archs() == ()
    gpus((10, 0), (8, 0), (9, 0), (8, 0))
    assert visible_archs() == ("sm_80", "sm_90", "sm_100")
    gpus((9, 0), cuda=False)
    assert visible_archs() == ()
    gpus(None)
    with pytest.raises(NativeOpError, match="does not report the compute capability of /physical_device:GPU:0"):
        visible_archs()


def test_a_gpu_without_nvcc_is_one_warning(tiny, gpus, monkeypatch, caplog):
    gpus((9, 0))
    monkeypatch.setitem(library.OPS._entries, "tiny", TINY)
    monkeypatch.setattr(library, "_loaded", {})
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter(()))
    assert library.native_op("tiny", lambda ops: None) is None and library.native_op("tiny", lambda ops: None) is None
    assert [record.getMessage() for record in caplog.records] == [
        "The native op tiny cannot be used; falling back to plain TensorFlow, which is slower: the CUDA compiler nvcc "
        "was not found; install the CUDA toolkit (version 12 or later) or set CUDA_HOME to where it is; for drivers "
        "since 580 the extra 'nvcc' of this package will do."
    ]


@pytest.mark.parametrize("cuda", [True, False])
def test_ops_for_the_cpu_alone_stay_away_from_a_gpu(gpus, monkeypatch, caplog, cuda):
    """Its arrays would be moved to and fro. Nor is there anything for a GPU that is none of CUDA's."""
    gpus((9, 0), cuda=cuda)
    name = "tiny"
    monkeypatch.setitem(library.OPS._entries, name, TINY if not cuda else NativeOp(name, TINY.kernels, TINY.bindings))
    monkeypatch.setattr(library, "_loaded", {})
    assert library.native_op(name, lambda ops: None) is None and not caplog.records


def test_a_cached_op_needs_no_compiler(tiny, monkeypatch):
    path, _ = build(TINY)
    monkeypatch.setattr(cuda_toolchain, "nvcc_candidates", lambda: iter(()))
    assert build(TINY) == (path, False)
    monkeypatch.setenv("CXX", "no-such-c++")
    assert build(TINY) == (path, False)
    monkeypatch.setattr(build_module, "visible_archs", lambda: ("sm_80",))
    with pytest.raises(NativeOpError, match="no-such-c"):
        build(TINY)


def test_without_a_compiler_the_newest_of_several_is_taken(tiny, monkeypatch):
    first, _ = build(TINY)
    fake_nvcc(tiny / "cuda", "12.4")
    second, _ = build(TINY)
    os.utime(os.path.join(os.path.dirname(first), "manifest.json"), (1e9, 1e9))
    monkeypatch.setenv("CXX", "no-such-c++")
    assert build(TINY) == (second, False)
    pathlib.Path(second).write_bytes(b"damaged")
    assert build(TINY) == (first, False)


NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
BUILT_WITH_CUDA = [name for name in OPS if OPS[name].cuda]
REGISTERED = """
import sys
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op
tf.load_op_library(sys.argv[1])
for name in sys.argv[2:]:
    for kernel in get_registered_kernels_for_op(name).kernel:
        print(name, kernel.device_type, *kernel.host_memory_arg)
"""


@pytest.mark.long
@pytest.mark.skipif(NVCC is None, reason="there is no nvcc")
@pytest.mark.parametrize("name", BUILT_WITH_CUDA)
def test_gpu_kernels_are_registered(name, tmp_path):
    """The library for CPU and GPU loads into a TensorFlow without GPUs, and computes the same on the CPU."""
    library_file = str(tmp_path / "op.so")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    tool = os.path.join(root, "tools", "compile_native_op.py")
    command = [sys.executable, tool, name, "--output", library_file, "--cuda-arch", "sm_90"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ops = sorted(set(_registered_ops(name)))
    shown = subprocess.run(
        [sys.executable, "-c", REGISTERED, library_file, *ops], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for op in ops:
        assert {line.split()[1] for line in shown if line.split()[0] == op} == {"CPU", "GPU"}, op
    test = "from returnn_tf.native.library import load_library; from returnn_tf.native.sources import OPS; import sys\n"
    test += "OPS[sys.argv[1]].self_test(load_library(sys.argv[2]))"
    environ = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", test, name, library_file], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr


def test_all_kernels_for_gpus_belong_to_an_op():
    """Each file with kernels is a part of its op, so that a network gets them."""
    there = set(pathlib.Path(sources.source_folder()).glob("*/*.cu"))
    assert there == {pathlib.Path(sources.source_folder(), path) for _, op in OPS.items() for path in op.cuda}


def _registered_ops(name):
    """Yield the names in the sources of an op."""
    for path in OPS[name].bindings:
        with open(os.path.join(sources.source_folder(), path), encoding="utf8") as f:
            for line in f:
                if line.startswith("REGISTER_OP("):
                    yield line.split('"')[1]


def test_prebuilding_needs_kernels_for_gpus(monkeypatch):
    assert find_compilers(NativeOp("none", (), ()), ["sm_90"]).cuda is None


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("module, find", [(lstm, lstm.lstm_ops), (gru, gru.gru_ops)])
def test_which_types_a_recurrence_has(monkeypatch, module, find, on_gpu):
    """What is no float32 has kernels on a GPU only."""
    monkeypatch.setattr(module, "native_op", lambda name, self_test: name)
    monkeypatch.setattr(library, "runs_on_gpu", lambda name: on_gpu)
    types = [dtype for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64) if find(dtype)]
    assert types == ([tf.float16, tf.bfloat16, tf.float32] if on_gpu else [tf.float32])


@pytest.mark.parametrize("name, on_gpu, there", [
    ("lstm", False, "float32; on a GPU also bfloat16 and float16"), ("gru", True, "float32, bfloat16 and float16"),
])  # fmt: skip
def test_a_type_without_kernels_is_one_line(monkeypatch, name, on_gpu, there):
    """Before TensorFlow says that no OpKernel was registered."""
    monkeypatch.setattr(library, "runs_on_gpu", lambda name: on_gpu)
    z = [tf.zeros(shape, tf.float64) for shape in ([1, 1, 12], [3, 12], [3, 3], [1, 3])]
    run = {"lstm": lstm.native_lstm, "gru": gru.native_gru}[name]
    with pytest.raises(NativeOpError) as info:
        run(None, *z, tf.constant([1]))
    assert str(info.value) == (
        "the native op %s has no kernel for float64 here (it has: %s); cast its input, or take the form in plain "
        "TensorFlow" % (name, there)
    )
    if not on_gpu:
        with pytest.raises(NativeOpError, match="no kernel for bfloat16"):
            run(None, *(tf.cast(x, tf.bfloat16) for x in z), tf.constant([1]))


def test_self_tests_have_the_precision_of_float(monkeypatch):
    """Products on a GPU may have that of TF32 otherwise."""
    seen = []
    library.run_test_on(
        "CPU:0", None, lambda _: seen.append(tf.config.experimental.tensor_float_32_execution_enabled())
    )
    assert seen == [False] and tf.config.experimental.tensor_float_32_execution_enabled()


def test_examined_on_each_device(monkeypatch):
    """With the precision of float, too; an error of TensorFlow is one line."""
    seen = []

    def self_test(ops):
        seen.append((ops, tf.config.experimental.tensor_float_32_execution_enabled()))
        if len(seen) == 3:
            raise tf.errors.InternalError(None, None, "an illegal memory access\nmore")

    monkeypatch.setitem(library.OPS._entries, "tiny", dataclasses.replace(TINY, self_test=self_test))
    monkeypatch.setattr(library, "load", lambda name, self_test: "ops")
    monkeypatch.setattr(library, "devices", lambda name: ["CPU:0", "CPU:0"])
    assert library.examine("tiny") == "" and seen == [("ops", False)] * 2
    assert library.examine("tiny") == "an illegal memory access"
