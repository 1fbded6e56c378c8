# ruff: noqa: RUF001 (letters of IPA)
"""Phones that espeak-ng writes."""

from __future__ import annotations

import pytest

from tests.demos.demo_modules import demo_modules


@pytest.mark.parametrize(
    "ipa, expected",
    [
        (" p_ɹ_ˈɛ_s w_ˈʌ_n\n ɔːɹ t_ˈuː\n", "p ɹ ɛ s w ʌ n ɔɹ t u"),
        ("p__r_ˈɛ_ss d̪_ˈiː_", "p r ɛ s d i"),
        ("(en)_p_ɹ_ˈɛ_s_(fr) ˈœ̃", "p ɹ ɛ s œ̃"),
        ("(en-us)_l_ˈɒ_ɡ", "l ɒ ɡ"),
        ('n_a_ʒ_mʲ_u" ə-_ɪ^', "n a ʒ mʲ u ə ɪ"),
        ("tʃː_aɪ", "tʃ aɪ"),
        ("\n", ""),
    ],
)
def test_phones(ipa, expected):
    (espeak,) = demo_modules("common", "espeak")
    assert espeak.read_phones(ipa) == expected.split()
