"""Prefix beam search: sums, lexicon, language model, hot words, against enumerations."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import hot_phrases
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.native.decoding.ctc_search import CtcDecoder, align, ctc_library
from returnn_tf.ops.sequence.lexicon import WordLexicon
from returnn_tf.ops.sequence.ngram import ArpaModel
from returnn_tf.ops.sequence.ngram_file import NGramFile, read_ngram
from tests.engine.decoding.small import EXACT, all_sums, best_path, random_scores

#: Words over the labels a, b, c; two sound alike, one begins another.
WORDS = {"A": ["a"], "AB": ["ab"], "BC": ["bc", "cb"], "bc2": ["bc"], "AA": ["aa"], "C": ["c"]}
ARPA = """\\data\\
ngram 1=8
ngram 2=4

\\1-grams:
-1.0 <unk>
-99 <s> -0.3
-0.9 </s>
-0.7 A -0.2
-0.8 AB -0.4
-1.1 BC
-1.3 bc2 -0.1
-0.6 C -0.5

\\2-grams:
-0.2 <s> AB
-0.3 A C
-0.4 AB BC
-0.5 C </s>

\\end\\
"""


def lexicon_of(labels, words=WORDS):
    lexicon = WordLexicon(labels)
    for word, spellings in words.items():
        for spelling in spellings:
            lexicon.add(word, labels.spell(spelling))
    return lexicon


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "words.arpa"
    path.write_text(ARPA)
    return str(path)


def sentences(labels, words=WORDS, most=5):
    """All sequences of words that have these labels."""
    spelt = [(word, spelling) for word, spellings in words.items() for spelling in spellings]
    for count in range(most + 1):
        for chosen in itertools.product(spelt, repeat=count):
            if "".join(spelling for _, spelling in chosen) == labels:
                yield tuple(word for word, _ in chosen)


@pytest.mark.parametrize("loop, forward", [(0.0, 0.0), (-1.5, 0.7), (2.0, -3.0)])
@pytest.mark.parametrize("blank", [0, 2, 3, None])
def test_sums_over_all_alignments(blank, loop, forward):
    scores = random_scores(5, 4)
    options = dataclasses.replace(EXACT, loop_score=loop, forward_score=forward)
    decoder = BeamDecoder(4, blank, DecodedLabels([]), options)
    found = {entry.labels: entry for entry in decoder.decode(scores)}
    expected = all_sums(scores, blank, loop, forward)
    assert found.keys() == expected.keys()
    for labels, entry in found.items():
        assert entry.score == entry.parts["acoustic"] == pytest.approx(expected[labels], abs=1e-4)
        _, frames = best_path(scores, labels, blank, loop, forward)
        assert entry.frames == frames


@pytest.mark.slow
@pytest.mark.parametrize("blank", [5, None])
def test_alignment_of_a_long_recording(blank):
    """One of which steps are not kept for all frames at once: each label has the frames in which it is said clearly."""
    rng = np.random.RandomState(7)
    labels = (np.cumsum(rng.randint(1, 4, 1800)) % 5).tolist()  # none is the same as the one before
    runs = [(label, int(rng.randint(1, 30))) for label in labels]
    if blank is not None:
        runs = [run for label, count in runs for run in ((label, count), (blank, int(rng.randint(0, 8))))]
    path = np.repeat([label for label, _ in runs], [count for _, count in runs])
    scores = np.log(np.where(np.arange(6) == path[:, None], 0.9, 0.02)).astype("float32")
    assert len(scores) * (len(labels) if blank is None else 2 * len(labels) + 1) > 1 << 25
    ends = np.cumsum([count for _, count in runs])
    expected = [(end - count, end) for (label, count), end in zip(runs, ends) if label != blank]
    decoder = CtcDecoder(ctc_library(), {"num_labels": 6, "blank": -1 if blank is None else blank, "beam_size": 1})
    assert align(decoder, scores, labels) == expected
    assert align(decoder, scores[: len(labels) - 1], labels) is None


def test_best_first_and_a_small_beam_finds_the_best():
    scores = random_scores(30, 6, scale=3.0)
    whole = BeamDecoder(6, 5, DecodedLabels([]), dataclasses.replace(EXACT, beam_size=3000, nbest=20)).decode(scores)
    assert [entry.score for entry in whole] == sorted((entry.score for entry in whole), reverse=True)
    (found,) = BeamDecoder(6, 5, DecodedLabels([]), BeamOptions(beam_size=20)).decode(scores)
    assert found.labels == whole[0].labels and found.score <= whole[0].score + 1e-9


def test_frames_of_some_hypotheses_alone():
    options = dataclasses.replace(EXACT, nbest=4)
    scores, labels = random_scores(6, 4), DecodedLabels([])
    every = BeamDecoder(4, 3, labels, options).decode(scores)
    some = BeamDecoder(4, 3, labels, dataclasses.replace(options, aligned=1)).decode(scores)
    assert some == [every[0], *(dataclasses.replace(entry, frames=None) for entry in every[1:])]


@pytest.mark.parametrize("loop, forward", [(-0.8, 0.5), (0.6, -1.2)])
def test_transitions_of_states_of_words(loop, forward):
    """As of an HMM: a word with the labels of another one and more loses or gains by them; beams leave nothing out."""
    labels = DecodedLabels(list("abc"))
    options = dataclasses.replace(EXACT, loop_score=loop, forward_score=forward)
    lexicon = lexicon_of(labels, {"short": ["ab"], "long": ["abc"], "other": ["cb"]})
    scores = random_scores(6, 3, seed=4)
    sums = all_sums(scores, None, loop, forward)
    spelt = {"ab": ["short"], "abc": ["long"], "cb": ["other"]}
    expected = {}
    for count in range(1, 4):
        for chosen in itertools.product(spelt, repeat=count):
            key = tuple("abc".index(name) for name in "".join(chosen))
            if key in sums:  # no label is twice in a row
                expected[tuple(spelt[each][0] for each in chosen)] = sums[key]
    found = {
        entry.words: entry.score for entry in BeamDecoder(3, None, labels, options, lexicon=lexicon).decode(scores)
    }
    assert len(expected) > 8
    for words, score in expected.items():
        assert found[words] == pytest.approx(score, abs=1e-4), words
    small = dataclasses.replace(options, beam_size=40, beam_threshold=8.0, nbest=1)
    best = max(found, key=lambda words: found[words])
    assert BeamDecoder(3, None, labels, small, lexicon=lexicon).decode(scores)[0].words == best


@pytest.mark.parametrize("with_model", [False, True])
def test_lexicon_and_language_model(arpa, with_model):
    labels = DecodedLabels(list("abc"))
    lm = NGramFile(read_ngram(arpa), arpa, of_labels=False) if with_model else None
    options = dataclasses.replace(EXACT, lm_scale=0.7, word_score=0.4, unknown_score=-0.6)
    decoder = BeamDecoder(4, 3, labels, options, lexicon=lexicon_of(labels), lm=lm)
    scores = random_scores(5, 4, seed=3)
    model, expected = ArpaModel(arpa), {}
    for sequence, acoustic in all_sums(scores, 3).items():
        for words in sentences("".join("abc"[label] for label in sequence)):
            state, total = model.begin(), 0.0
            for word in [*words, "</s>"] if with_model else []:
                score, state = model.score(state, word)
                total += score
            key = words, sequence
            own = 0.4 * len(words) - 0.6 * words.count("AA") * with_model
            expected[key] = max(expected.get(key, -np.inf), acoustic + 0.7 * total + own)
    best = {}
    for (words, _), score in expected.items():
        best[words] = max(best.get(words, -np.inf), score)
    found = {entry.words: entry for entry in decoder.decode(scores) if "".join(entry.words) or not entry.labels}
    whole = {words: entry for words, entry in found.items() if words in best and entry.score >= best[words] - 1e-3}
    assert whole.keys() == best.keys()
    for words, entry in whole.items():
        assert entry.score == pytest.approx(best[words], abs=1e-4)
        assert entry.score == pytest.approx(sum(entry.parts.values()), abs=1e-6)
        assert [begin for begin, _ in entry.word_labels] == [0, *(end for _, end in entry.word_labels)][: len(words)]
    ranked = sorted(best, key=lambda words: -best[words])
    assert decoder.decode(scores)[0].words == ranked[0]


def test_language_model_of_labels(tmp_path):
    path = tmp_path / "labels.arpa"
    path.write_text(
        "\\data\\\nngram 1=3\nngram 2=1\n\n"
        "\\1-grams:\n-0.5 a -0.1\n-0.9 b\n-2 <unk>\n\n\\2-grams:\n-0.2 a b\n\n\\end\\\n"
    )
    lm = NGramFile(read_ngram(str(path)), str(path), of_labels=True)
    decoder = BeamDecoder(3, 2, DecodedLabels(["a", "b"]), EXACT, lm=lm)
    scores = random_scores(4, 3)
    sums = all_sums(scores, 2)
    by_hand = {(): 0.0, (0,): -0.5, (0, 1): -0.5 - 0.2, (1, 0): -0.9 - 0.5, (0, 0): -0.5 - 0.1 - 0.5}
    found = {entry.labels: entry for entry in decoder.decode(scores)}
    for labels, log10 in by_hand.items():
        assert found[labels].parts["lm"] == pytest.approx(log10 * math.log(10), abs=1e-5)
        assert found[labels].score == pytest.approx(sums[labels] + log10 * math.log(10), abs=1e-4)


def test_priors_and_blank_scale():
    scores, priors = random_scores(4, 3), random_scores(1, 3, seed=5)[0]
    options = dataclasses.replace(EXACT, prior_scale=0.5, blank_scale=0.3)
    decoder = BeamDecoder(3, 2, DecodedLabels([]), options, log_priors=priors)
    shifted = scores - 0.5 * priors
    shifted[:, 2] += math.log(0.3)
    expected = all_sums(shifted, 2)
    for entry in decoder.decode(scores):
        assert entry.score == pytest.approx(expected[entry.labels], abs=1e-4)


def phrase_count(tokens, phrase):
    return sum(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens)))


@pytest.mark.parametrize("use_lexicon", [False, True])
def test_hot_words_add_their_weight(use_lexicon):
    names = ["a@@", "a", "b@@", "b"]  # pieces of words: a phrase begins at the begin of a word
    labels = DecodedLabels(names)
    lexicon = WordLexicon(labels) if use_lexicon else None
    for word, pieces in {"ab": [0, 3], "b": [3], "aab": [0, 0, 3], "a": [1]}.items():
        if lexicon is not None:
            lexicon.add(word, pieces)
    phrases = {"b": 1.5, "b a": 2.0, "ab": 0.75} if use_lexicon else {"b": 1.5, "a": 0.5}
    decoder = BeamDecoder(5, 4, labels, EXACT, lexicon=lexicon, hot_words=hot_phrases(phrases, 1.0))
    found = decoder.decode(random_scores(4, 5))
    assert len(found) > 20
    for entry in found:
        pieces = [names[label] for label in entry.labels]
        words = "".join((piece + " ").replace("@@ ", "") for piece in pieces).split()
        if use_lexicon:
            words = list(entry.words)
        elif pieces and pieces[-1].endswith("@@"):
            words = words[:-1]
        expected = sum(weight * phrase_count(words, text.split()) for text, weight in phrases.items())
        assert entry.parts["hot_words"] == pytest.approx(expected, abs=1e-5), (entry, words)


class Pieces:
    """A vocabulary that splits words as a table says."""

    unknown_label_id = unknown_label = None
    is_random = False

    def __init__(self, table):
        self._table = table

    def get_seq(self, word):
        return self._table.get(word, [])


@pytest.mark.parametrize(
    "names, table, phrases",
    [
        (["\u2581a", "b", "\u2581c"], {"a": [0], "cb": [2, 1]}, {"a": 3.0, "cb a": 1.0}),
        (["##b", "a", "c"], {"a": [1], "ab": [1, 0], "c": [2]}, {"a": 2.0, "ab": 0.5, "c a": -1.0}),
        (["a@@", "a", "b"], {"a": [1], "ab": [0, 2]}, {"a": 3.0, "ab": 1.0}),
    ],
)
def test_hot_words_are_whole_words(names, table, phrases):
    """A label of SentencePiece ends a word only if the next one begins one: "a" is not in "ab"."""
    labels = DecodedLabels(names, Pieces(table))
    found = BeamDecoder(4, 3, labels, EXACT, hot_words=hot_phrases(phrases, 1.0)).decode(random_scores(4, 4))
    assert len(found) > 20
    for entry in found:
        pieces = [names[label] for label in entry.labels]
        words = [word for word, _, _ in labels.spelling.spans(pieces)]
        if pieces and pieces[-1].endswith("@@"):
            words = words[:-1]
        if pieces[:1] == ["##b"]:
            continue  # no word begins so
        expected = sum(weight * phrase_count(words, text.split()) for text, weight in phrases.items())
        assert entry.parts["hot_words"] == pytest.approx(expected, abs=1e-5), words


def test_hot_words_of_characters_without_spaces_are_anywhere():
    labels = DecodedLabels(["\u4f60", "\u597d", "\u5417"])
    decoder = BeamDecoder(4, 3, labels, EXACT, hot_words=hot_phrases({"\u597d\u5417": 2.0}, 1.0))
    for entry in decoder.decode(random_scores(4, 4)):
        assert entry.parts["hot_words"] == pytest.approx(2.0 * phrase_count(entry.labels, (1, 2)), abs=1e-5)


def test_a_part_of_a_phrase_counts_until_it_is_broken():
    """The right words are behind at first: only the share of the phrase keeps them in a beam of two."""
    labels = DecodedLabels(list("abc"))
    scores = np.log(np.array([[0.55, 0.45, 0, 0], [0, 0, 0.1, 0.9], [0.0, 0.2, 0.8, 0.0]]) + 1e-9)
    lexicon = lexicon_of(labels, {"a": ["a"], "b": ["b"], "c": ["c"]})
    small = BeamOptions(beam_size=1)
    plain = BeamDecoder(4, 3, labels, small, lexicon=lexicon).decode(scores)[0]
    hot = BeamDecoder(4, 3, labels, small, lexicon=lexicon, hot_words=hot_phrases({"b c": 2.0}, 1.0)).decode(scores)[0]
    assert plain.words == ("a", "c") and hot.words == ("b", "c")
    other = BeamDecoder(4, 3, labels, small, lexicon=lexicon, hot_words=hot_phrases({"b b": 0.1}, 1.0))
    assert other.decode(scores)[0].parts["hot_words"] == 0.0


@pytest.mark.parametrize("use_lexicon", [True, False])
def test_a_hot_word_has_one_weight(use_lexicon, tmp_path):
    labels = DecodedLabels(["a", "b", " "])
    lexicon = lexicon_of(labels, {"ab": ["ab"], "b": ["b"]}) if use_lexicon else None
    (tmp_path / "hot.txt").write_text("b\t2\nab b\t1\nb\t2\nab  b\n")
    phrases = hot_phrases(str(tmp_path / "hot.txt"), 1.0)
    BeamDecoder(4, 3, labels, EXACT, lexicon=lexicon, hot_words=phrases)  # it is there twice, with one weight
    phrases = hot_phrases(str(tmp_path / "hot.txt"), 4.0)
    with pytest.raises(DataError, match=r"Hot word 'ab b' \(.*hot.txt, line 4\) has the weight 4, but 1 in .*line 2"):
        BeamDecoder(4, 3, labels, EXACT, lexicon=lexicon, hot_words=phrases)


def test_hot_words_that_the_lexicon_lacks_are_added():
    labels = DecodedLabels(list("abc"))
    lexicon = lexicon_of(labels, {"a": ["a"]})
    decoder = BeamDecoder(4, 3, labels, EXACT, lexicon=lexicon, hot_words=hot_phrases(["a cb"], 9.0))
    assert {"a", "cb"} == set(decoder.decode(random_scores(6, 4))[0].words)
    with pytest.raises(DataError, match=r"Hot word 'xy' \(hot_words\[0\]\): the lexicon lacks it, and the labels"):
        BeamDecoder(4, 3, labels, EXACT, lexicon=lexicon, hot_words=hot_phrases(["xy"], 9.0))
    with pytest.raises(DataError, match=r"Hot word 'ab x' \(hot_words\['ab x'\]\): the labels of the model can't"):
        BeamDecoder(4, 3, labels, EXACT, hot_words=hot_phrases({"ab x": 1}, 9.0))


def test_characters_with_a_space():
    """The last word needs no space, and words with and without one are one result."""
    labels = DecodedLabels(["a", "b", " "])
    lexicon = WordLexicon(labels)
    for word in ("a", "ab", "ba"):
        lexicon.add(word, labels.spell(word))
    path = [0, 1, 2, 1, 3, 0]
    scores = np.full((6, 4), math.log(0.05), "float32")
    scores[np.arange(6), path] = math.log(0.85)
    found = BeamDecoder(4, 3, labels, dataclasses.replace(EXACT, nbest=50), lexicon=lexicon).decode(scores)
    assert found[0].words == ("ab", "ba")
    assert found[0].word_labels == ((0, 3), (3, 5))
    assert len({entry.words for entry in found}) == len(found)


def test_a_separator_between_words():
    names = ["a", "b", "sil"]
    labels = DecodedLabels(names, separator=2)
    lexicon = WordLexicon(labels)
    lexicon.add("A", [0])
    lexicon.add("B", [1])
    scores = np.full((6, 4), math.log(0.01), "float32")
    scores[np.arange(6), [2, 0, 2, 2, 1, 2]] = math.log(0.97)
    (found,) = BeamDecoder(4, 3, labels, BeamOptions(), lexicon=lexicon).decode(scores)
    assert found.words == ("A", "B") and found.labels == (2, 0, 2, 1, 2)
    assert found.word_labels == ((1, 2), (3, 4)) and found.frames[1] == (1, 2) and found.frames[2] == (2, 4)


def test_states_of_an_hmm_without_a_blank():
    """Without a blank each label lasts, and the first one has to begin a word, how bad it may be."""
    labels = DecodedLabels(["a", "b", "c"])
    lexicon = lexicon_of(labels, {"AB": ["ab"], "C": ["c"]})
    scores = np.full((5, 3), math.log(0.02), "float32")
    scores[np.arange(5), [0, 0, 1, 1, 2]] = math.log(0.96)
    decoder = BeamDecoder(3, None, labels, BeamOptions(labels_per_frame=1), lexicon=lexicon)
    (found,) = decoder.decode(scores)
    assert found.words == ("AB", "C") and found.frames == ((0, 2), (2, 4), (4, 5))
    assert decoder.decode(scores[2:])[0].words == ("C",) or decoder.decode(scores[2:])[0].labels[0] in (0, 2)


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_few_frames(frames):
    labels = DecodedLabels(list("abc"))
    scores = random_scores(2, 4)[:frames]
    (found,) = BeamDecoder(4, 3, labels, BeamOptions(), lexicon=lexicon_of(labels)).decode(scores)
    assert len(found.labels) <= frames and len(found.frames) == len(found.labels)


def test_ends_within_a_word():
    """Hypotheses that end within a word are left out; if all end so, their whole words are returned."""
    labels = DecodedLabels(list("abc"))
    scores = np.log(np.array([[0.9, 0.05, 0.05, 0.0], [0.05, 0.9, 0.05, 0.0], [0.1, 0.05, 0.85, 0.0]]) + 1e-7)
    words = {"A": ["a"], "BB": ["bcb"], "C": ["c"]}
    found = BeamDecoder(4, 3, labels, EXACT, lexicon=lexicon_of(labels, words)).decode(scores)
    assert found[0].words == ("A", "C") and found[0].labels == (0, 2)
    spelt = {"".join("abc"[label] for label in entry.labels) for entry in found}
    assert spelt and all(any(True for _ in sentences(text, words)) for text in spelt)  # all others are left out
    (only,) = BeamDecoder(4, 3, labels, BeamOptions(), lexicon=lexicon_of(labels, {"X": ["abcb"]})).decode(scores)
    assert only.words == () and only.labels == (0, 1, 2)


def test_scores_of_probability_0():
    scores = np.where(np.eye(4)[[0, 3, 1]] > 0, 0.0, -np.inf).astype("float32")
    labels = DecodedLabels(list("abc"))
    assert BeamDecoder(4, 3, labels, BeamOptions(), lexicon=lexicon_of(labels)).decode(scores)[0].labels
    assert BeamDecoder(4, 3, labels, BeamOptions()).decode(scores)[0].labels == (0, 1)


def test_a_model_of_words_needs_a_lexicon(arpa):
    with pytest.raises(ConfigError, match="is one of words: that needs a lexicon"):
        BeamDecoder(4, 3, DecodedLabels(list("abc")), EXACT, lm=NGramFile(read_ngram(arpa), arpa, of_labels=False))


def test_a_model_of_another_vocabulary(arpa):
    labels = DecodedLabels(list("abc"))
    lexicon = lexicon_of(labels, {"a": ["a"], "ab": ["ab"], "C": ["c"]})
    with pytest.raises(DataError, match=r"lacks 2 of the 3 words of the lexicon: 'a', 'ab'\. It is one of another"):
        BeamDecoder(4, 3, labels, EXACT, lexicon=lexicon, lm=NGramFile(read_ngram(arpa), arpa, of_labels=False))
