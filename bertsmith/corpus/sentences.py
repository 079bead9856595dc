"""Sentence splitting for English and Korean by rules: one regex finds candidates, a few checks judge each of them.

Own rules and own lists, no statistics. What it knows:
- English: titles and abbreviations, initials, dates and numbered headings, ellipses, quotes that close after the full
  stop; `"Stop!" he said.` stays whole because what follows is in lower case;
- Korean: `했다. 그는` and, where the space was forgotten, `했다.그는`; dates (2020. 8. 13.); quoting (`"갔다." 라고`);
- CJK full stops need no space after them.
Text without any of these marks is one sentence. Nothing but white space is ever lost.
"""

import re

_CLOSERS = "\"'”’»)\\]」』》〉_*"
_CANDIDATE = re.compile(
    r"[.!?…。！？｡\n](?:"  # one character class in front of all: the engine skips quickly to the next stop
    rf"(?<![.!?…][.!?…])(?<=[.!?…])[.!?…]*[{_CLOSERS}]*(?:\[\d+\])*\s+"  # with Wikipedia's [1]
    rf"|(?<=[。！？｡])[。！？｡]*[{_CLOSERS}]*\s*"
    r"|(?<=[가-힣][다요까죠][.!?])[.!?]*(?=[가-힣A-Z“‘])(?!라고|라는|라며|고 |는 )"  # the forgotten space: 했다.그는
    r"|(?<=\n)[ \t]*\n\s*)"
)
_NEXT_WORD = re.compile(r"([A-Za-z]+)(\.?)")
_INITIALS = re.compile(r"(?:[A-Za-z]{1,2}\.)*[A-Za-z]\Z|(?:[A-Za-z]{1,2}\.)+[A-Za-z]{1,2}\Z")
_DATE = re.compile(r"\d{1,4}\.\s?\d{1,2}\.\s?\d{1,2}\Z")
_DATE_REST = re.compile(r"\d{1,2}\.")
_KOREAN_QUOTING = re.compile(r"(?:이?라고|이?라는|이?라며|하고|하며|하는|라면서|고|는|며)(?:\s|\Z)")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end of a sentence.
_TITLES = _words("""
    mr mrs ms dr prof rev hon gen col lt capt sgt maj cpl cmdr adm gov sen rep messrs mme mlle mm pres supt insp e.g i.e
    viz cf vs approx
""")
# Sometimes its end: where a word follows that begins sentences (_STARTERS).
_ENDINGS = _words("""
    st mt ft ch th wm geo chas jas thos robt jr sr inc co ltd corp bros esq al dept univ ave rd blvd
""")
_BEFORE_NUMBERS = _words("""
    no nos vol vols fig figs ch chap sec p pp ed art op bk pt para eq tab jan feb mar apr jun jul aug sep sept oct nov
    dec
""")
_STARTERS = _words("""
    the a an he she it they we you i in on at this that these those there here but and or so if when while as for his
    her its their my our your after before then now no not what who how why where by with from to of some many most all
    one two however although because since yet nobody nothing everyone everything during both each another
""")
_ABBREVIATIONS = _TITLES | _ENDINGS | _BEFORE_NUMBERS
_OPENERS = "\"'“‘«([「『《〈_*"


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, in order, without the white space around them.

    >>> split_sentences('Mr. Brown paid $3.50. "Too much!" he said.')
    ['Mr. Brown paid $3.50.', '"Too much!" he said.']
    >>> split_sentences("비가 왔다. 우산이 없었다.그래서 뛰었다.")
    ['비가 왔다.', '우산이 없었다.', '그래서 뛰었다.']
    """
    sentences = []
    start, length = 0, len(text)
    for match in _CANDIDATE.finditer(text):
        mark, end = match.span()
        if end == length:
            break
        if _is_plain_border(text, start, mark, text[end]) or _is_border(text, start, mark, end):
            sentence = text[start:end].strip()
            if sentence:
                sentences.append(sentence)
            start = end
    sentence = text[start:].strip()
    if sentence:
        sentences.append(sentence)
    return sentences


def _is_plain_border(text: str, start: int, mark: int, following: str) -> bool:
    """The usual case, for speed: a stop after a known whole word, then a capital or a quote. False says nothing."""
    if not (following.isupper() or following in "\"“‘'") or mark - start < 9:
        return False
    if text[mark] in "!?":
        return not "가" <= text[mark - 1] <= "힣"
    if text[mark] != "." or text[mark + 1] == ".":
        return False
    word = text[mark - 8 : mark].rpartition(" ")[2]
    return len(word) > 1 and word.isascii() and word.isalpha() and word.lower() not in _ABBREVIATIONS


def _is_border(text: str, start: int, mark: int, end: int) -> bool:
    """Whether a sentence that began at `start` ends with the stop at `mark`; the next one would begin at `end`."""
    stop, following = text[mark], text[end]
    if stop == "\n":
        return True
    if following in ".!?…,;:-–—~" or mark == start:  # spaced ellipses, dashes, a stop without a sentence
        return False
    before = text[mark - 1]
    if stop in "。！？｡":
        return not (text[end - 1] in "」』" and "ぁ" <= following <= "ん")  # 「…。」と言った
    if "가" <= before <= "힣" or "가" <= following <= "힣":
        return _is_korean_border(text, start, mark, end, before)
    if following.islower() or (following in "([" and text[end + 1 : end + 2].islower()):
        return False
    if stop == "." and text[mark + 1] != ".":
        return before.isspace() or not _is_abbreviation(text, start, mark, end, before)
    if stop in ".…":  # an ellipsis: "Well... I never"
        return not (following == "I" and not text[end + 1 : end + 2].isalnum())
    return True


def _is_abbreviation(text: str, start: int, mark: int, end: int, before: str) -> bool:
    """Whether the single full stop at `mark` belongs to the word before it and ends nothing."""
    tail = text[max(start, mark - 10) : mark]
    word = tail[max(map(tail.rfind, " -—(\n")) + 1 :].lstrip(_OPENERS)
    if not word or len(word) > 8:
        return False
    if before.isdigit():
        if _DATE_REST.match(text, end):  # 2020. 8. 13.
            return True
        first = not text[start : mark - len(word)][:8].strip(_OPENERS + " ")
        return first and word.isdigit() and len(word) <= 3  # "1. Introduction"
    name = word.lower()
    if name in _TITLES:
        return True
    if name in _BEFORE_NUMBERS and text[end].isdigit():
        return True
    if name not in _ENDINGS and not _INITIALS.match(word):
        return False
    following = _NEXT_WORD.match(text, end + (text[end] in _OPENERS))
    if following is None:
        return text[end] not in _OPENERS and name not in _ENDINGS
    if len(following[1]) == 1 and following[2]:  # J. A. Smith
        return True
    return following[1].lower() not in _STARTERS or following[1].islower()


def _is_korean_border(text: str, start: int, mark: int, end: int, before: str) -> bool:
    stop, following = text[mark], text[end]
    hangul_before = "가" <= before <= "힣"
    if text[end - 1].isspace():
        closed = text[mark:end].rstrip().strip(".!?…") != ""
        if closed and _KOREAN_QUOTING.match(text, end):  # "갔다." 라고 말했다
            return False
    if stop == "." and text[mark + 1] != ".":
        if hangul_before:
            return mark - start > 1 or before in "네예"  # "가. 개요" is a numbered heading
        if before.isdigit():
            is_date = _DATE.search(text, max(start, mark - 12), mark) is not None
            return not is_date and text[max(start, mark - 40) : mark].strip(_OPENERS + " 0123456789.") != ""
        return not before.isspace() and not _is_abbreviation(text, start, mark, end, before)
    if stop in ".…" and hangul_before and "가" <= following <= "힣":  # 그런데... 나는
        return before in "다요까죠"
    return True
