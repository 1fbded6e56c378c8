"""Products on the tile unit of newer CPUs."""

import pytest

from tests.native.drivers import check_driver
from tests.native.tiles import EMULATED_TILES, WITH_VECTORS_OF_TILES


@pytest.mark.parametrize("flags", [("-O3",), ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")])
@pytest.mark.parametrize(
    "unit", [("-march=native",), (*WITH_VECTORS_OF_TILES, *EMULATED_TILES)], ids=["real", "emulated"]
)
def test_products(flags, unit, tmp_path):
    """They are as precise as those of floats, also where the compiler leaves more in memory."""
    check_driver("tiles", unit, (*flags, "-pthread"), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["lstm", "gru", "slstm", "mdlstm"])
def test_recurrences(name, tmp_path):
    """The same bits for any number of threads, of floats and of rounded factors, which give nearly the same numbers."""
    check_driver(name, (*WITH_VECTORS_OF_TILES, *EMULATED_TILES), ("-O2", "-pthread"), tmp_path)
