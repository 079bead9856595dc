"""Encoding against transformers' fast BertTokenizer: ids, offsets, truncation, windows, decoding, saved folders."""

import json
import pickle
import re
import shutil
import string
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from bertsmith.errors import ConfigError, InputError, VocabularyError
from bertsmith.text.normalize import PRESETS, Normalizer
from bertsmith.text.saved import AddedPiece, Parts
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import SPECIAL_PIECES, Vocabulary

KOREAN = "한국어 문장을 조각으로 나누는 일은 생각보다 어렵다 그래서 시험한다"
AWKWARD = (
    "abcIİıZßéèÀÖñÅǅ \n\t\u0301\u0308\u0323\u0327\u0302\u0307\u0345\u3099ΑΣσςάΐᾈйЁяІ한국어각뷁ㄱㅏ\u1100\u1161"
    "\u11a8\u1112\u1175バがハカ漢字中國\u200b\u200d\ufeff\u00ad\u2060\ufe0f🙂👩🤣🇰𐐀𝒜𠀀𫢠\U0001e900!#[]-.…“”₩￦。\x00\x01\x7f\u0085\u2028"
    "\ue000\ufffd\u00a0\u3000हि\u093c\u0958เ\u0e33\uf900\u212b\u2126\u1e9b\u0344\u0f73\U000f0000"
)
CHUNKS = ["[MASK]", "[SEP]", "##ing", "[NEW]", "covid", "Covid", "return", "Returning", "한국어", "x" * 100, "y" * 101]
TEXTS = st.lists(
    st.one_of(
        st.text(st.sampled_from(AWKWARD), max_size=6),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        st.sampled_from(CHUNKS),
    ),
    max_size=8,
).map("".join)
FUZZ = settings(max_examples=100, deadline=None, derandomize=True)


def pieces() -> list[str]:
    """A small vocabulary in which most awkward characters are pieces, in every form normalization gives them."""
    words = sorted(set(re.findall(r"[a-z]+", (string.__doc__ + re.__doc__).lower())))
    letters = set(AWKWARD + string.printable + KOREAN)
    letters |= set(unicodedata.normalize("NFD", "".join(letters))) | set("".join(letters).lower())
    letters = sorted(letter for letter in letters if not letter.isspace() and unicodedata.category(letter) != "Cc")
    listed = [*SPECIAL_PIECES, "[unused0]", *letters, *("##" + letter for letter in letters), *words, *KOREAN.split()]
    return list(dict.fromkeys([*listed, "##ing", "##ed", "한국", "##어"]))


PIECES = pieces()


@pytest.fixture(
    params=[(preset, lowercase) for preset in PRESETS for lowercase in (True, False)], ids=str, scope="module"
)
def both(request, tmp_path_factory):
    """Ours, and what AutoTokenizer makes of the folder it saves."""
    preset, lowercase = request.param
    return saved(Tokenizer(Vocabulary(PIECES), Normalizer(preset, lowercase)), tmp_path_factory)


@pytest.fixture(scope="module")
def plain():
    theirs = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)})
    return Tokenizer(Vocabulary(PIECES)), theirs


