"""The kernels under the sanitizers of the compiler: no access beyond an array, nothing undefined, no race."""

import pytest

from returnn_tf.native.sources import OPS
from tests.native.drivers import check_driver

pytestmark = pytest.mark.slow  # each starts processes

# what this machine has, what most have, and what every one has: the code paths for the width of a vector
TARGETS = {"native": ("-march=native",), "avx2": ("-march=x86-64-v3",), "baseline": ()}


@pytest.mark.parametrize("target", ["native", *(pytest.param(t, marks=pytest.mark.long) for t in ("avx2", "baseline"))])
@pytest.mark.parametrize(
    "name, sanitizer",
    [
        pytest.param(name, sanitizer, marks=pytest.mark.long if sanitizer == "thread" and name != "lstm" else ())
        for name in OPS.names()
        for sanitizer in ("address,undefined", "thread")
    ],
)
def test_sanitizers(name, sanitizer, target, tmp_path):
    optimization = "-O1" if sanitizer == "thread" else "-O0"  # running takes longer than compiling there
    options = (optimization, "-g1", "-pthread", "-fsanitize=" + sanitizer, "-fno-sanitize-recover=all")
    check_driver(name, TARGETS[target], options, tmp_path)  # a race ends the driver with another exit code than 0
