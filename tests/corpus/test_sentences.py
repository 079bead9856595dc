"""Hand-written cases in both languages, and that nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.sentences import split_sentences

# "|" marks the borders that are expected; what is between two of them is one sentence.
ENGLISH = [
    "He left.|She stayed.",
    "Mr. Brown met Mrs. Green.|They talked.",
    "Dr. Kim (Ph.D. Harvard) spoke.|Nobody asked.",
    "Messrs. Kenge and Carboy wrote.|We read it.",
    "J. A. Smith left.|J. R. R. Tolkien wrote.",
    "It was I.|He knew.",
    "He joined the U.S. Army in May.|That was all.",
    "He lived in the U.S.|The war was over.",
    "They sell cats, dogs, etc.|Prices vary.",
    "Use a short name, e.g. Foo or Bar.|Then save.",
    "It costs $3.50 a piece.|Take two.",
    "Pi is 3.14159.|It goes on.",
    "See fig. 3 and vol. 2 of the work.|It is there.",
    "On Jan. 5 we met.|It rained.",
    "No. 5 is alive.|No.|He isn't.",
    "In 1984.|He left.",
    "He came at 4 A. M., with a lamp.|It was dark.",
    "He came at 5 p.m. on Friday.|It was dark.",
    "1. Introduction of the plan.|2. Methods of the plan.",
    '"Stop!" he said.|"Why?" she asked.',
    '"I am here."|"So am I."',
    "“Ah!”|He laughed.",
    "'What!'|She had gone.",
    "He said “no.”|Then he left.",
    "What?!|No!|Yes.",
    "Wait... what?|Nothing.",
    "Well... I never.|Really.",
    "He paused...|The door opened.",
    "He left . . .|Then he came back.",
    "Oh! what a day it was.|Indeed.",
    "Is it so? he wondered.|It was.",
    "The end. - Or was it?|Yes.",
    "Go to St. Paul's.|He lives on Main St.|The end.",
    "Acme Inc. Paris opened.|It closed.",
    "It works.[1]|So they say.[2][3]|Done.",
    "(He left.)|Then it rained.",
    "See https://a.com/b?x=1.html for more.|Good.",
    "os.path.join is used.|It joins.",
    "One line\nand its rest.|Two.",
    "no stop at all",
    "A heading\n\n|A paragraph.",
    "I know--Mr. Smith told me.|So there.",
    "_Hamlet._|_Exit._|He goes.",
]
KOREAN = [
    "비가 왔다.|우산이 없었다.",
    "비가 왔다.|우산이 없었다.|그래서 뛰었다.",
    "어디 가세요?|집에 가요.",
    "정말요!|네.|그렇습니다.",
    '그는 "가자!" 하고 외쳤다.|모두 뛰었다.',
    '"왔다." 라고 했다.|끝났다.',
    "“안녕하세요.”|그가 말했다.",
    '"간다."고 말했다.|끝.',
    "2020. 8. 13. 그는 떠났다.|나는 남았다.",
    "나는 2020. 8. 13.에 왔다.|그는 갔다.",
    "1945. 8. 15. 광복을 맞았다.|기뻤다.",
    "가. 개요는 이렇다.|나. 본론이다.",
    "1. 개요를 쓴다.|2. 본론을 쓴다.",
    "값은 3.5배이다.|비싸다.",
    "그런데... 나는 갔다.|그는 남았다.",
    "했다...|그리고 끝났다.",
    "미국(U.S. Army)에 갔다.|돌아왔다.",
    "그는 박사(Ph.D. 소지자)이다.|교수이다.",
    "iPhone을 샀다.|iPad도 샀다.",
    "좋아ㅋㅋ 정말 좋아",
    "그는 1990년.|다음 해 떠났다.",
]
NO_SPACE = [
    ("우산이 없었다.그래서 뛰었다.", ["우산이 없었다.", "그래서 뛰었다."]),
    ("맞나요?아니에요.그래요.", ["맞나요?", "아니에요.", "그래요."]),
    ("갔다.라고 썼다.", ["갔다.라고 썼다."]),
    ("소설이다.(연합) 네.", ["소설이다.(연합) 네."]),
    ("가.나.다.라.", ["가.나.다.라."]),
    ("他来了。我走了。", ["他来了。", "我走了。"]),
    ("「行く。」と言った。次。", ["「行く。」と言った。", "次。"]),
    ("すごい！本当？はい。", ["すごい！", "本当？", "はい。"]),
]


@pytest.mark.parametrize("case", ENGLISH + KOREAN)
def test_borders(case):
    expected = [part.strip() for part in case.split("|")]
    joined = case.replace("\n\n|", "\n\n").replace("|", " ")
    assert split_sentences(joined) == expected


@pytest.mark.parametrize(("text", "sentences"), NO_SPACE)
def test_borders_without_a_space(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize("text", ["", " ", "\n\n\t ", "\u3000"])
def test_nothing_gives_no_sentence(text):
    assert split_sentences(text) == []


@pytest.mark.parametrize("text", [".", "...", ". . .", "。", '."', "a", "가", "A.", "1.", "!?"])
def test_tiny_texts_survive(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


_ALPHABET = st.sampled_from(
    [*list(" \n.!?…。？\"'”’)]([“」다요가는AaIeg1 9-,·"), "Mr", "U.S", "e.g", ". . ", "[1]", "이다.", "라고"]
)


@given(st.one_of(st.text(), st.lists(_ALPHABET, max_size=60).map("".join)))
def test_every_character_but_white_space_is_kept_in_order(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_a_long_text_is_split_in_linear_time():
    assert len(split_sentences("A short one. " * 100_000)) == 100_000
    assert len(split_sentences("x" * 1_000_000)) == 1
    assert len(split_sentences(". " * 200_000)) == 1
    assert len(split_sentences("." * 1_000_000 + "x")) == 1
