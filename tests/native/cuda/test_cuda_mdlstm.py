"""The kernels of the MDLSTM for GPUs, in the emulator: against numpy in float64 and the kernels for CPU."""

import numpy as np
import pytest

from tests.native import reference
from tests.native.cuda import mdlstm_calls as calls
from tests.native.cuda.build import build_emulated as build
from tests.native.cuda.build import compile_for_gpu, run_sanitized

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

SOURCE = "mdlstm/mdlstm_cuda.cu"
FLIPS = [(False, False), (True, True), (False, True), (True, False)]
SMS = 16
# batch, height, width, units, directions; beside the tiles of the kernel (8 units, 4 pixels) and on them
SIZES = [
    (1, 1, 1, 1, 1), (3, 4, 5, 3, 4), (2, 1, 6, 4, 2), (2, 6, 1, 16, 3), (4, 3, 7, 2, 4), (2, 5, 4, 37, 2),
    (3, 4, 4, 64, 2), (1, 9, 9, 33, 1), (7, 5, 6, 9, 4), (1, 2, 40, 8, 4), (2, 21, 23, 5, 1),
]  # fmt: skip
# How much of the device may be used: so all ways to deal out the work are taken.
WAYS = {
    "everything": lambda n: calls.Limits(SMS, 227 << 10),
    "one multiprocessor": lambda n: calls.Limits(1, 227 << 10),
    "little shared memory": lambda n: calls.Limits(SMS, 16000 + 600 * n),
    "hardly any shared memory": lambda n: calls.Limits(SMS, 2000),
}


@pytest.fixture(scope="module")
def library():
    return build(SOURCE)


@pytest.fixture(scope="module")
def for_cpu():
    return build("mdlstm/mdlstm_cpu.cc")


@pytest.fixture(autouse=True)
def multiprocessors(monkeypatch):
    monkeypatch.setenv("RTF_EMULATION_SMS", str(SMS))


def draw(batch, height, width, n, count, seed=1):
    """The first image is whole, one is empty if there are several; NaN in the padding."""
    rng = np.random.RandomState(seed)
    heights, widths = (rng.randint(0, size + 1, batch).astype("int32") for size in (height, width))
    heights[:1], widths[:1], widths[1:2] = height, width, 0
    z, r, dh = (
        [rng.normal(0, scale, shape).astype("float32") for _ in range(count)]
        for scale, shape in (
            (0.5, (batch, height, width, 5 * n)),
            (min(0.4, n**-0.5), (2 * n, 5 * n)),
            (1, (batch, height, width, n)),
        )
    )
    images = calls.Images(heights, widths, FLIPS[-count:], z, r, dh)
    for x in z + dh:
        x[padded(images)] = np.nan
    return images


def padded(images):
    rows, columns = (np.arange(size) for size in images.z[0].shape[1:3])
    return (rows[:, None] >= images.heights[:, None, None]) | (columns >= images.widths[:, None, None])


def run(library, images, stable=True, **options):
    both = calls.GpuRun(library, images, stable, **options)
    both.forward()
    values = both.results(("h", "c", "gates"))  # before gradients come to where the gates are
    both.backward()
    return {**both.results(("dz", "before")), **values}


def on_cpu(for_cpu, images, stable=True):
    both = calls.CpuRun(for_cpu, images, stable)
    both.forward()
    both.backward()
    return both.results()


def expected_h(images, k, stable=True):
    n = len(images.r[k]) // 2
    sizes = images.heights, images.widths
    return reference.mdlstm(images.z[k], images.r[k][n:], images.r[k][:n], *sizes, images.flips[k], stable)


