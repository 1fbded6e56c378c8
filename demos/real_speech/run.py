#!/usr/bin/env python3
"""The demo of recorded speech, from packages to error rates; ``make demo-real-speech`` runs it with ``--quick``.

    python run.py --quick                       some minutes: only shows that all steps work
    python run.py                               Czech, BLSTMs, one seed
    python run.py --corpora cs,nl --encoders blstm,conformer --seeds 3
    python run.py --pretrain                    first on speech of espeak-ng, then on the recordings
    python run.py --corpora cs,nl --from-czech  Dutch begins with the Czech model
    python run.py --corpora ru                  Russian phones: with given times, without times, realigned
    python run.py --corpora prompts             prompts of a telephone system in five languages

Each step is a command of its own, which is printed, so that it can be repeated by hand. Everything goes to the
directory out/ below the working directory (``--work``, by default where this file is), that of ``--quick`` to
out/quick/. Data and models that are there are kept: a run that was interrupted goes on, and a training continues after
its last epoch; what they recognise is written anew. To begin anew, delete them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Callable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "common"))

from prompts import VOICES  # noqa: E402
from steps import StepFailed, Steps  # noqa: E402

CORPORA, ENCODERS = ("cs", "nl", "ru", "prompts"), ("blstm", "conformer")
DIALOGUE = ("cs", "nl")
SETS = ("train", "dev", "test")
FEW = 12
#: Scales by language and language model, tuned on the Czech dev set; the Dutch ones before there was more Czech text.
DECODING = {
    "cs": {
        "words": ("--lm-scale", "1", "--word-score", "0"),
        "labels": ("--lm-scale", "1", "--word-score", "1.5"),
    },
    "nl": {
        "words": ("--lm-scale", "1.2", "--word-score", "1"),
        "labels": ("--lm-scale", "0.8", "--word-score", "1"),
    },
}
PHONES_CTC = ("--lm-scale", "0.4", "--word-score", "0.5")
PHONES_HMM = ("--lm-scale", "1", "--prior-scale", "0.5", "--forward-score", "-2")
#: The n-gram model allows exactly one phrase; the beam is wide enough for all of a language.
PHRASES = ("--lm-scale", "1", "--beam-size", "2000", "--beam-threshold", "1000", "--labels-per-frame", "0")
DECODER = os.path.join(os.path.dirname(HERE), "decoder", "c")


def make_dialogue(steps: Steps, language: str, packages: str, *, few: bool) -> None:
    """Make the data of a language that is not there yet, and find the nearest neighbours."""
    if not all(os.path.exists(steps.out("%s_%s.zip" % (language, name))) for name in SETS):
        options = ["--most", str(FEW)] if few else []
        steps.script("%s: make the corpus" % language, "dialogue.py", packages, "out", "--language", language, *options)
        steps.script("%s: estimate language models" % language, "lm.py", "out/" + language)
    make_zips(steps, language, packages)
    if not os.path.exists(steps.out("%s_test_nearest.py" % language)):
        title = "%s: find the training utterances that sound most alike" % language
        steps.script(title, "nearest.py", "out/%s_train" % language, "out/%s_test" % language)


def make_zips(steps: Steps, language: str, packages: str, names: Sequence[str] = SETS, rate: int = 16000) -> None:
    """Make the zips of a corpus that are not there yet."""
    for name in names:
        prefix = "out/%s_%s" % (language, name)
        if not os.path.exists(steps.out("%s_%s.zip" % (language, name))):
            files = [prefix + ".tsv", "--audio-root", packages, "--output", prefix + ".zip"]
            options = ["--sample-rate", str(rate), "--format", "flac"]
            steps.returnn("%s: zip %s" % (language, name), "data", "oggzip", *files, *options)


def pretrain(steps: Steps, language: str, encoder: str, seed: int, *, few: bool) -> None:
    """Train a model on synthesised speech as far as it isn't trained yet."""
    if not os.path.exists(steps.out("%s_synthetic.zip" % language)):
        most = ["--most", str(FEW)] if few else []
        steps.script("%s: let espeak-ng speak" % language, "synthesise.py", "out", "--language", language, *most)
        prefix = "out/%s_synthetic" % language
        files = [prefix + ".tsv", "--output", prefix + ".zip", "--sample-rate", "16000"]
        steps.returnn("%s: zip synthetic" % language, "data", "oggzip", *files)
    environment = {"SPEECH": language, "ENCODER": encoder, "SEED": str(seed), "STAGE": "synthetic"}
    title = "%s, %s, seed %d: train on synthetic speech" % (language, encoder, seed)
    steps.returnn(title, "dialogue.config", *(["++num_epochs", "1"] if few else []), environment=environment)


