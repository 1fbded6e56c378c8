"""Self-tests of all native ops: ``python -m returnn_tf.native.self_test`` builds, loads and tests each."""

from __future__ import annotations

import sys
from typing import Dict

from returnn_tf.native import align, chunk, gru, lstm, mdlstm, product
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import SelfTest, devices, load

SELF_TESTS: Dict[str, SelfTest] = {
    "lstm": lstm.self_test,
    "gru": gru.self_test,
    "product": product.self_test,
    "align": align.self_test,
    "chunk": chunk.self_test,
    "mdlstm": mdlstm.self_test,
}


def examine(name: str) -> str:
    """Test an op; return an error as one line, or "" if it works."""
    try:
        SELF_TESTS[name](load(name, SELF_TESTS[name]))
    except NativeOpError as exc:
        return str(exc)
    return ""


def main() -> int:
    """Test all ops and print one line for each.

    :return: 0, or 1 if an op cannot be used
    """
    failures = {name: examine(name) for name in SELF_TESTS}
    for name, failure in failures.items():
        gpus = [device for device in devices(name) if not device.startswith("CPU")]
        print("%s: %s" % (name, failure or " on ".join(["ok", *([", ".join(["CPU", *gpus])] if gpus else [])])))
    return 1 if any(failures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
