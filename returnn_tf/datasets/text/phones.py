"""Texts as sequences of phonemes or allophone states, with random pronunciations, pauses and durations."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.config.errors import TextDataError, TextError, shown
from returnn_tf.config.options import at_least, option, probability
from returnn_tf.datasets.core.safe_files import read_text
from returnn_tf.datasets.text.bliss import Lexicon
from returnn_tf.datasets.vocabulary import read_labels

_NO_CONTEXT = "#"


@dataclasses.dataclass
class Allophone:
    """A phoneme in its context.

    :param phone: symbol
    :param before: phonemes before it, the farthest first
    :param after: phonemes after it, the nearest first
    :param initial: whether it begins a word
    :param final: whether it ends a word
    """

    phone: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    initial: bool = False
    final: bool = False

    def state_name(self, state: int) -> str:
        """Return the name of a state as in files of state tyings, e.g. ``a{b+c}@i.0``."""
        marks = ("@i" if self.initial else "") + ("@f" if self.final else "")
        before, after = ("-".join(phones) or _NO_CONTEXT for phones in (self.before, self.after))
        return "%s{%s+%s}%s.%d" % (self.phone, before, after, marks, state)


def make_word(phones: Iterable[str]) -> list[Allophone]:
    """Return the allophones of a word, still without context."""
    word = [Allophone(phone) for phone in phones]
    if word:
        word[0].initial = word[-1].final = True
    return word


def set_context(allophones: Sequence[Allophone], with_context: frozenset[str], size: int) -> None:
    """Set the context of allophones, across words.

    :param with_context: the phonemes that have and form a context; others end it
    :param size: number of phonemes at each side
    """
    for sequence, name in ((allophones, "before"), (allophones[::-1], "after")):
        context: list[str] = []
        for allophone in sequence:
            if allophone.phone not in with_context:
                context = []
                continue
            setattr(allophone, name, tuple(context if name == "before" else reversed(context)))
            context = (context + [allophone.phone])[-size:] if size else []


class StateTying:
    """The classes of allophone states, from lines "allophone.state class".

    :raises DataError: the file is missing or has other lines
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.classes: dict[str, int] = {}
        for number, line in enumerate(read_text(path).split("\n"), 1):
            parts = line.split()
            if not parts:
                continue
            if len(parts) != 2 or not parts[1].isdecimal():
                text = "state_tying_file %r, line %d: expected 'allophone.state class', got %r."
                raise TextDataError(text % (path, number, line[:80]))
            self.classes[parts[0]] = int(parts[1])
        if not self.classes:
            raise TextDataError("state_tying_file %r is empty." % path)
        used = set(self.classes.values())
        self.num_classes = max(used) + 1
        if len(used) < self.num_classes:
            gap = next(index for index in range(self.num_classes) if index not in used)
            raise TextDataError("state_tying_file %r: the class %d has no states." % (path, gap))

    def labels(self) -> list[str]:
        """Return a name for each class: all its states, sorted, joined by "|"."""
        states: list[list[str]] = [[] for _ in range(self.num_classes)]
        for name, index in sorted(self.classes.items()):
            states[index].append(name)
        return ["|".join(names) for names in states]

    def find(self, name: str) -> Optional[int]:
        """Return the class of a state, or None."""
        return self.classes.get(name)


_ADD_RANDOM = 0.8  # probability of a further random word, and of a further phoneme in it
_SPLIT_AT = "/", "-"


def _below_one(value: Any) -> Optional[str]:
    return None if 0 <= value < 1 else "must be at least 0 and below 1, else a state lasts forever"


def _check_lemma(lemma: Any, where: str) -> None:
    """Check a lemma of a config."""
    phons = (lemma or {"phons": [{"phon": ""}]}).get("phons")
    if not isinstance(phons, (list, tuple)) or not phons or not all(_is_pronunciation(entry) for entry in phons):
        raise TextError("%s is %s, but must be {'phons': [{'phon': 'a b'}, ...]}." % (where, shown(lemma)))


def _is_pronunciation(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("phon"), str)


@dataclass
class PhoneOptions:
    """The options in ``phone_info``."""

    lexicon_file: str = option(help="pronunciations in Bliss XML; .gz allowed")
    phoneme_vocab_file: Optional[str] = option(
        None, help="labels of the phonemes, as a vocabulary; default: the phonemes of the lexicon"
    )
    allo_num_states: int = option(3, help="states of each phoneme but silence, which has one", check=at_least(1))
    allo_context_len: int = option(1, help="phonemes of context at each side of an allophone", check=at_least(0))
    state_tying_file: Optional[str] = option(
        None, help="classes of allophone states, lines 'allophone.state class'; they replace phonemes as labels"
    )
    add_silence_beginning: float = option(0.1, help="probability of silence before the first word", check=probability)
    add_silence_between_words: float = option(0.1, help="probability of silence between words", check=probability)
    add_silence_end: float = option(0.1, help="probability of silence after the last word", check=probability)
    repetition: float = option(0.9, help="probability that a state lasts one frame more", check=_below_one)
    silence_repetition: float = option(0.95, help="the same for silence", check=_below_one)
    silence_lemma_orth: str = option("[SILENCE]", help="orthography of silence in the lexicon")
    extra_begin_lemma: Optional[dict[str, Any]] = option(
        None, help="a lemma at the beginning: {'phons': [{'phon': 'a b'}, ...]}"
    )
    add_extra_begin_lemma: float = option(1.0, help="its probability", check=probability)
    extra_end_lemma: Optional[dict[str, Any]] = option(None, help="a lemma at the end")
    add_extra_end_lemma: float = option(1.0, help="its probability", check=probability)
    phon_pick_strategy: str = option(
        "random", help="which pronunciation of a word is chosen", choices=("random", "first")
    )