def train(steps: Steps, language: str, encoder: str, seed: int, *, stage: str, few: bool) -> None:
    """Train a model as far as it isn't trained yet, and recognise the held-out levels.

    :param stage: of ``dialogue.config``, which says what it begins with
    """
    environment = {"SPEECH": language, "ENCODER": encoder, "SEED": str(seed)}
    if stage:
        environment.update({"STAGE": stage, **({"EPOCHS_BEFORE": "1"} if few else {})})
    title = "%s, %s, seed %d" % (language, encoder, seed)
    epochs = ["++num_epochs", "1"] if few else []
    steps.returnn("%s: train" % title, "dialogue.config", *epochs, environment=environment)
    name = "_".join([language, encoder, *filter(None, [stage]), str(seed)])
    steps.remove_products(name + r"_(search|decode_\w+)\.py")
    steps.returnn("%s: search" % title, "dialogue.config", "++task", "search", environment=environment)
    for kind, options in DECODING[language].items():
        files = ["--lm", "out/%s_%s.arpa" % (language, kind)]
        files += ["--output", "out/%s_decode_%s.py" % (name, kind)]
        if kind == "words":
            files += ["--lexicon", "out/%s.words" % language]
        what = "%s: search with a model of %s" % (title, kind)
        steps.returnn(what, "decode", "dialogue.config", *files, *options, environment=environment)


def make_phones(steps: Steps, packages: str, *, few: bool) -> None:
    """Make the data of Russian phones that is not there yet."""
    if not all(os.path.exists(steps.out("ru_%s.zip" % name)) for name in SETS):
        steps.script("ru: make the corpus", "russian.py", packages, "out", *(["--most", str(FEW)] if few else []))
    make_zips(steps, "ru", packages)


def train_phones(steps: Steps, seed: int, *, few: bool) -> None:
    """Train with the given alignments, without any, and with those of the second model; recognise with each."""
    for kind in ("given", "ctc", "realigned"):
        environment = {"PHONES": kind, "SEED": str(seed)}
        title, prefix = "ru, %s, seed %d" % (kind, seed), "out/ru_%s_%d" % (kind, seed)
        epochs = ["++num_epochs", "1"] if few else []
        steps.returnn("%s: train" % title, "phones.config", *epochs, environment=environment)
        steps.remove_products(r"ru_%s_%d_(decode_\w+\.py|priors\.txt)" % (kind, seed))
        options = ["--lm", "out/ru_phones.arpa", "--output", prefix + "_decode_phones.py"]
        if kind == "ctc":
            options += PHONES_CTC
        else:
            priors = ["++task", "compute_priors", "++output_file", prefix + "_priors.txt"]
            steps.returnn("%s: priors" % title, "phones.config", *priors, environment=environment)
            options += ["--topology", "hmm", "--priors", prefix + "_priors.txt", *PHONES_HMM]
        steps.returnn("%s: search" % title, "decode", "phones.config", *options, environment=environment)
        if kind == "ctc":
            for name in SETS:
                where = {**environment, "ALIGN": name}
                steps.returnn("%s: align %s" % (title, name), "phones.config", "++task", "forward", environment=where)
                files = ["%s_alignment_%s.hdf" % (prefix, name), "out/ru_%s_realigned_%d.hdf" % (name, seed)]
                given = ["--given", "out/ru_%s_given.hdf" % name]
                steps.script("%s: compare the alignments of %s" % (title, name), "alignments.py", *files, *given)


def make_prompts(steps: Steps, packages: str, *, few: bool) -> None:
    """Make the data of prompts that is not there yet."""
    names = ["train", "dev", *("test_" + language for language in VOICES)]
    if not all(os.path.exists(steps.out("prompts_%s.zip" % name)) for name in names):
        most = ["--most", str(FEW)] if few else []
        steps.script("prompts: make the corpus", "prompts.py", packages, "out", *most)
    make_zips(steps, "prompts", packages, names, rate=8000)


def find_nearest_prompts(steps: Steps) -> None:
    """Let espeak-ng speak all phrases, and find the one that sounds most like each prompt, unless that is there."""
    for language in VOICES:
        spoken, asked = "out/prompts_%s_spoken" % language, "out/prompts_test_%s" % language
        if not os.path.exists(steps.out("prompts_%s_spoken.zip" % language)):
            title = "prompts: let espeak-ng speak the phrases, %s" % language
            steps.script(title, "speak_prompts.py", "out", "--language", language)
            files = [spoken + ".tsv", "--output", spoken + ".zip", "--sample-rate", "8000", "--format", "flac"]
            steps.returnn("prompts: zip them", "data", "oggzip", *files)
        if not os.path.exists(steps.out("prompts_test_%s_nearest.py" % language)):
            title = "prompts: find the phrases that sound most alike, %s" % language
            steps.script(title, "nearest.py", spoken, asked, "--tags", "--sample-rate", "8000")


