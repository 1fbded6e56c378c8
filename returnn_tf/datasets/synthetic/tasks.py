"""Tasks on symbols: memorising, writing numbers in another base, 1-2-AX, and predicting structured text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.generating import GeneratingDataset, SymbolTask, choose
from returnn_tf.datasets.core.registry import register_dataset


@register_dataset()
class TaskEpisodicCopyDataset(SymbolTask):
    """Digits, then a long pause, then a dot: now repeat the digits.

    "data" is one-hot float32 [time, 10] over ``" .01234567"``, "classes" int64 [time] over the same symbols.
    1 to 9 digits, 1 to 99 blanks, one dot to ask, and as many more dots as digits plus one.
    """

    input_symbols = " .01234567"
    output_symbols = " .01234567"

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw digits, blanks, dots."""
        digits = "".join(choose(rng, self.input_symbols[2:]) for _ in range(rng.randint(1, 10)))
        return digits + " " * rng.randint(1, 100) + "." * (len(digits) + 2)

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return blanks up to the first dot, then what came before, then dots."""
        asked = text.find(".") + 1 or len(text)
        digits = text[:asked].replace(" ", "").replace(".", "")
        return (" " * asked + digits).ljust(len(text), ".")[: len(text)]


@register_dataset()
class CopyTaskDataset(GeneratingDataset):
    """The target is the input: "data" and "classes" are the same int8 [time].

    The length is uniform between int(minlen + minlen_epoch_factor * epoch) and int(maxlen + maxlen_epoch_factor *
    epoch), both included.
    """

    @dataclass
    class Options(GeneratingDataset.Options):
        nsymbols: int = option(help="number of different symbols, at most 128")
        minlen: int = option(0, help="shortest length")
        maxlen: int = option(0, help="longest length")
        minlen_epoch_factor: float = option(0, help="times epoch is added to minlen")
        maxlen_epoch_factor: float = option(0, help="times epoch is added to maxlen")

    def make_specs(self) -> dict[str, DataSpec]:
        """Return sparse specs for both keys."""
        count = self.opts.nsymbols
        if not 1 <= count <= 128:
            raise DatasetError("%s: nsymbols is %d, but must be from 1 to 128" % (self._owner(), count))
        return {key: DataSpec(dim=count, ndim=1, dtype="int8") for key in ("data", "classes")}

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Draw random symbols."""
        opts = self.opts
        low = int(opts.minlen + opts.minlen_epoch_factor * epoch)
        high = int(opts.maxlen + opts.maxlen_epoch_factor * epoch)
        if not 0 <= low <= high:
            raise DatasetError("%s: in epoch %d lengths would be from %d to %d" % (self._owner(), epoch, low, high))
        length = rng.randint(low, high + 1)
        symbols = np.array([rng.randint(0, opts.nsymbols) for _ in range(length)], np.int8)
        return {"data": symbols, "classes": symbols}


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@register_dataset()
class TaskNumberBaseConvertDataset(GeneratingDataset):
    """Random digits, most significant first; the target is the same number in another base without leading zeros.

    "data" is int64 [digits], "classes" int64 [digits of the result]; labels are the digits, then letters.
    """

    @dataclass
    class Options(GeneratingDataset.Options):
        input_base: int = option(8, help="base of the input")
        output_base: int = option(2, help="base of the target")
        min_input_seq_len: int = option(1, help="minimum number of digits")
        max_input_seq_len: int = option(8, help="maximum number of digits")

    def make_specs(self) -> dict[str, DataSpec]:
        """Return sparse specs for both keys."""
        opts = self.opts
        for name in ("input_base", "output_base"):
            if not 2 <= getattr(opts, name) <= len(_DIGITS):
                raise DatasetError("%s: %s must be from 2 to %d" % (self._owner(), name, len(_DIGITS)))
        if not 1 <= opts.min_input_seq_len <= opts.max_input_seq_len:
            raise DatasetError("%s: min_input_seq_len must be from 1 to max_input_seq_len" % self._owner())
        bases = {"data": opts.input_base, "classes": opts.output_base}
        return {
            key: DataSpec(dim=base, ndim=1, dtype="int64", labels=tuple(_DIGITS[:base])) for key, base in bases.items()
        }

    def generate(self, rng: np.random.RandomState, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Draw a number, and write it in both bases."""
        opts = self.opts
        length = rng.randint(opts.min_input_seq_len, opts.max_input_seq_len + 1)
        digits = [int(rng.randint(0, opts.input_base)) for _ in range(length)]
        return {
            "data": np.array(digits, np.int64),
            "classes": np.array(convert_base(digits, opts.input_base, opts.output_base), np.int64),
        }


def convert_base(digits: Sequence[int], input_base: int, output_base: int) -> list[int]:
    """Return the digits of the same number in another base, most significant first; [0] for zero."""
    number = 0
    for digit in digits:
        number = number * input_base + digit
    out: list[int] = []
    while number or not out:
        number, digit = divmod(number, output_base)
        out.append(digit)
    return out[::-1]


@register_dataset()
class Task12AXDataset(SymbolTask):
    """Answer R to an X after an A while the last digit was 1, or to a Y after a B while it was 2; else L.

    "data" is one-hot float32 [time, 9] over ``123ABCXYZ``, "classes" int32 [time] over ``LR``; 10 to 99 frames.
    The letter A or B is forgotten with every X and Y. 3, C and Z are distractors.
    """

    input_symbols = "123ABCXYZ"
    output_symbols = "LR"
    target_dtype = "int32"

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw digits, with likely pairs and noise in between, cut to a random length."""
        length = rng.randint(10, 100)
        text = choose(rng, ["", "1", "2"])
        while len(text) < length:
            if rng.uniform() < 0.5:
                text += choose(rng, "12")
            if rng.uniform() < 0.9:
                text += choose(rng, ["AX", "BY"])
            while rng.uniform() < 0.5:
                text += choose(rng, self.input_symbols)
        return text[:length]

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return L or R for each symbol."""
        digit = letter = ""
        out = ""
        for symbol in text:
            if symbol in "XY":
                out += "R" if digit + letter + symbol in ("1AX", "2BY") else "L"
                letter = ""
                continue
            out += "L"
            digit = symbol if symbol in "12" else digit
            letter = symbol if symbol in "AB" else letter
        return out


_LETTERS = "abcdefgh"


@register_dataset()
class TaskXmlModelingDataset(SymbolTask):
    """Predict the next symbol of nested tags wherever it is determined, such as ``<a><bc></bc></a><d></d>``.

    "data" is one-hot float32 [time, 12] over ``" <>/abcdefgh"``, "classes" int64 [time] over the same symbols:
    ``<`` after a blank and after ``>``, the rest of the name and ``>`` in a closing tag, blank elsewhere.
    """

    input_symbols = " <>/" + _LETTERS
    output_symbols = " <>/" + _LETTERS

    @dataclass
    class Options(SymbolTask.Options):
        limit_stack_depth: int = option(4, help="deepest nesting of tags", check=at_least(1))

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw a blank and random nested tags."""
        return random_xml(rng, self.opts.limit_stack_depth)

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return the successor of each symbol, where it is determined."""
        stack: list[str] = []
        out, name, rest, state = "", "", "", "outside"
        for symbol in text:
            if state == "closing":
                rest = rest[1:]
                out += rest[0] if rest else "<"
                state = state if rest else "outside"
            elif symbol == "/":
                state, rest = "closing", (stack.pop() if stack else "") + ">"
                out += rest[0]
            elif symbol == ">":
                stack.append(name)
                out, state = out + "<", "outside"
            elif symbol == "<":
                out, state, name = out + " ", "opening", ""
            elif state == "opening":
                out, name = out + " ", name + symbol
            else:
                out += "<"
        return out


def random_xml(rng: np.random.RandomState, limit_stack_depth: int) -> str:
    """Draw random tags with names of 1 to 9 letters.

    Another one opens with probability 0.4 within a tag, and with 0.2 after the last one is closed.
    """
    stack: list[str] = []
    text = " "
    while True:
        may_open = len(stack) < limit_stack_depth
        if not stack or (may_open and rng.rand() > 0.6):
            name = "".join(choose(rng, _LETTERS) for _ in range(rng.randint(1, 10)))
            text += "<%s>" % name
            stack.append(name)
        else:
            text += "</%s>" % stack.pop()
        if not stack and rng.rand() > 0.2:
            return text


@register_dataset()
class TaskVariableAssignmentDataset(SymbolTask):
    """Assignments ``S(key,value),...``, then a query ``Q(key)``: the target is the value.

    "data" is one-hot float32 [time, 15] over ``" ,.SQ()abcdefgh"``, "classes" int64 [time] over the same symbols:
    blank up to the symbol before the closing bracket of the query, then the value, a dot and a blank.
    """

    input_symbols = " ,.SQ()" + _LETTERS
    output_symbols = " ,.SQ()" + _LETTERS

    def make_input(self, rng: np.random.RandomState) -> str:
        """Draw 1 to 5 assignments with different keys, and a query for one of them."""
        table = {}
        for _ in range(rng.randint(1, 6)):
            key = "".join(choose(rng, _LETTERS) for _ in range(rng.randint(1, 5)))
            table[key] = "".join(choose(rng, _LETTERS) for _ in range(rng.randint(1, 3)))
        asked = choose(rng, list(table))
        text = "".join("S(%s,%s)," % item for item in table.items())
        return text + "Q(%s)%s." % (asked, table[asked])

    @classmethod
    def make_output(cls, text: str) -> str:
        """Return the text after the query, one symbol early."""
        answer = text.find(")", text.find("Q")) + 1
        if "Q" not in text or not answer:
            return " " * len(text)
        return (" " * (answer - 1) + text[answer:]).ljust(len(text))
