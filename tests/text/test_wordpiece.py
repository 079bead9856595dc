"""The vocabulary trainer: exact counts, hand-computed merges, one outcome for one corpus, and messages with numbers."""

import gzip
import random
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertsmith.corpus.documents import ReadCounts, read_texts
from bertsmith.errors import CorpusError, FileError, VocabularyError
from bertsmith.text import word_counts
from bertsmith.text.normalize import PRESETS, Normalizer
from bertsmith.text.vocabulary import SPECIAL_PIECES
from bertsmith.text.word_counts import WordCounts, count_files, count_words
from bertsmith.text.wordpiece import choose_alphabet, train_wordpiece

KOREAN = "한국어는 대한민국의 공용어이다. 한국어를 쓰는 사람은 한국인만이 아니다. 대한민국의 한국어, 한국어의 대한민국!"
NORMALIZERS = [
    Normalizer(),
    Normalizer(lowercase=False),
    Normalizer(lowercase=False, strip_accents=True),
    Normalizer(split_cjk=False),
    Normalizer(clean=False),
    Normalizer(preset="unicode-safe"),
    Normalizer(preset="unicode-safe", lowercase=False),
]


def given_counts(**words: int) -> WordCounts:
    """WordCounts as if a corpus had these words."""
    return count_words([" ".join([word] * count) for word, count in words.items()], Normalizer())


def slow_counts(texts: list[str], normalizer: Normalizer) -> Counter[str]:
    """The definition: normalize each whole text, pre-tokenize, count."""
    normalize, split = normalizer.build().normalize_str, BertPreTokenizer().pre_tokenize_str
    return Counter(word for text in texts for word, _ in split(normalize(text)) if len(word) <= 100)


def novel(seed: int, words: int = 3_000) -> str:
    """Made-up text with a long tail of words."""
    rng = random.Random(seed)
    stems = ["ka", "lo", "mi", "ret", "sun", "do", "ber", "ing", "ed", "er", "한국", "어는", "é", "日本"]
    lengths = [min(6, int(rng.expovariate(0.6)) + 1) for _ in range(words)]
    return " ".join("".join(rng.choices(stems, k=length)) + rng.choice(["", "", ",", "."]) for length in lengths)


def encoder(pieces: tuple[str, ...], normalizer: Normalizer) -> RustTokenizer:
    model = WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = RustTokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer.build(), BertPreTokenizer()
    return tokenizer


# Merging


def test_merges_by_hand():
    # hug 10, pug 5, pun 12, bun 4, hugs 5. u+g: 20, h+u: 15, p+u: 17, u+n: 16, b+u: 4, g+s: 5.
    # 1. ##u ##g (20) -> ##ug leaves h ##ug 15, p ##ug 5, ##ug ##s 5, p ##u 12, b ##u 4
    # 2. ##u ##n (16) -> ##un leaves p ##un 12, b ##un 4
    # 3. h ##ug (15) -> hug leaves hug ##s 5
    # 4. p ##un (12) -> pun
    # 5. of hug ##s and p ##ug, 5 each, "hug" comes first -> hugs
    # 6. p ##ug -> pug        7. b ##un (4) -> bun
    counts = given_counts(hug=10, pug=5, pun=12, bun=4, hugs=5)
    alphabet = ("b", "g", "h", "n", "p", "s", "u", "##g", "##n", "##s", "##u")
    vocabulary = train_wordpiece(counts, size=5 + len(alphabet) + 7)
    assert vocabulary.pieces == (*SPECIAL_PIECES, *alphabet, "##ug", "##un", "hug", "pun", "hugs", "pug", "bun")


def test_ties_go_to_the_first_string_left_then_right():
    vocabulary = train_wordpiece(given_counts(xz=3, xy=3, ab=3), size=5 + 5 + 3 + 3)
    assert vocabulary.pieces[-3:] == ("ab", "xy", "xz")