def train_prompts(steps: Steps, packages: str, seed: int, *, few: bool) -> None:
    """Train a model of all languages as far as it isn't trained yet; recognise prompts with it, also in C."""
    title, name = "prompts, seed %d" % seed, "prompts_%d" % seed
    epochs = ["++num_epochs", "1"] if few else []
    steps.returnn("%s: train" % title, "prompts.config", *epochs, environment={"SEED": str(seed)})
    steps.remove_products(name + r"_(decode_\w+\.py|export)")
    for language in VOICES:
        files = ["--lexicon", "out/prompts_%s.lexicon" % language, "--lm", "out/prompts_%s.arpa" % language]
        files += ["--output", "out/%s_decode_%s.py" % (name, language)]
        environment = {"SEED": str(seed), "SPEECH": language}
        what = "%s: search for a phrase, %s" % (title, language)
        steps.returnn(what, "decode", "prompts.config", *files, *PHRASES, environment=environment)
    export = ["export", "prompts.config", "--portable", "--output", "out/%s_export" % name]
    steps.returnn("%s: export" % title, *export, environment={"SEED": str(seed)})
    steps.script("%s: recognise by the decoder in C" % title, "phrases.py", "out/" + name, packages, "--c", DECODER)
    steps.returnn("%s: draw curves" % title, "plot", "out/%s_learning_rates" % name, "out/%s_curves.png" % name)
    steps.script("%s: draw prompts" % title, "draw_prompts.py", "out/" + name)


def run(steps: Steps, args: argparse.Namespace) -> None:
    """Run all steps."""
    packages = os.path.relpath(os.path.join(args.work, "out", "packages"), steps.work)
    seeds = range(1, args.seeds + 1)
    for corpus in args.corpora:
        if corpus == "prompts":
            make_prompts(steps, packages, few=args.quick)
            find_nearest_prompts(steps)
            for seed in seeds:
                train_prompts(steps, packages, seed, few=args.quick)
            steps.script("prompts: count errors", "score_prompts.py", "out")
            continue
        if corpus == "ru":
            make_phones(steps, packages, few=args.quick)
            for seed in seeds:
                train_phones(steps, seed, few=args.quick)
        else:
            make_dialogue(steps, corpus, packages, few=args.quick)
            stage = "pretrained" if args.pretrain else "from_cs" if args.from_czech and corpus != "cs" else ""
            for encoder in args.encoders:
                for seed in seeds:
                    if args.pretrain:
                        pretrain(steps, corpus, encoder, seed, few=args.quick)
                    train(steps, corpus, encoder, seed, stage=stage, few=args.quick)
        steps.script("%s: count errors" % corpus, "score.py", "out", "--language", corpus)


def main() -> int:
    """Run the command.

    :return: exit code
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=HERE, metavar="DIR", help="working directory; results go to DIR/out")
    for name, known in (("corpora", CORPORA), ("encoders", ENCODERS)):
        parser.add_argument("--" + name, default=known[:1], type=some_of(known), help="some of %s" % ",".join(known))
    parser.add_argument("--seeds", default=1, type=int, metavar="N", help="trainings of each (1)")
    beginning = parser.add_mutually_exclusive_group()
    beginning.add_argument("--pretrain", action="store_true", help="dialogue: first train on speech of espeak-ng")
    beginning.add_argument("--from-czech", action="store_true", help="Dutch dialogue: begin with the Czech model")
    parser.add_argument("--quick", action="store_true", help="few utterances, one epoch, in DIR/out/quick")
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error("--seeds: must be at least 1")
    dialogue = [corpus for corpus in args.corpora if corpus in DIALOGUE]
    if args.pretrain and not dialogue:
        parser.error("--pretrain: none of --corpora %s is dialogue" % ",".join(args.corpora))
    if args.from_czech and "nl" not in dialogue:
        parser.error("--from-czech: the Dutch model begins with the Czech one; add nl to --corpora")
    if args.from_czech and dialogue[-1] == "cs" != dialogue[0]:
        parser.error("--from-czech: cs must stand before nl in --corpora")
    steps = Steps(HERE, os.path.join(args.work, "out", "quick") if args.quick else args.work)
    if args.quick:
        steps.remove_products(r"(%s)[_.].*" % "|".join(CORPORA))
    try:
        run(steps, args)
    except StepFailed as failed:
        print("the demo ends here: the last command failed (%s)" % failed, file=sys.stderr)
        return 1
    print("\n=== %s" % steps.summary())
    return 0


def some_of(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return a type of an option: some of these, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError("%r is none of %s" % (unknown[0], ", ".join(known)))
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
