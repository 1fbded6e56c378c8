"""Large products: the native op `product` against TensorFlow's, and whether the choice between them is right here.

    python bench/products.py [--rows 200,1600] [--sizes 512x2048,2048x512] [--rounds 7] [--threads 2] [--cpu]

The choice is made by the CPU alone (see `returnn_tf.native.product`): a table of timings that is measured at the start
of a run would change the last bits of a run that is resumed. This shows what such a table would say. "Ratio" is the
median over the rounds of our time divided by TensorFlow's, with its range.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

import numpy as np
from report import table
from timing import in_turn

from returnn_tf.native.library import load
from returnn_tf.native.product import reason_not_used, self_test
from returnn_tf.util.lazy_tf import tf

#: The three products of a layer: name, transpositions, and whether rows are the depth.
KINDS = (("forward", False, False), ("gradient of the input", False, True), ("gradient of the weights", True, False))


def sides(ops: Any, rows: int, depth: int, columns: int, kind: tuple[str, bool, bool]) -> list[Callable[[], Any]]:
    """Return TensorFlow's product and ours, as many times as take some milliseconds."""
    _, left, right = kind
    a = tf.random.normal([rows, columns if right else depth])
    b = tf.random.normal([rows if left else depth, columns])
    count = max(1, int(1e9 / (2 * rows * depth * columns)))

    def repeated(product: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [product() for _ in range(count)][-1].numpy()[0, 0]

    options, none = {"transpose_a": left, "transpose_b": right}, tf.zeros([0])
    return [  # the ops alone: calls from Python take as long as small products, and are not in a graph
        repeated(lambda: tf.raw_ops.MatMul(a=a, b=b, **options)),
        repeated(lambda: ops.rtf_product(a=a, b=b, bias=none, has_bias=False, **options)),
    ]


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="200,1600", help="frames, with commas")
    parser.add_argument("--sizes", default="512x512,512x2048,2048x512", help="inputs x outputs, with commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds: for a machine with other load")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    ops, lines, faster = load("product", self_test), [], 0
    for rows in map(int, args.rows.split(",")):
        for depth, columns in (map(int, size.split("x")) for size in args.sizes.split(",")):
            for kind in KINDS:
                theirs, ours = sides(ops, rows, depth, columns, kind)
                np.testing.assert_allclose(theirs(), ours(), rtol=1e-3, atol=1e-3)
                times = in_turn(theirs, ours, args.rounds, cpu=args.cpu)
                ratios = times[:, 1] / times[:, 0]
                faster += float(np.median(ratios)) < 1
                shares = "%.2f" % np.median(ratios), "%.2f - %.2f" % (ratios.min(), ratios.max())
                lines.append([kind[0], rows, "%d x %d" % (depth, columns), *shares])
    print(table(["product", "rows", "inputs x outputs", "ours / TensorFlow", "range"], lines))
    print("ours is faster for %d of %d" % (faster, len(lines)))
    print("used: %s" % ("TensorFlow's, as %s" % reason_not_used() if reason_not_used() else "ours"))


if __name__ == "__main__":
    main()
