"""Vocabularies: what is read, what is refused, and where the message points."""

import pickle

import pytest

from bertsmith.errors import FileError, VocabularyError
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import SPECIAL_PIECES, Vocabulary, read_vocabulary

PIECES = [*SPECIAL_PIECES, "[unused0]", "[unused12]", "\u2028", "##\u2028", "\u0085", "한", "##국", "a b"]


def test_ids_and_groups():
    vocabulary = Vocabulary(PIECES)
    assert len(vocabulary) == len(PIECES)
    assert [vocabulary.id_of(piece) for piece in PIECES] == list(range(len(PIECES)))
    assert vocabulary.id_of("absent") is None
    assert [vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert vocabulary.special_ids == {0, 1, 2, 3, 4}
    assert vocabulary.replacement_ids.tolist() == list(range(7, len(PIECES)))
    assert vocabulary.replacement_ids.dtype == "int64"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("tail", ["", "1", "3"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_reads_whatever_ends_a_line(tmp_path, ending, tail, mark):
    path = tmp_path / "vocab.txt"
    path.write_bytes(mark + (ending.join(PIECES) + ending * int(tail or 0)).encode())
    assert read_vocabulary(path) == Vocabulary(PIECES)


def test_written_and_read_again(tmp_path):
    vocabulary = Vocabulary(PIECES)
    vocabulary.write(tmp_path / "vocab.txt")
    again = read_vocabulary(tmp_path / "vocab.txt")
    assert again == vocabulary
    assert again.fingerprint == vocabulary.fingerprint == pickle.loads(pickle.dumps(vocabulary)).fingerprint
    assert again.fingerprint != Vocabulary([*PIECES, "more"]).fingerprint
    assert Vocabulary([*PIECES, "x", "y"]).fingerprint != Vocabulary([*PIECES, "y", "x"]).fingerprint


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*PIECES, "", "b"], r"vocab\.txt:14: is empty"),
        ([*PIECES, "한"], r"vocab\.txt:14: '한' stands already at .*vocab\.txt:11"),
        ([p for p in PIECES if p != "[MASK]"], r"vocab\.txt: \[MASK\] missing among 12 pieces"),
        (["<pad>", "a"], r"vocab\.txt: \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\] missing"),
        ([], r"vocab\.txt: is empty"),
        ([*PIECES, "a\rb"], r"vocab\.txt:14: 'a\\rb' has a line break inside"),
    ],
)
def test_refuses_naming_the_line(tmp_path, lines, message):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    with pytest.raises(VocabularyError, match=message):
        read_vocabulary(path)


def test_refuses_what_is_no_text(tmp_path):
    (tmp_path / "binary").write_bytes(b"[PAD]\n\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "binary"):
        with pytest.raises(FileError, match=path.name):
            read_vocabulary(path)


def test_further_special_pieces_are_neither_masked_nor_replacements():
    words = Vocabulary([*SPECIAL_PIECES, "[NEW]", "a", "##b"], more_special=["[NEW]"])
    assert words.special_ids == frozenset(range(6))
    assert words.replacement_ids.tolist() == [6, 7]
    assert pickle.loads(pickle.dumps(words)).special_ids == words.special_ids


def test_a_folders_own_special_pieces_are_special(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, "a", "##b"]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"additional_special_tokens": ["[NEW]"]}')
    words = Tokenizer.load(tmp_path).vocabulary
    assert words.id_of("[NEW]") in words.special_ids
    (tmp_path / "saved").mkdir()
    Tokenizer.load(tmp_path).save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").vocabulary.special_ids == words.special_ids
