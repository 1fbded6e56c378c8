"""The emulator finds what is wrong with a recurrence whose threads do not wait, or that has one buffer for two."""

import itertools
import os
import shutil

import pytest

from tests.native.cuda.build import SOURCES, build_emulated
from tests.native.cuda.recurrences import Kernels, check

HEADERS = "common/cuda/recurrence_%s.h"
#: what, header, text, what takes its place
MUTATIONS = [
    ("nothing", "block", "", ""),
    ("x of two steps in one place", "layout", "(parity & 1) * layout.groups", "0 * layout.groups"),
    ("sums of two passes in one place", "block", "pass % 2 * kPartial", "0 * kPartial"),
    ("no barrier before the sums are added up", "block", "partial);\n      __syncthreads();", "partial);"),
    ("no barrier between two tiles", "kernels", "else __syncthreads();", ""),
    ("only one thread waits", "block", "spin_pause();\n    __syncthreads();", "spin_pause();"),
    ("what others send is not awaited", "block", "arrive() {\n    __syncthreads();", "arrive() {"),
]
#: Compiling one kind of numbers takes a fourth of the time.
OTHER_NUMBERS = [
    "    case RTF_%s: return function(%s());\n" % kind
    for kind in (("FLOAT_TF32", "FloatTf32"), ("BFLOAT16", "Bfloat16"), ("FLOAT16", "Float16"))
]


def replace(path, text, by):
    with open(path, encoding="utf8") as f:
        content = f.read()
    assert text in content, "%s has no %r any more" % (path, text)
    with open(path, "w", encoding="utf8") as f:
        f.write(content.replace(text, by, 1))


@pytest.mark.long
@pytest.mark.parametrize("what, header, text, by", MUTATIONS, ids=[mutation[0] for mutation in MUTATIONS])
def test_found(monkeypatch, tmp_path, what, header, text, by):
    for folder in ("common", "lstm"):
        shutil.copytree(os.path.join(SOURCES, folder), tmp_path / folder)
    replace(tmp_path / (HEADERS % header), text, by)
    for case in OTHER_NUMBERS:
        replace(tmp_path / (HEADERS % "run"), case, "")
    kernels = Kernels(
        build_emulated(str(tmp_path / "lstm" / "lstm_cuda.cu"), "-Wno-switch", "-Wno-unused-variable"), "lstm"
    )
    found = 0
    for multiprocessors, seed, size in itertools.product((1, 5), range(1, 7), ((3, 20, 70), (3, 60, 20))):
        monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        try:
            check(kernels, size)
        except (AssertionError, ValueError):  # wrong numbers, or a deadlock
            found += 1
    assert found == 0 if what == "nothing" else found > 0