def test_overlapping_pairs_merge_from_the_left():
    # x ##a ##a ##a: ##a ##a occurs twice a word (6), merged once: x ##aa ##a
    vocabulary = train_wordpiece(given_counts(xaaa=3), size=5 + 2 + 1 + 3)
    assert vocabulary.pieces[-3:] == ("##aa", "##aaa", "xaaa")


def naive_merges(counts: WordCounts, number: int) -> list[str]:
    """The same algorithm without any bookkeeping: recount all pairs at each step."""
    words = [([word[0], *("##" + c for c in word[1:])], n) for word, n in zip(counts.words, counts.counts, strict=True)]
    known = {piece for word, _ in words for piece in word}
    made: list[str] = []
    while len(made) < number:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, n in words:
            for pair in pairwise(word):
                pairs[pair] += n
        best = min((pair for pair in pairs if pairs[pair] >= 2), key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None:
            break
        piece = best[0] + best[1][2:]
        if piece not in known:
            known.add(piece)
            made.append(piece)
        for word, _ in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [piece]
                at += 1
    return made


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=25))
@example(["aaaaaaa", "aaaa", "aa", "baab", "abab", "abaab"])
@example(["a" * length for length in range(1, 40)])  # several ways to one piece, which must stand once
def test_incremental_counts_equal_recounting(words: list[str]):
    counts = count_words([" ".join(words)] * 2, Normalizer())
    expected = naive_merges(counts, 200)
    alphabet = choose_alphabet(counts).pieces
    vocabulary = train_wordpiece(counts, size=5 + len(alphabet) + len(expected))
    assert list(vocabulary.pieces[5 + len(alphabet) :]) == expected
    with pytest.raises(VocabularyError, match=f"gives {len(vocabulary)} "):
        train_wordpiece(counts, size=len(vocabulary) + 1)


def test_special_pieces_then_unused_then_alphabet():
    vocabulary = train_wordpiece(count_words([novel(1)], Normalizer()), size=120, unused=3)
    assert len(vocabulary) == 120
    assert vocabulary.pieces[:8] == (*SPECIAL_PIECES, "[unused0]", "[unused1]", "[unused2]")
    singles = [piece for piece in vocabulary.pieces[8:] if len(piece) == 1]
    assert singles == sorted(singles) == list(vocabulary.pieces[8 : 8 + len(singles)])


# Words that cannot be had


def test_too_small_a_corpus_names_what_it_gives():
    with pytest.raises(VocabularyError, match=r"too small for 30,522 pieces: it gives 14 .*--size 14 or less"):
        train_wordpiece(given_counts(hug=3, hugs=1))  # 5 special; g h s u ##g ##s ##u; ##ug hug; hug ##s is seen once
    with pytest.raises(VocabularyError, match="no words"):
        train_wordpiece(count_words([" \n", ""], Normalizer()))


def test_too_large_an_alphabet_names_the_limit_that_fits():
    counts = count_words([KOREAN], Normalizer(preset="unicode-safe"))
    with pytest.raises(VocabularyError) as caught:
        train_wordpiece(counts, size=20)
    limit = int(str(caught.value).rpartition("--limit-alphabet ")[2].split()[0])
    assert "20 pieces cannot hold the alphabet" in str(caught.value)
    assert 5 + len(choose_alphabet(counts, limit).pieces) <= 20 < 5 + len(choose_alphabet(counts, limit + 1).pieces)
    needed = int(str(caught.value).partition("--size ")[2].split()[0])
    assert len(train_wordpiece(counts, size=needed)) == needed == 5 + len(choose_alphabet(counts).pieces)


def test_a_limited_alphabet_keeps_the_most_frequent_and_skips_words_it_cannot_spell():
    counts = given_counts(aab=5, aq=4, ba=2)
    alphabet = choose_alphabet(counts, 2)
    assert (alphabet.pieces, alphabet.left_out) == (("a", "b", "##a", "##b"), ("q",))
    assert alphabet.left_out_rate == pytest.approx(4 / 27)
    assert "q" not in "".join(train_wordpiece(counts, size=12, limit_alphabet=2).pieces[5:])


# Counting


