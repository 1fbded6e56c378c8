"""Large products: the native op `product` against TensorFlow's, and whether the choice between them is right here.

    python bench/products.py [--rows 200,1600] [--sizes 512x2048,2048x512] [--rounds 7] [--threads 2] [--cpu]
        [--bfloat16]

The choice is made by the CPU alone (see `returnn_tf.native.product`): a table of timings that is measured at the start
of a run would change the last bits of a run that is resumed. This shows what such a table would say. "Ratio" is the
median over the rounds of our time divided by TensorFlow's, with its range. With ``--bfloat16``, operands and results
are float32, and factors are rounded: here in the op, there by conversions before and after it.
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


def sides(
    ops: Any, rows: int, depth: int, columns: int, kind: tuple[str, bool, bool], *, rounded: bool = False
) -> list[Callable[[], Any]]:
    """Return TensorFlow's product and ours, as many times as take some milliseconds.

    :param rounded: whether factors are rounded to bfloat16
    """
    _, left, right = kind
    a = tf.random.normal([rows, columns if right else depth])
    b = tf.random.normal([rows if left else depth, columns])
    count = max(1, int(1e9 / (2 * rows * depth * columns)))

    def repeated(product: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [product() for _ in range(count)][-1].numpy()[0, 0]

    options, none = {"transpose_a": left, "transpose_b": right}, tf.zeros([0])

    def in_bfloat16() -> Any:
        low = [tf.raw_ops.Cast(x=x, DstT=tf.bfloat16) for x in (a, b)]
        return tf.raw_ops.Cast(x=tf.raw_ops.MatMul(a=low[0], b=low[1], **options), DstT=tf.float32)

    return [  # the ops alone: calls from Python take as long as small products, and are not in a graph
        repeated(in_bfloat16 if rounded else lambda: tf.raw_ops.MatMul(a=a, b=b, **options)),
        repeated(lambda: ops.rtf_product(a=a, b=b, bias=none, has_bias=False, rounded=rounded, **options)),
    ]


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="200,1600", help="frames, with commas")
    parser.add_argument("--sizes", default="512x512,512x2048,2048x512", help="inputs x outputs, with commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds: for a machine with other load")
    parser.add_argument("--bfloat16", action="store_true", help="factors are rounded")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    ops, lines, faster = load("product", self_test), [], 0
    for rows in map(int, args.rows.split(",")):
        for depth, columns in (map(int, size.split("x")) for size in args.sizes.split(",")):
            for kind in KINDS:
                theirs, ours = sides(ops, rows, depth, columns, kind, rounded=args.bfloat16)
                digits = 2e-2 if args.bfloat16 else 1e-3
                np.testing.assert_allclose(theirs(), ours(), rtol=digits, atol=digits)
                times = in_turn(theirs, ours, args.rounds, cpu=args.cpu)
                ratios = times[:, 1] / times[:, 0]
                faster += float(np.median(ratios)) < 1
                shares = "%.2f" % np.median(ratios), "%.2f - %.2f" % (ratios.min(), ratios.max())
                lines.append([kind[0], rows, "%d x %d" % (depth, columns), *shares])
    print(table(["product", "rows", "inputs x outputs", "ours / TensorFlow", "range"], lines))
    print("ours is faster for %d of %d" % (faster, len(lines)))
    reason = reason_not_used("bfloat16" if args.bfloat16 else None)
    print("used: %s" % ("TensorFlow's, as %s" % reason if reason else "ours"))


if __name__ == "__main__":
    main()
