"""Normalizer presets against transformers' part for `bert`, and for `unicode-safe` a reference in plain Python."""

import json
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from bertsmith.errors import ConfigError, VocabularyError
from bertsmith.text.normalize import PRESETS, Normalizer, from_tokenizers_json

ALL = [
    Normalizer(preset, lowercase, strip, split_cjk, clean)
    for preset in PRESETS
    for lowercase in (True, False)
    for strip in (None, not lowercase)
    for split_cjk in (True, False)
    for clean in (True, False)
]
SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
# Latin by script, though their names begin otherwise.
LATIN_BY_SCRIPT = "ªº"
ALPHABET = (
    "abcIİıZßéèÀÖñÅǅ \u0301\u0308\u0323\u0327\u0302\u0307\u0345\u3099ΑΣσςάΐᾈйЁяІ한국어각뷁ㄱㅏ\u1100\u1161"
    "\u11a8\u1112\u1175バがハカ漢字中國\u200b\u200d\ufeff\u00ad🙂👩𐐀𝒜𠀀!#“”₩￦。\x00\x01\u0085\u2028\ue000\ufffd\u00a0\u3000हि\u093c\u0958"
    "\uf900\u212b\u2126\u1e9b\u0344\u0f73\u212a"
)
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=24)


def reference(text: str, lowercase: bool, strip: bool) -> str:
    """unicode-safe, step by step."""
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if (character.isspace() and category != "Cc") or character in "\t\n\r":
            kept.append(" ")
        elif category not in ("Cc", "Cf", "Co") and character != "\ufffd":
            kept.append(character)
    spaced = "".join(f" {c} " if is_ideograph(ord(c)) else c for c in kept)
    # One character at a time: no final sigma.
    lowered = "".join(c.lower() for c in spaced) if lowercase else spaced
    out = []
    after_letter = False
    for character in unicodedata.normalize("NFD", lowered):
        if unicodedata.category(character) == "Mn":
            if strip and after_letter:
                continue
        else:
            name = unicodedata.name(character, "")
            after_letter = name.startswith(SCRIPTS) or character in LATIN_BY_SCRIPT
        out.append(character)
    return unicodedata.normalize("NFC", "".join(out))


def is_ideograph(point: int) -> bool:
    return (
        0x4E00 <= point <= 0x9FFF
        or 0x3400 <= point <= 0x4DBF
        or 0x20000 <= point <= 0x2A6DF
        or 0xF900 <= point <= 0xFAFF
    )


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TEXTS, st.booleans(), st.booleans())
@example("İstanbul İ\u0323 I\u0307", True, True)
@example("한국어 バ é café Ồ", True, True)
@example("\u1112\u1161\u11ab e\u0301\u0323", False, False)
def test_unicode_safe_equals_the_reference(text, lowercase, strip):
    assert Normalizer("unicode-safe", lowercase, strip)(text) == reference(text, lowercase, strip)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS, st.booleans())
def test_bert_equals_the_librarys_part(text, lowercase):
    assert Normalizer(lowercase=lowercase)(text) == normalizers.BertNormalizer(lowercase=lowercase).normalize_str(text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS, st.sampled_from([n for n in ALL if n.preset == "unicode-safe"]))
def test_unicode_safe_is_nfc_and_the_same_for_equivalent_texts(text, normalizer):
    result = normalizer(text)
    assert unicodedata.is_normalized("NFC", result)
    if not normalizer.split_cjk:  # compatibility ideographs are spaced by their own code points
        assert normalizer(unicodedata.normalize("NFD", text)) == result


def test_the_two_presets_where_people_get_hurt():
    assert [len(Normalizer(p)("한국어")) for p in PRESETS] == [8, 3]
    assert [Normalizer(p)("バナナ") for p in PRESETS] == ["ハナナ", "バナナ"]
    assert [Normalizer(p)("Ὀδύσσεια Ёлка Café") for p in PRESETS] == ["οδυσσεια елка cafe"] * 2
    assert [Normalizer(p, lowercase=False)("Café 한") for p in PRESETS] == ["Café 한"] * 2


@pytest.mark.parametrize("normalizer", ALL, ids=str)
def test_travels_as_json(normalizer):
    assert Normalizer.from_mapping(normalizer.to_mapping()) == normalizer
    assert from_tokenizers_json(json.loads(normalizer.build().__getstate__())) == normalizer


def test_saying_the_default_is_no_difference():
    assert Normalizer(lowercase=True, strip_accents=True) == Normalizer(lowercase=True)
    assert Normalizer(lowercase=True, strip_accents=False) != Normalizer(lowercase=True)


def test_refusals():
    with pytest.raises(ConfigError, match=r"'unicode_safe'.*did you mean 'unicode-safe'"):
        Normalizer("unicode_safe")
    for other in (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": []}):
        with pytest.raises(VocabularyError, match="here: its normalizer is neither"):
            from_tokenizers_json(other, where="here")
    changed = json.loads(Normalizer("unicode-safe").build().__getstate__())
    changed["normalizers"][2]["content"] = "x"
    with pytest.raises(VocabularyError, match="neither"):
        from_tokenizers_json(changed)