@pytest.mark.parametrize("stable", [True, False], ids=["stable", "two_forget_gates"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_as_numpy_and_the_cpu(library, for_cpu, size, way, stable):
    images = draw(*size)
    got = run(library, images, stable, limits=WAYS[way](size[3]), in_place=size[0] % 2 == 0)
    other = on_cpu(for_cpu, images, stable)
    for k in range(size[4]):
        np.testing.assert_allclose(got["h"][k], expected_h(images, k, stable), atol=1e-5)
        for name in calls.RESULTS:
            np.testing.assert_allclose(got[name][k], other[name][k], atol=1e-4, rtol=1e-4, err_msg=name)
            assert not got[name][k][padded(images)].any(), name


@pytest.mark.parametrize("size", [(1, 18, 17, 65, 1), (1, 34, 33, 48, 1)], ids=str)
def test_more_tiles_than_warps(library, for_cpu, size):
    """Each warp has several of them, and all pixels of each."""
    images = draw(*size)
    got, other = run(library, images, limits=calls.Limits(1, 227 << 10)), on_cpu(for_cpu, images)
    for name in calls.RESULTS:
        np.testing.assert_allclose(got[name][0], other[name][0], atol=1e-4, rtol=1e-4, err_msg=name)


def test_all_ways_are_taken(library):
    """And a plan stays within its limits."""
    taken = set()
    for size in SIZES:
        shape = draw(*size).shape(True)
        for way in WAYS.values():
            limits = way(size[3])
            for backward in (False, True):
                plan = calls.plan(library, shape, size[4], backward, limits)
                taken.add((plan.per_diagonal, plan.slices > 1, plan.groups < size[0]))
                assert plan.per_diagonal or plan.shared_bytes <= limits.shared_bytes
                assert plan.per_diagonal or plan.slices == 1 or plan.slices * plan.groups * size[4] <= SMS
                assert (plan.slices - 1) * plan.units_of_slice < size[3] <= plan.slices * plan.units_of_slice
    assert taken == {(0, False, False), (0, False, True), (0, True, False), (0, True, True), (1, False, False),
                     (1, True, False)}  # fmt: skip


@pytest.mark.parametrize(
    "size, on_chip",
    [((35, 6, 55, 24, 4), 2), ((16, 16, 128, 32, 4), 2), ((8, 24, 192, 64, 4), 2), ((1, 32, 256, 64, 4), 2),
     ((8, 32, 300, 100, 4), 2), ((4, 32, 300, 120, 4), 2), ((1, 16, 100, 256, 4), 1), ((16, 40, 400, 128, 4), 1),
     ((32, 50, 50, 256, 1), 0), ((16, 16, 16, 512, 4), 0)],
    ids=str,
)  # fmt: skip
def test_plans_for_an_h200(library, size, on_chip):
    """How many of both passes keep their weights on the chip; and many multiprocessors are busy."""
    batch, rows, columns, units, count = size
    sizes = [np.full(batch, n, "int32") for n in (rows, columns)]
    shape = calls.Shape(batch, rows, columns, units, *(x.ctypes.data for x in sizes), 1)
    limits = calls.Limits(132, 227 << 10)
    plans = [calls.plan(library, shape, count, backward, limits) for backward in (False, True)]
    assert [plan.per_diagonal for plan in plans] == [int(k >= on_chip) for k in range(2)]
    for plan in plans:
        assert plan.shared_bytes <= limits.shared_bytes
        assert plan.groups * plan.slices * count >= 64 or plan.units_of_slice <= 16
        assert plan.threads <= 512 and plan.threads % 32 == 0


@pytest.mark.parametrize("way", WAYS)
def test_gradient_of_the_weights(library, way):
    """By differences of numpy in float64, along a random direction."""
    images = draw(2, 4, 5, 9, 2)
    got = run(library, images, limits=WAYS[way](9))
    for k, r in enumerate(images.r):
        gradient = np.einsum("bijm,bijn->mn", got["before"][k].astype("float64"), got["dz"][k])
        direction = np.random.RandomState(k).normal(0, 1, r.shape)
        values = []
        for step in (1e-5, -1e-5):
            moved = images._replace(r=[x.astype("float64") + step * direction for x in images.r])
            values.append((expected_h(moved, k) * np.nan_to_num(images.dh[k])).sum())
        slope = (values[0] - values[1]) / 2e-5
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_same_bits_whichever_thread_is_faster(library, monkeypatch, way):
    images = draw(5, 4, 6, 20, 3)
    first = run(library, images, limits=WAYS[way](20))
    for seed in range(2, 5):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        got = run(library, images, limits=WAYS[way](20))
        for name in calls.RESULTS:
            for one, other in zip(got[name], first[name]):
                np.testing.assert_array_equal(one, other, err_msg=name)


def test_images_do_not_depend_on_the_batch(library):
    images = draw(5, 6, 7, 12, 2)
    together = run(library, images)
    for b in range(5):
        one, height, width = slice(b, b + 1), images.heights[b], images.widths[b]
        cut = {name: [x[one, :height, :width] for x in getattr(images, name)] for name in ("z", "dh")}
        alone = run(library, images._replace(heights=images.heights[one], widths=images.widths[one], **cut))
        for name in calls.RESULTS:
            for x, y in zip(alone[name], together[name]):
                np.testing.assert_allclose(x, y[one, :height, :width], atol=2e-6, err_msg=name)


@pytest.mark.parametrize("dtype, digits", [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize("way", ["everything", "little shared memory", "hardly any shared memory"])
def test_other_types(library, for_cpu, way, dtype, digits):
    """Only what is stored is rounded: errors are a few units of the last place of numbers about 1."""
    images = draw(3, 4, 5, 21, 2)
    memory = calls.HostMemory()
    images = images._replace(r=[memory.download(memory.upload(r, dtype), dtype).astype("float32") for r in images.r])
    got, other = run(library, images, dtype=dtype, limits=WAYS[way](21)), on_cpu(for_cpu, images)
    for name in calls.RESULTS:
        for one, exact in zip(got[name], other[name]):
            assert not one[padded(images)].any()
            assert 0 < np.abs(one.astype("float64") - exact).max() < 4 * 2.0**-digits * (1 + np.abs(exact).max())


@pytest.mark.parametrize("size", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 0, 0)], ids=str)
def test_no_pixels(library, size):
    assert all(x.size == 0 for values in run(library, draw(*size, 4, 2)).values() for x in values)


def test_all_images_are_empty(library):
    images = draw(3, 2, 3, 4, 2)
    images.heights[:] = 0
    images = images._replace(**{name: [np.full_like(x, np.nan) for x in getattr(images, name)] for name in ("z", "dh")})
    assert not any(x.any() for values in run(library, images).values() for x in values)


def test_nan_in_weights_is_seen(library):
    images = draw(2, 3, 4, 20, 1)
    images.r[0][3, 5] = np.nan
    got = run(library, images)
    assert np.isnan(got["h"][0]).any() and np.isnan(got["dz"][0]).any()


@pytest.mark.parametrize(
    "count, units, message",
    [(0, 4, "a call on a GPU takes 1 to 4 directions"), (5, 4, "takes 1 to 4 directions"), (1, 0, "at least one unit"),
     (1, 20000, "more pixels or weights than a GPU kernel can count")],
)  # fmt: skip
def test_wrong_sizes(library, count, units, message):
    sizes = np.array([3], "int32")
    shape = calls.Shape(1, 3, 3, units, sizes.ctypes.data, sizes.ctypes.data, 1)
    with pytest.raises(RuntimeError, match=message):
        calls.plan(library, shape, count, False)


def test_wrong_plan_and_type(library, monkeypatch):
    both = calls.GpuRun(library, draw(2, 3, 4, 5, 1))
    both.shape.units = 13
    with pytest.raises(RuntimeError, match="the plan is not for these sizes"):
        both.forward()
    monkeypatch.setitem(calls.TYPES, "float32", 7)
    with pytest.raises(RuntimeError, match="the type of the arrays is none of RtfMdLstmType"):
        both.forward()


def test_too_few_multiprocessors_for_the_plan(library, monkeypatch):
    """The launch says so."""
    both = calls.GpuRun(library, draw(1, 3, 4, 256, 1))
    assert both.plans[0].slices > 1 and not both.plans[0].per_diagonal
    monkeypatch.setenv("RTF_EMULATION_SMS", "1")
    with pytest.raises(RuntimeError, match="too many blocks in cooperative launch"):
        both.forward()


@pytest.mark.parametrize("seed", [1, 2])
def test_sanitizers(seed):
    run_sanitized("../tests/native/cuda/sanitized_mdlstm.cu", seed=seed)


@pytest.mark.parametrize(
    "arch", [pytest.param("sm_90", marks=pytest.mark.long), pytest.param("sm_80", marks=pytest.mark.long)]
)
def test_nvcc(arch):
    """It compiles, and hardly any register is spilled."""
    words = compile_for_gpu(SOURCE, arch, "-DRTF_FLOAT_ONLY=1").split()
    spills = [int(words[i - 2]) for i in range(2, len(words)) if words[i - 1 : i + 1] == ["bytes", "spill"]]
    assert spills and max(spills) <= 256