class PhoneSequences:
    """Makes label sequences of texts.

    :param opts: `PhoneOptions`
    :param where: prefix of errors
    :raises DataError: a file is missing or damaged
    :raises ConfigError: the files do not fit each other
    """

    def __init__(self, opts: PhoneOptions, where: str) -> None:
        self.opts = opts
        self.where = where
        self.lexicon = Lexicon(opts.lexicon_file)
        phonemes = self.lexicon.phonemes
        self._with_context = frozenset(name for name, info in phonemes.items() if info["variation"] != "none")
        silence = self.lexicon.lemmas.get(opts.silence_lemma_orth)
        self._silence = silence
        if not silence or not silence["phons"]:
            raise TextError(
                "%s: the lexicon %r has no lemma %r with a pronunciation. Give silence_lemma_orth."
                % (where, opts.lexicon_file, opts.silence_lemma_orth)
            )
        self._silence_phone = silence["phons"][0]["phon"]
        for option_name in ("extra_begin_lemma", "extra_end_lemma"):
            _check_lemma(getattr(opts, option_name), "%s: %s" % (where, option_name))
        self._tying = StateTying(opts.state_tying_file) if opts.state_tying_file else None
        if self._tying is not None and opts.phoneme_vocab_file:
            raise TextError("%s: give phoneme_vocab_file or state_tying_file, not both." % where)
        self._set_labels()

    def _set_labels(self) -> None:
        if self._tying is not None:
            self.labels = self._tying.labels()
            return
        path = self.opts.phoneme_vocab_file
        self.labels = read_labels(path) if path else list(self.lexicon.phoneme_list)
        self._index = {label: index for index, label in enumerate(self.labels)}

    def labels_of_text(self, text: str, rng: random.Random) -> list[int]:
        """Return the label of each frame of a text; pronunciations, pauses and durations are random.

        :raises DataError: a word or a state is unknown
        """
        allophones: list[Allophone] = []
        for lemma in self._lemmas(text, rng):
            allophones += self._pronounce(lemma, rng)
        set_context(allophones, self._with_context, self.opts.allo_context_len)
        return self._frames(allophones, rng)

    def _lemmas(self, text: str, rng: random.Random) -> Iterator[Any]:
        opts = self.opts
        if opts.extra_begin_lemma and rng.random() < opts.add_extra_begin_lemma:
            yield opts.extra_begin_lemma
        if rng.random() < opts.add_silence_beginning:
            yield self._silence
        words = self._known_words(text)
        for number, word in enumerate(words, 1):
            yield self.lexicon.lemmas[word]
            if number < len(words) and rng.random() < opts.add_silence_between_words:
                yield self._silence
        if rng.random() < opts.add_silence_end:
            yield self._silence
        if opts.extra_end_lemma and rng.random() < opts.add_extra_end_lemma:
            yield opts.extra_end_lemma

    def _known_words(self, text: str) -> list[str]:
        """Return words of the lexicon; an unknown word is split at "/", else at "-"."""
        waiting = text.split()[::-1]
        known = []
        while waiting:
            word = waiting.pop()
            sign = next((sign for sign in _SPLIT_AT if sign in word), None)
            if word in self.lexicon.lemmas:
                known.append(word)
            elif sign is not None:
                waiting += word.split(sign)[::-1]
            else:
                raise TextDataError("%r is not in the lexicon %r" % (word, self.opts.lexicon_file))
        return known

    def _pronounce(self, lemma: Any, rng: random.Random) -> list[Allophone]:
        phons = lemma["phons"]
        if not phons:
            raise TextDataError("%r has no pronunciation in %r" % (lemma.get("orth"), self.opts.lexicon_file))
        phon = rng.choice(phons) if self.opts.phon_pick_strategy == "random" else phons[0]
        return make_word(phon["phon"].split())

    def _frames(self, allophones: list[Allophone], rng: random.Random) -> list[int]:
        frames = []
        for allophone in allophones:
            silent = allophone.phone == self._silence_phone
            more = self.opts.silence_repetition if silent else self.opts.repetition
            for state in range(1 if silent else self.opts.allo_num_states):
                label = self._label(allophone, state)
                frames.append(label)
                while rng.random() < more:
                    frames.append(label)
        return frames

    def _label(self, allophone: Allophone, state: int) -> int:
        if self._tying is None:
            found: Optional[int] = self._index.get(allophone.phone)
            if found is None:
                raise TextDataError("phoneme %r has no label" % allophone.phone)
            return found
        name = allophone.state_name(state)
        found = self._tying.find(name)
        if found is None:
            raise TextDataError("state %r is not in state_tying_file %r" % (name, self._tying.path))
        return found

    def random_labels(self, num_frames: int, rng: random.Random) -> list[int]:
        """Return the labels of random words of random phonemes, with silence in between.

        :param num_frames: number of labels
        """
        silence = make_word([self._silence_phone])
        frames: list[int] = []
        while len(frames) < num_frames:
            frames += self._random_frames(rng)
            frames += self._frames(silence, rng)
        return frames[:num_frames]

    def _random_frames(self, rng: random.Random) -> list[int]:
        allophones: list[Allophone] = []
        more_words = True
        while more_words:
            phones = [rng.choice(self.lexicon.phoneme_list)]
            while rng.random() < _ADD_RANDOM:
                phones.append(rng.choice(self.lexicon.phoneme_list))
            allophones += make_word(phones)
            more_words = rng.random() < _ADD_RANDOM
        set_context(allophones, self._with_context, self.opts.allo_context_len)
        return self._frames(allophones, rng)