def saved(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tokenizer.save(folder, max_length=512)
    return tokenizer, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def with_added(**flags):
    added = [*map(AddedPiece, SPECIAL_PIECES), AddedPiece("[NEW]", in_model=False), AddedPiece("covid", False, **flags)]
    return Tokenizer(Vocabulary([*PIECES, "[NEW]", "covid"]), added=added)


def same(ours, theirs) -> bool:
    return (ours.ids, ours.offsets, ours.segments, ours.words) == (
        theirs["input_ids"],
        theirs["offset_mapping"],
        theirs["token_type_ids"],
        theirs.word_ids(),
    )


def test_equals_transformers_on_anything(both):
    tokenizer, theirs = both

    @FUZZ
    @given(TEXTS)
    @example("e\u0301 \u1112\u1161\u11ab[MASK] \ufeff한국어")
    def check(text):
        ours, expected = tokenizer.encode(text), theirs(text, return_offsets_mapping=True)
        assert ours.ids == expected["input_ids"]
        assert ours.pieces == expected.tokens()
        assert ours.words == expected.word_ids()
        if tokenizer.normalizer.preset == "bert" or composed(text):
            assert ours.offsets == expected["offset_mapping"]
        else:  # ours reach over the whole of a decomposed character
            for (start, end), (a, b) in zip(ours.offsets, expected["offset_mapping"], strict=True):
                assert start <= a <= b <= end

    check()


def composed(text: str) -> bool:
    kept = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Co") and c != "\ufffd")
    return unicodedata.is_normalized("NFC", text) and unicodedata.is_normalized("NFC", kept)


def test_offsets_slice_the_text_they_came_from(both):
    tokenizer, _ = both

    @FUZZ
    @given(TEXTS)
    @example("\u0301\u0327x")
    @example("e\u200d\u0301 \u1112\u200b\u1161\u11ab")
    @example("\ufeffCafé 한국어🙂")
    def check(text):
        encoding = tokenizer.encode(text)
        for piece, (start, end), word in zip(encoding.pieces, encoding.offsets, encoding.words, strict=True):
            assert 0 <= start <= end <= len(text)
            if word is None:
                assert (start, end) == (0, 0)
            elif piece in SPECIAL_PIECES:
                assert piece == "[UNK]" or text[start:end] == piece
            else:
                assert piece.removeprefix("##") in tokenizer.normalizer(text[start:end])

    check()


@pytest.mark.parametrize(
    "flags", [{}, {"single_word": True}, {"normalized": True}, {"lstrip": True, "rstrip": True}], ids=str
)
def test_added_pieces_equal_transformers(flags, tmp_path_factory):
    tokenizer, theirs = saved(with_added(in_model=False, **flags), tmp_path_factory)
    for text in ("a [NEW] covid covids Covid", "[NEW][new]covid", "return[MASK] covid ing", "한국어[NEW]는", "[ NEW ]"):
        ours = tokenizer.encode(text)
        assert same(ours, theirs(text, return_offsets_mapping=True)), text
        for piece, (start, end), word in zip(ours.pieces, ours.offsets, ours.words, strict=True):
            assert (
                word is None
                or piece == "[UNK]"
                or piece.removeprefix("##")
                in (text[start:end] if piece in ("[NEW]", "[MASK]") else tokenizer.normalizer(text[start:end]))
            )
        assert tokenizer.decode(ours.ids) == theirs.decode(ours.ids, skip_special_tokens=True)


def test_pairs_and_truncation_equal_transformers(plain):
    tokenizer, theirs = plain
    names = {"longest_first": "longest_first", "first": "only_first", "second": "only_second"}
    for first in range(12):
        for second in range(12):
            a, b = "a " * first + "b", "c " * second + "d"
            for room in (4, 5, 7, 10, 14, 40):
                for ours, name in names.items():
                    kept = second + 1 if ours == "first" else first + 1 if ours == "second" else 0
                    if kept >= room - 3 and first + second + 2 > room - 3:
                        with pytest.raises(InputError, match="the other text alone"):
                            tokenizer.encode(a, b, max_length=room, truncation=ours)
                        continue
                    found = tokenizer.encode(a, b, max_length=room, truncation=ours)
                    expected = theirs(a, b, max_length=room, truncation=name, return_offsets_mapping=True)
                    assert (found.ids, found.segments) == (expected["input_ids"], expected["token_type_ids"])
                    assert found.offsets == expected["offset_mapping"]
                    assert found.cut == max(0, first + second + 2 - (room - 3))


def test_single_texts_and_bare_ones(plain):
    tokenizer, theirs = plain
    for text in ("", " ", "a", "a b c d e f g"):
        for special in (True, False):
            found = tokenizer.encode(text, max_length=5, special=special)
            expected = theirs(text, max_length=5, truncation=True, add_special_tokens=special)
            assert found.ids == expected["input_ids"]
            assert len(found) + found.cut == len(tokenizer.encode(text, special=special))


def test_words_equal_transformers(both):
    tokenizer, theirs = both

    @FUZZ
    @given(st.lists(TEXTS, min_size=1, max_size=5), st.lists(TEXTS, min_size=1, max_size=3))
    def check(words, pair):
        ours = tokenizer.encode_words(words, pair)
        expected = theirs(words, pair, is_split_into_words=True, return_offsets_mapping=True)
        if tokenizer.normalizer.preset == "bert" or all(map(composed, words + pair)):
            assert same(ours, expected)
        for piece, (start, end), word, segment in zip(
            ours.pieces, ours.offsets, ours.words, ours.segments, strict=True
        ):
            if word is not None and piece not in SPECIAL_PIECES:
                source = (pair if segment else words)[word]
                assert piece.removeprefix("##") in tokenizer.normalizer(source[start:end])

    check()


def test_batches_equal_single_texts(both):
    tokenizer, _ = both

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.lists(st.one_of(TEXTS, st.tuples(TEXTS, TEXTS)), max_size=6), st.sampled_from([None, 6, 12]))
    def check(items, room):
        batch = tokenizer.encode_batch(items, max_length=room)
        alone = [tokenizer.encode(*((i,) if isinstance(i, str) else i), max_length=room) for i in items]
        assert batch == alone

    check()


