"""The scans with a matrix as state on an emulated GPU: as the kernels for the CPU, on all cases of their tests."""

import numpy as np
import pytest

from tests.native.cuda.build import build_emulated
from tests.native.cuda.matrix_scan_calls import Scans
from tests.native.scan_cases import DELTA_CASES, LENGTHS, MATRIX_CASES, delta_arrays, matrix_arrays
from tests.tiers import usual

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def sides():
    """Return a function from the name of a scan to its kernels for GPUs and CPUs."""

    def both(name):
        gpu = build_emulated("%s_scan/%s_scan_cuda.cu" % (name, name))
        cpu = build_emulated("%s_scan/%s_scan_cpu.cc" % (name, name), "-O2")
        return Scans(gpu, name, True), Scans(cpu, name, False)

    return both


def compare(sides, inputs, lengths=LENGTHS, **options):
    """Run both sides with random gradients of all results."""
    rng = np.random.RandomState(3)
    d_o, d_last = (rng.normal(size=x.shape) for x in (inputs[2], inputs[-1]))
    on_gpu, on_cpu = (side.run(inputs, lengths, d_o, d_last, **options) for side in sides)
    for index, (result, expected) in enumerate(zip(on_gpu, on_cpu)):
        assert np.isfinite(expected).all()
        scale = max(1, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(result / scale, expected / scale, atol=2e-5, err_msg="result %d" % index)
    return on_gpu


@pytest.mark.parametrize("keys, values, decays, exclusive, reverse", MATRIX_CASES)
def test_matrix_scan(sides, keys, values, decays, exclusive, reverse):
    inputs = list(matrix_arrays(keys, values, decays).values())
    compare(sides("matrix"), inputs, reverse=reverse, exclusive=exclusive)


def delta_inputs(keys, values, decays, one_decay=False):
    arrays = delta_arrays(keys, values, decays)
    no_decay = np.zeros((*arrays["r"].shape[:3], 1))
    g = arrays.get("log_decay", no_decay)
    return [arrays[name] for name in "rkvab"] + [g[..., :1] if one_decay else g, arrays["state"]]


@pytest.mark.parametrize("keys, values, decays", DELTA_CASES)
def test_delta_scan(sides, keys, values, decays):
    compare(sides("delta"), delta_inputs(keys, values, decays))


def few_frames(inputs, n_frames=3):
    return [x[:n_frames] for x in inputs[:-1]] + inputs[-1:]


# lanes of a column, and what they leave empty: one and all of 32 lanes, one block and several; frames for which the
# shared memory does not suffice at once
@pytest.mark.parametrize("sizes", usual([(1, 1), (300, 3), (2, 257), (512, 512)], [(1, 1), (300, 3)]), ids=str)
@pytest.mark.parametrize("name", ["matrix", "delta"])
def test_sizes(sides, name, sizes):
    keys, values = sizes
    inputs = delta_inputs(keys, values, True) if name == "delta" else list(matrix_arrays(keys, values, keys).values())
    compare(sides(name), few_frames(inputs, 7), [7, 0, 1, 4])


@pytest.mark.parametrize("name", ["matrix", "delta"])
@pytest.mark.parametrize("lengths", [[3, 9, -1, 2], [0, 0, 0, 0], [0]], ids=str)
def test_lengths(sides, name, lengths):
    """Those that do not fit stay within the array, as nobody has looked at them; empty sequences keep their state."""
    inputs = delta_inputs(4, 3, True, True) if name == "delta" else list(matrix_arrays(4, 3, 1).values())
    inputs = few_frames([np.nan_to_num(x) for x in inputs], max(0, min(3, max(lengths))))
    inputs = [x[:, : len(lengths)] for x in inputs[:-1]] + [inputs[-1][: len(lengths)]]
    gpu, cpu = sides(name)
    clipped = np.clip(lengths, 0, len(inputs[0]))
    d_o, d_last = np.ones(inputs[2].shape), np.ones(inputs[-1].shape)
    results = [side.run(inputs, given, d_o, d_last, reverse=True) for side, given in ((gpu, lengths), (cpu, clipped))]
    for result, expected in zip(*results):
        np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["matrix", "delta"])
def test_no_sequences(sides, name):
    inputs = delta_inputs(4, 3, True) if name == "delta" else list(matrix_arrays(4, 3, 4).values())
    compare(sides(name), [x[:, :0] for x in inputs[:-1]] + [inputs[-1][:0]], [])


@pytest.mark.parametrize("name", ["matrix", "delta"])
def test_too_large_a_head(sides, name):
    gpu, _ = sides(name)
    inputs = delta_inputs(513, 3, True) if name == "delta" else list(matrix_arrays(3, 513, 1).values())
    with pytest.raises(ValueError, match="a head has more than 512 keys or values"):
        compare((gpu, gpu), few_frames(inputs), [3, 0, 1, 2])


@pytest.mark.parametrize("seed", usual(range(2, 8), [2]))
@pytest.mark.parametrize("name", ["matrix", "delta"])
def test_slow_threads(sides, monkeypatch, name, seed):
    """Nothing is overwritten that some thread has still to read: the same bits for each order of threads."""
    inputs = delta_inputs(20, 9, True) if name == "delta" else list(matrix_arrays(20, 9, 20).values())
    inputs = few_frames(inputs, 35)
    expected = compare(sides(name), inputs, [35, 0, 1, 17])
    monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
    for result, value in zip(compare(sides(name), inputs, [35, 0, 1, 17]), expected):
        np.testing.assert_array_equal(result, value)