TEXTS = st.lists(
    st.text(
        st.one_of(
            st.characters(exclude_categories=["Cs"]),
            st.sampled_from("aB é\u0301\u0308\u0327ΣσIİ한국ᄒ\u1161ᆫバ日。、,.'#[]"),
            st.sampled_from(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u200b\u200d\u2028\u3000\ufeff"),
        ),
        max_size=40,
    ),
    max_size=6,
)


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@settings(deadline=None, max_examples=150)
@given(texts=TEXTS)
@example(texts=["a \u0301b", "e\n\u0301", "\u0301", "A\x1cB", "x\u2028y", "한\u1100\u1161 \u11a8", " \u0338="])
def test_fast_counts_equal_the_definition(normalizer: Normalizer, texts: list[str]):
    counts = count_words(texts, normalizer)
    expected = slow_counts(texts, normalizer)
    assert dict(zip(counts.words, counts.counts, strict=True)) == expected
    assert counts.words == sorted(expected)
    assert (counts.total, counts.distinct) == (expected.total(), len(expected))


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@settings(deadline=None, max_examples=100)
@given(texts=TEXTS)
def test_cutting_anywhere_safe_changes_nothing(normalizer: Normalizer, texts: list[str]):
    text = "。".join(texts) + "日本語、한국어。Ça,va;bien"
    pattern = word_counts.SAFE_CUT_CJK if normalizer.split_cjk else word_counts.SAFE_CUT
    cuts = [match.start() for match in pattern.finditer(text)]
    pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    assert slow_counts(pieces, normalizer) == slow_counts([text], normalizer)


def test_a_long_line_is_cut_without_a_trace(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(word_counts, "SLAB", 64)
    monkeypatch.setattr(word_counts, "LONG_CHUNK", 16)
    line = novel(3).replace("\n", " ") + "日本語、한국어。" * 200 + "aGVsbG8+d29/ybGQ=" * 100
    pieces = list(word_counts._cut(line, word_counts.SAFE_CUT, 64))
    assert "".join(pieces) == line
    assert max(map(len, pieces)) < 64 * 4 < len(line) / 20
    counts = count_words([line], Normalizer())
    assert dict(zip(counts.words, counts.counts, strict=True)) == slow_counts([line], Normalizer())


def test_words_of_more_than_100_characters_are_numbered_not_counted():
    counts = count_words(["a" * 100 + " " + "b" * 101 + " é" + "é" * 150 + " " + "b" * 101], Normalizer())
    assert (counts.words, counts.too_long, counts.insides.keys()) == (["a" * 100], 3, {"a"})


def test_keeping_the_most_frequent_words():
    text = "d d d c c b b a a z"
    kept = {keep: count_words([text], Normalizer(), keep=keep) for keep in range(1, 6)}
    assert [kept[keep].words for keep in range(1, 6)] == [
        ["d"], ["a", "d"], ["a", "b", "d"], ["a", "b", "c", "d"], ["a", "b", "c", "d", "z"]
    ]  # fmt: skip
    assert {(counts.distinct, counts.total, len(counts.starts)) for counts in kept.values()} == {(5, 10, 5)}


def count(files: list[Path], normalizer: Normalizer, **settings: Any) -> WordCounts:
    return count_files(files, normalizer, **({"reader": read_texts, "counts": ReadCounts()} | settings))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    paths = []
    for number in range(4):
        path = folder / f"{number}.txt.gz"
        path.write_bytes(gzip.compress(f"{novel(number, 1_000 + 500 * number)}\n\n{KOREAN}\n".encode()))
        paths.append(path)
    return paths


@pytest.mark.parametrize("preset", PRESETS)
def test_one_corpus_one_vocabulary(files: list[Path], preset: str):
    normalizer = Normalizer(preset=preset)
    reference = count_words(read_texts(files), normalizer)
    outcomes = [
        count(files, normalizer, limit=7),  # some hundred runs, merged in two passes
        count(files[::-1], normalizer, limit=500),
        count([*files[2:], *files[:2]], normalizer),
        count_words(reversed(list(read_texts(files))), normalizer, limit=100),
    ]
    if preset == "bert":  # each worker is a new process, a second to start
        outcomes += [
            count(files, normalizer, workers=2),
            count(files[::-1], normalizer, reader=partial(read_texts, format="auto"), workers=3, limit=50),
        ]
    assert all(counts == reference for counts in outcomes)
    vocabularies = [train_wordpiece(counts, size=400) for counts in outcomes]
    assert len({vocabulary.pieces for vocabulary in vocabularies}) == 1
    assert len(vocabularies[0]) == 400


def test_what_the_reader_counted_is_the_same_with_several_workers(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(b"broken \xff here\n" * (number + 1) + b"<doc id=a>\n</doc>\n")
    files, found = sorted(tmp_path.iterdir()), []
    for workers in (1, 2):
        counts = ReadCounts()
        reader = partial(read_texts, encoding_errors="replace")
        count(files, Normalizer(), reader=reader, counts=counts, workers=workers)
        found.append(counts)
    assert found[0] == found[1]
    assert (found[0].replaced_bytes, found[0].empty_documents) == (6, 3)
    assert found[0].file_bytes == sum(path.stat().st_size for path in files)


def test_many_runs_are_merged_in_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(word_counts, "SLAB", 50)
    text = novel(9, 2_000)
    in_passes = count_words([text], Normalizer(), limit=1, scratch=tmp_path)
    assert in_passes == count_words([text], Normalizer(), limit=10**6)
    assert list(tmp_path.iterdir()) == []


def test_progress_reaches_the_end(files: list[Path]):
    seen: list[tuple[str, int, int]] = []

    def hear(stage: str, done: int, total: int) -> None:
        seen.append((stage, done, total))

    train_wordpiece(count(files, Normalizer(), on_progress=hear), size=400, on_progress=hear)
    size = sum(path.stat().st_size for path in files)
    counted = [(done, total) for stage, done, total in seen if stage == "count"]
    assert (counted, counted[-1]) == (sorted(counted), (size, size))
    assert seen[-1] == ("merge", 400, 400)


def test_a_reader_that_fails_in_a_worker_is_heard(files: list[Path], tmp_path: Path):
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"fine\n\xff\xfe\xfa not\n")
    messages = []
    for workers in (1, 2):
        with pytest.raises((FileError, CorpusError)) as caught:
            count([*files, broken], Normalizer(), workers=workers, scratch=tmp_path)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]
    assert [path.name for path in tmp_path.iterdir()] == ["broken.txt"]
    with pytest.raises(FileError, match="missing"):
        count([tmp_path / "missing"], Normalizer())


# What the vocabulary is for


@pytest.mark.parametrize("preset", PRESETS)
def test_korean(preset: str):
    normalizer = Normalizer(preset=preset)
    counts = count_words([KOREAN], normalizer)
    with pytest.raises(VocabularyError) as caught:
        train_wordpiece(counts)
    vocabulary = train_wordpiece(counts, size=int(str(caught.value).partition("--size ")[2].split()[0]))
    encoding = encoder(vocabulary.pieces, normalizer).encode("한국어")
    assert encoding.tokens == [normalizer("한국어")]
    assert ("한국어" in vocabulary.pieces) == (preset == "unicode-safe")  # the exact preset sees jamo


@settings(deadline=None, max_examples=60)
@given(texts=TEXTS.filter(lambda texts: any(text.strip() for text in texts)), preset=st.sampled_from(PRESETS))
def test_every_word_of_the_corpus_can_be_encoded(texts: list[str], preset: str):
    normalizer = Normalizer(preset=preset)
    counts = count_words([*texts, "known words"], normalizer)
    vocabulary = train_wordpiece(counts, size=5 + len(choose_alphabet(counts).pieces))
    tokenizer = encoder(vocabulary.pieces, normalizer)
    assert not [text for text in texts if "[UNK]" in tokenizer.encode(text, add_special_tokens=False).tokens]