@pytest.mark.parametrize("length", [0, 1, 5, 6, 7, 11, 23])
@pytest.mark.parametrize("stride", [0, 1, 3])
def test_windows_equal_transformers(plain, length, stride):
    tokenizer, theirs = plain
    text = " ".join("abc"[i % 3] for i in range(length))
    shared = {"max_length": 8, "stride": stride, "return_overflowing_tokens": True, "return_offsets_mapping": True}
    expected = theirs(text, truncation="only_first", **shared)
    found = tokenizer.windows(text, max_length=8, stride=stride)
    assert [w.ids for w in found] == expected["input_ids"]
    assert [w.offsets for w in found] == expected["offset_mapping"]
    shared["max_length"] = 11
    if text:
        expected = theirs("a b c", text, truncation="only_second", **shared)
        found = tokenizer.windows("a b c", text, max_length=11, stride=stride)
        assert [w.ids for w in found] == expected["input_ids"]
        assert [w.offsets for w in found] == expected["offset_mapping"]
        expected = theirs(text, "a b c", truncation="only_first", **shared)
        found = tokenizer.windows(text, "a b c", max_length=11, stride=stride, truncation="first")
        assert [w.ids for w in found] == expected["input_ids"]
        assert [w.segments for w in found] == expected["token_type_ids"]
        assert all(w.cut == 0 for w in found)


def test_what_cannot_work_is_refused(plain):
    tokenizer, _ = plain
    for stride, room in ((-1, 8), (6, 8), (9, 8), (0, 2)):
        with pytest.raises(InputError, match=f"stride {stride} cannot work"):
            tokenizer.windows("a b c", max_length=room, stride=stride)
    with pytest.raises(InputError, match="4 of the other text leave 1 tokens a window"):
        tokenizer.windows("a b c d", "a b c", max_length=8, stride=1)
    with pytest.raises(InputError, match="max_length 3 leaves no room for text beside 3 special"):
        tokenizer.encode("a", "b", max_length=3)
    with pytest.raises(InputError, match="there is one text only"):
        tokenizer.encode("a", max_length=8, truncation="second")
    with pytest.raises(ConfigError, match="longest_first, first, second"):
        tokenizer.encode("a", truncation="only_first")
    with pytest.raises(InputError, match="item 1: a text or a pair"):
        tokenizer.encode_batch(["a", ("a", "b", "c")])
    with pytest.raises(InputError, match="list of words"):
        tokenizer.encode_words("a b")
    with pytest.raises(InputError, match=r"text 1: half of a surrogate pair \('\\ud83d'\) at character 2"):
        tokenizer.encode_batch(["a", "ab\ud83d"])
    with pytest.raises(InputError, match="text 0: half of a surrogate pair"):
        tokenizer.sentence_ids(["\udc00"])
    with pytest.raises(InputError, match="id 99999 is outside"):
        tokenizer.decode([99_999])


def test_decoding_equals_transformers(both):
    tokenizer, theirs = both

    @FUZZ
    @given(st.lists(st.integers(0, len(PIECES) - 1), max_size=12), st.booleans())
    def check(ids, skip):
        assert tokenizer.decode(np.array(ids, dtype=np.int64), skip_special=skip) == theirs.decode(
            ids, skip_special_tokens=skip
        )

    check()


def test_sentence_ids_are_the_same_tokens_without_special_ones(both):
    tokenizer, _ = both

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(TEXTS, max_size=6))
    def check(sentences):
        ids, lengths, word_starts = tokenizer.sentence_ids(sentences)
        encodings = [tokenizer.encode(sentence, special=False) for sentence in sentences]
        assert (ids.dtype, lengths.dtype, word_starts.dtype) == (np.uint32, np.int64, np.bool_)
        assert ids.tolist() == [number for e in encodings for number in e.ids]
        assert lengths.tolist() == [len(e) for e in encodings]
        starts = [i == 0 or e.words[i] != e.words[i - 1] for e in encodings for i in range(len(e))]
        assert word_starts.tolist() == starts

    check()


