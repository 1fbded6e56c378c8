"""The emulator, and scores that no path passes, find what is wrong with the states that alignments leave out."""

import itertools

import numpy as np
import pytest

from tests.native.cuda import test_cuda_align as chains
from tests.native.cuda import test_cuda_align_lattices as lattices
from tests.native.cuda.align_calls import Calls
from tests.native.cuda.build import build_emulated, copy_sources, replace

_EDGES = "fewest[queue[done]] + 1;"
_NEXT_IS_LIVE = "if (all.live(cell.b).at(d + 1).has(cell.u))"
#: what, kernels, file, text, what takes its place: states that are live are left out, or dead ones are not
MUTATIONS = [
    ("nothing", "chain", "live.h", "", ""),
    ("the window ends too early", "chain", "live.h", "stride * t,", "stride * t - 1,"),
    ("the window ends too late", "chain", "live.h", "stride * t,", "stride * t + 1,"),
    ("the window begins too late", "chain", "live.h", "= states - ends", "= states - ends + 1"),
    ("the window begins too early", "chain", "live.h", "= states - ends", "= states - ends - 1"),
    ("skips are not seen", "chain", "chain_device.h", "== end ? 1 : 2)", "== end ? 1 : 1)"),
    ("skips without any", "chain", "chain_device.h", "== end ? 1 : 2)", "== end ? 2 : 2)"),
    ("dead states are added up", "chain", "chain_cuda.cu", "same >= 0 && same < live.end", "same >= 0"),
    ("a dead state adds up", "chain", "chain_cuda.cu", "previous[s] >= live.first", "previous[s] >= 0"),
    ("nothing", "acceptor", "reach.h", "", ""),
    ("too far from the start", "acceptor", "reach.h", _EDGES, "fewest[queue[done]] + 1 + (side == 0);"),
    ("too far from the end", "acceptor", "reach.h", _EDGES, "fewest[queue[done]] + 1 + (side == 1);"),
    ("edges from states without a path", "acceptor", "acceptor_cuda.cu", "if (state.is_none()) continue;", ""),
    ("posteriors of dead edges", "acceptor", "acceptor_cuda.cu", "|| !all.is_live(b, to, t + 1)", ""),
    ("only one row is cleared", "acceptor", "acceptor_cuda.cu", "rows[s] = rows[all.states + s] =", "rows[s] ="),
    ("nothing", "transducer", "live.h", "", ""),
    ("the window begins too late", "transducer", "live.h", "= states - ends", "= states - ends + 1"),
    ("a blank into a dead state", "transducer", "transducer_cuda.cu", _NEXT_IS_LIVE, ""),
]  # fmt: skip


def check(name, gpu, cpu):
    """Compare with the CPU's kernels, and read no scores outside of all alignments."""
    pairs = []
    if name == "chain":
        for size in [(6, 5, 3, 3, 1), (70, 6, 5, 12, 0), (9, 4, 4, 40, 1), (40, 3, 33, 64, 1)]:
            pairs.append([calls.chains(*chains.draw_chains(*size), best=False) for calls in (gpu, cpu)])
        pairs.append([calls.ctc(*chains.draw(12, 7, 5, 6), **chains.ctc_options(0)) for calls in (gpu, cpu)])
        for may_skip, ends in itertools.product((False, True), (0, 1)):
            chains.check_unread_scores(gpu, 9, 6, may_skip, ends, best=False)
    elif name == "acceptor":
        for size in [(7, 9, 5, 4, 12), (5, 30, 40, 9, 60), (3, 12, 30, 3, 200)]:
            pairs.append([calls.acceptors(*lattices.draw_acceptors(*size), best=False) for calls in (gpu, cpu)])
        for size in [(7, 9, 5, 4, 12), (5, 14, 40, 9, 60)]:
            lattices.check_unread_edges(gpu, size, best=False)
    else:
        options = {"blank": 0, "normalized": False}
        for size, takes_frame in itertools.product(lattices.TRANSDUCERS, (False, True)):
            batch = lattices.draw_transducer(*size)
            pairs.append([calls.transducer(*batch, label_takes_frame=takes_frame, **options) for calls in (gpu, cpu)])
        lattices.check_unread_cells(gpu)
    for ours, expected in pairs:
        for a, b in zip(ours, expected):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("what, name, file, text, by", MUTATIONS, ids=[mutation[0] for mutation in MUTATIONS])
def test_found(tmp_path, what, name, file, text, by):
    copy_sources("align", tmp_path)
    replace(tmp_path / "align" / file, text, by)
    gpu = Calls(build_emulated(str(tmp_path / "align" / ("%s_cuda.cu" % name)), "-Wno-unused-variable"))
    cpu = Calls(build_emulated("align/%s_cpu.cc" % name, "-O2"), cuda=False)
    if what == "nothing":
        check(name, gpu, cpu)
    else:
        with pytest.raises((AssertionError, ValueError)):  # wrong numbers, or a deadlock
            check(name, gpu, cpu)
