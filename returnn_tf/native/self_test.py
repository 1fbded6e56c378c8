"""Self-tests of all native ops: ``python -m returnn_tf.native.self_test`` builds, loads and tests each."""

from __future__ import annotations

import sys

from returnn_tf.logging.log import log
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.gpu.card import card_in_use
from returnn_tf.native.gpu.cuda_toolchain import too_old, visible_archs
from returnn_tf.native.library import devices, examine, library_path
from returnn_tf.native.product import reason_not_used
from returnn_tf.native.sources import OPS
from returnn_tf.native.trials.measured import verdicts


def main() -> int:
    """Test all ops; print what is done while it is done, and one line "name: result" for each op that is tested.

    :return: 0, or 1 if an op cannot be used; those for newer GPUs do not count
    """
    log.attach()  # says what is compiled
    failed = False
    names = sorted(OPS)
    for number, name in enumerate(names, start=1):
        print("native op %s (%d of %d) ..." % (name, number, len(names)), flush=True)
        reason = _too_old(name)
        if reason:
            print("  %s is TensorFlow's: %s" % (name, reason), flush=True)
            continue
        failure = examine(name)
        gpus = [device for device in devices(name) if not device.startswith("CPU")]
        unused = reasons_not_used() if name == "product" and not failure else ""
        text = failure or " on ".join(["ok", *([", ".join(["CPU", *gpus])] if gpus else [])])
        print("%s: %s%s" % (name, text, " (not used %s)" % unused if unused else ""), flush=True)
        if gpus and not failure:
            for kind, verdict in verdicts(library_path(name), card_in_use()).items():
                print("  %s: %s" % (kind, verdict.text), flush=True)
        failed = failed or bool(failure)
    return 1 if failed else 0


def _too_old(name: str) -> str:
    """Return why an op has no kernels for GPUs as old as those here, as one line; "" if it has."""
    try:
        return too_old(visible_archs(), OPS[name].capability) if OPS[name].cuda else ""
    except NativeOpError:  # `examine` tells it
        return ""


def reasons_not_used() -> str:
    """Return for which factors large products are TensorFlow's on this machine, and why; "" if for none."""
    reasons = {low or "float32": reason_not_used(low) for low in (None, "bfloat16")}
    return "; ".join("for %s: %s" % (low, reason) for low, reason in reasons.items() if reason)


if __name__ == "__main__":
    sys.exit(main())