def test_travels_to_other_processes_and_through_folders(both, tmp_path):
    tokenizer, _ = both
    text = "Returning covid [MASK] Café 한국어"
    tokenizer.save(tmp_path)
    (tmp_path / "vocab_only.txt").write_bytes((tmp_path / "vocab.txt").read_bytes())
    for again in (
        pickle.loads(pickle.dumps(tokenizer)),
        Tokenizer.load(tmp_path),
        Tokenizer.load(tmp_path / "tokenizer.json"),
        Tokenizer.load(
            tmp_path / "vocab_only.txt", lowercase=tokenizer.normalizer.lowercase, preset=tokenizer.normalizer.preset
        ),
    ):
        assert again.encode(text) == tokenizer.encode(text)
        assert again.fingerprint == tokenizer.fingerprint
    assert again.encode(text) == pickle.loads(pickle.dumps(again.encode(text)))


def test_fingerprints_tell_settings_apart():
    vocabulary = Vocabulary(PIECES)
    made = [Tokenizer(vocabulary, Normalizer(preset, low)) for preset in PRESETS for low in (True, False)]
    assert len({t.fingerprint for t in [*made, with_added(in_model=False)]}) == 5
    assert Tokenizer(vocabulary).fingerprint == made[0].fingerprint


def test_added_pieces_survive_our_folders(tmp_path):
    tokenizer = with_added(in_model=False, single_word=True)
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert len(again.vocabulary) == len(PIECES) + 2
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1] == PIECES


@pytest.mark.parametrize("lowercase", [True, False])
def test_reads_what_transformers_saves(tmp_path, lowercase):
    theirs = BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}, do_lower_case=lowercase)
    theirs.add_tokens(["covid"])
    theirs.add_special_tokens({"additional_special_tokens": ["[NEW]"]})
    theirs.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.vocabulary) == len(theirs)
    for text in ("Covid [NEW] covids Café 한국어", "[new] COVID"):
        assert same(tokenizer.encode(text), theirs(text, return_offsets_mapping=True))
    PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), unk_token="[UNK]").save_pretrained(
        tmp_path
    )
    assert Tokenizer.load(tmp_path).normalizer == tokenizer.normalizer


@pytest.mark.parametrize("config", [None, {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}])
def test_reads_old_folders_with_only_a_vocab_txt(tmp_path, config):
    Vocabulary(PIECES).write(tmp_path / "vocab.txt")
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"covid": len(PIECES), "[NEW]": len(PIECES) + 1}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[NEW]"]}))
    theirs = BertTokenizer.from_pretrained(tmp_path, local_files_only=True)
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.vocabulary) == len(theirs)
    for text in ("Covid [NEW] covids Café 한국어", "[ NEW ] COVID É"):
        assert same(tokenizer.encode(text), theirs(text, return_offsets_mapping=True))


def test_a_folder_that_contradicts_itself_is_refused(tmp_path):
    Tokenizer(Vocabulary(PIECES), Normalizer(lowercase=False)).save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"do_lower_case": false', '"do_lower_case": true'))
    with pytest.raises(VocabularyError, match=r"tokenizer_config\.json says .*lowercase=True.*tokenizer\.json says"):
        Tokenizer.load(tmp_path)
    assert Tokenizer.load(tmp_path, lowercase=False).normalizer == Normalizer(lowercase=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "holds a BPE model; WordPiece was expected"),
        ({"model": None}, "has no model"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "BertPreTokenizer was expected"),
        ({"normalizer": {"type": "NFC"}}, "its normalizer is neither"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor does not make"),
        ({"added_tokens": [{"id": 7, "content": "[NEW]"}]}, r"'\[NEW\]' has id 7; \d+ was expected"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_tokenizer_json_of_another_kind_is_refused(tmp_path, change, message):
    Tokenizer(Vocabulary(PIECES)).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}))
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.load(path)


def test_broken_sources_are_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model":\n oops')
    with pytest.raises(VocabularyError, match=r"tokenizer\.json:2: not valid JSON"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with pytest.raises(VocabularyError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Tokenizer.load(tmp_path)
    tokenizer = Tokenizer(Vocabulary(PIECES))
    tokenizer.save(tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    whole["model"]["vocab"][PIECES[-1]] = 99_999
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(VocabularyError, match=f"'{PIECES[-1]}' has id 99999, {len(PIECES) - 1} was expected"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert Parts(tokenizer.vocabulary, tokenizer.normalizer).added == tokenizer.added
