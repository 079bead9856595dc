"""The report's figures on texts small enough to count by hand."""

import pytest

from bertsmith.text.report import script_of, show_report, vocabulary_report
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import SPECIAL_PIECES, Vocabulary

TOKENIZER = Tokenizer(Vocabulary([*SPECIAL_PIECES, "small", "##er", "and", "##s", ".", "longest"]))


def test_figures_counted_by_hand():
    report = vocabulary_report(TOKENIZER, ["Smaller and small.", "한글 ands", ""])
    # small ##er and small . | [UNK] and ##s
    assert report["words"] == 5
    assert report["pieces"] == 8
    assert report["pieces_per_word"] == pytest.approx(8 / 5)
    assert report["unknown"] == 1
    assert report["unknown_rate"] == pytest.approx(1 / 8)
    assert report["longest_pieces"][0] == {"piece": "longest", "length": 7, "count": 0}
    assert report["longest_pieces"][1] == {"piece": "small", "length": 5, "count": 2}
    assert report["scripts"] == {
        "Latin": {"characters": 19, "unknown": 0, "coverage": 1.0},
        "Hangul": {"characters": 2, "unknown": 2, "coverage": 0.0},
        "Punctuation": {"characters": 1, "unknown": 0, "coverage": 1.0},
    }
    shown = show_report(report)
    assert "pieces per word           1.600" in shown
    assert "unknown rate              12.5000% (1 pieces)" in shown


def test_no_text_at_all():
    report = vocabulary_report(TOKENIZER, [])
    assert report["pieces_per_word"] is None
    assert "pieces per word           -" in show_report(report)


def test_reads_a_stream_once_and_in_order():
    report = vocabulary_report(TOKENIZER, (text for text in ["and"] * 1_000))
    assert (report["words"], report["pieces"]) == (1_000, 1_000)


@pytest.mark.parametrize(
    ("character", "script"),
    [
        ("ﬁ", "Latin"),
        ("A", "Latin"),
        ("ﾊ", "Katakana"),
        ("々", "Han"),
        ("ᄒ", "Hangul"),
        ("\u0301", "Mark"),
        ("\x00", "Other"),
    ],
)
def test_scripts(character, script):
    assert script_of(character) == script
