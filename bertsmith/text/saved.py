"""Tokenizers on disk: vocab.txt, tokenizer.json, and folders that hold them (ours and Hugging Face's).

What AutoTokenizer does with a folder decides what is written and how it is read: with tokenizer_class BertTokenizer the
normalizer comes from tokenizer_config.json and the one in tokenizer.json is ignored; with PreTrainedTokenizerFast it is
the other way round. A folder whose two files contradict each other is refused, not guessed at.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertsmith.base.files import as_written, read_text, write_file
from bertsmith.errors import VocabularyError
from bertsmith.text.normalize import Normalizer, from_tokenizers_json
from bertsmith.text.vocabulary import LONGEST_WORD, SPECIAL_PIECES, Vocabulary, read_vocabulary

CONFIG_DECIDES = {f"{name}Tokenizer{kind}" for name in ("Bert", "Electra", "DistilBert") for kind in ("", "Fast")}
EXPECTED = "a tokenizer as the tokenizers library or transformers writes it was expected"
FIELDS = {
    "[PAD]": "pad_token",
    "[UNK]": "unk_token",
    "[CLS]": "cls_token",
    "[SEP]": "sep_token",
    "[MASK]": "mask_token",
}


@dataclasses.dataclass(frozen=True)
class AddedPiece:
    """A piece looked for in the text before it is cut into words: the five special ones, and what users added."""

    content: str
    special: bool = True
    normalized: bool = False  # looked for in the normalized text, not in the text as given
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    in_model: bool = True  # False: has an id behind WordPiece's own pieces, which never produce it


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a tokenizer is made of; `vocabulary` holds the added pieces too, in the order of their ids."""

    vocabulary: Vocabulary
    normalizer: Normalizer
    added: tuple[AddedPiece, ...] = tuple(map(AddedPiece, SPECIAL_PIECES))


def read_parts(source: str | Path, *, lowercase: bool | None = None, preset: str | None = None) -> Parts:
    """Reads a vocab.txt, a tokenizer.json, or a folder; `lowercase` and `preset` overrule what stands there."""
    path = Path(source)
    if path.is_dir():
        with as_written(path, VocabularyError, EXPECTED):
            parts = _from_folder(path, chosen=lowercase is not None or preset is not None)
    elif path.suffix == ".json":
        with as_written(path, VocabularyError, EXPECTED):
            parts = _from_json(path)
    else:
        # Nothing in a vocab.txt says whether it is cased; lower-casing is transformers' default as well.
        parts = Parts(read_vocabulary(path), Normalizer())
    normalizer = parts.normalizer
    if preset is not None:
        normalizer = dataclasses.replace(normalizer, preset=preset)
    if lowercase is not None and lowercase != normalizer.lowercase:
        normalizer = dataclasses.replace(normalizer, lowercase=lowercase, strip_accents=None)
    return dataclasses.replace(parts, normalizer=normalizer)


def write_parts(folder: Path, parts: Parts, tokenizer_json: str, *, max_length: int | None) -> None:
    """Writes vocab.txt (WordPiece's own pieces), tokenizer.json and tokenizer_config.json."""
    outside = {piece.content for piece in parts.added if not piece.in_model}
    write_file(folder / "vocab.txt", "".join(f"{p}\n" for p in parts.vocabulary.pieces if p not in outside))
    write_file(folder / "tokenizer.json", tokenizer_json)
    config = _config(parts, max_length)
    write_file(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2) + "\n")


def _config(parts: Parts, max_length: int | None) -> dict[str, Any]:
    normalizer = parts.normalizer
    decoder = {}
    for piece in parts.added:
        flags = dataclasses.asdict(piece)
        del flags["in_model"]
        decoder[str(parts.vocabulary.id_of(piece.content))] = flags
    extra = [p.content for p in parts.added if p.special and p.content not in SPECIAL_PIECES]
    # BertTokenizer has no switch for `clean`.
    plain = normalizer.preset == "bert" and normalizer.clean
    return {
        "tokenizer_class": "BertTokenizer" if plain else "PreTrainedTokenizerFast",
        "do_lower_case": normalizer.lowercase,
        "strip_accents": normalizer.strip_accents,
        "tokenize_chinese_chars": normalizer.split_cjk,
        **({} if max_length is None else {"model_max_length": max_length}),
        **{field: piece for piece, field in FIELDS.items()},
        **({"extra_special_tokens": extra} if extra else {}),
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": decoder,
    }


def _from_folder(folder: Path, *, chosen: bool) -> Parts:
    config = _read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    stated = Normalizer.from_mapping(
        {
            "lowercase": config.get("do_lower_case", True),
            "strip_accents": config.get("strip_accents"),
            "split_cjk": config.get("tokenize_chinese_chars", True),
        },
        where=str(folder / "tokenizer_config.json"),
    )
    if (folder / "tokenizer.json").is_file():
        parts = _from_json(folder / "tokenizer.json")
        found = parts.normalizer
        if config.get("tokenizer_class") in CONFIG_DECIDES and found != stated and not chosen:
            raise VocabularyError(
                f"{folder}: tokenizer_config.json says {_told(stated)}, tokenizer.json says {_told(found)}; "
                "transformers follows the first. Make them agree, or say which with lowercase= or preset=."
            )
        return parts
    if not (folder / "vocab.txt").is_file():
        raise VocabularyError(f"{folder}: holds neither tokenizer.json nor vocab.txt; name a folder or file with one")
    base = read_vocabulary(folder / "vocab.txt")
    return _with_added(base.pieces, _added_of_folder(folder, config, base), stated, str(folder))


def _told(normalizer: Normalizer) -> str:
    return ", ".join(f"{name}={value}" for name, value in normalizer.to_mapping().items())


def _from_json(path: Path) -> Parts:
    whole = _read_json(path)
    model = whole.get("model")
    if not isinstance(model, Mapping):
        raise VocabularyError(f"{path}: has no model; a tokenizer.json of the tokenizers library was expected")
    # Files of early versions do not name the type; only WordPiece has a prefix and no merges.
    kind = model.get("type") or ("WordPiece" if "merges" not in model and "max_input_chars_per_word" in model else None)
    if kind != "WordPiece" or not isinstance(model.get("vocab"), Mapping):
        raise VocabularyError(f"{path}: holds a {kind or 'nameless'} model; WordPiece was expected")
    expected: dict[str, Any] = {
        "continuing_subword_prefix": "##",
        "unk_token": "[UNK]",
        "max_input_chars_per_word": LONGEST_WORD,
    }
    for name, value in expected.items():
        if model.get(name, value) != value:
            raise VocabularyError(f"{path}: model.{name} is {model[name]!r}; only {value!r} is supported")
    _check_surroundings(whole, path)
    pieces = _in_order(model["vocab"], path)
    added = [(entry["id"], _added(entry)) for entry in whole.get("added_tokens") or ()]
    return _with_added(pieces, added, from_tokenizers_json(whole.get("normalizer"), where=str(path)), str(path))


def _check_surroundings(whole: Mapping[str, Any], path: Path) -> None:
    """Refuses a tokenizer.json that cuts words or adds [CLS] and [SEP] in another way than BERT."""
    cutter = whole.get("pre_tokenizer")
    if not isinstance(cutter, Mapping) or cutter.get("type") != "BertPreTokenizer":
        raise VocabularyError(f"{path}: pre_tokenizer is {json.dumps(cutter)[:120]}; BertPreTokenizer was expected")
    frame = whole.get("post_processor")
    if frame is None:
        return  # made by hand from a vocabulary; encoding adds what BERT needs
    if frame.get("type") == "BertProcessing":
        good = (frame.get("cls") or [None])[0] == "[CLS]" and (frame.get("sep") or [None])[0] == "[SEP]"
    else:
        first = [_special("[CLS]", 0), _sequence("A", 0), _special("[SEP]", 0)]
        second = [_sequence("B", 1), _special("[SEP]", 1)]
        good = frame.get("single") == first and frame.get("pair") == first + second
    if not good:
        raise VocabularyError(f"{path}: post_processor does not make [CLS] A [SEP] and [CLS] A [SEP] B [SEP], as BERT")


def _special(piece: str, segment: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": piece, "type_id": segment}}


def _sequence(name: str, segment: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment}}


def _in_order(ids: Mapping[str, int], path: Path) -> list[str]:
    pieces = sorted(ids, key=ids.__getitem__)
    for expected, piece in enumerate(pieces):
        if ids[piece] != expected:
            raise VocabularyError(
                f"{path}: {piece!r} has id {ids[piece]}, {expected} was expected; ids must count from 0 without gaps"
            )
    return pieces


def _added(entry: Mapping[str, Any]) -> AddedPiece:
    names = ("special", "normalized", "single_word", "lstrip", "rstrip")
    flags = {"special": False} | {name: entry[name] for name in names if name in entry}
    if not isinstance(entry["content"], str) or not all(isinstance(flag, bool) for flag in flags.values()):
        raise TypeError(f"an added token was expected, found {entry!r}")
    return AddedPiece(entry["content"], **flags)


def _added_of_folder(folder: Path, config: Mapping[str, Any], base: Vocabulary) -> list[tuple[int, AddedPiece]]:
    """Added pieces of a folder without tokenizer.json, as old versions of transformers left it."""
    decoder = config.get("added_tokens_decoder")
    if decoder:
        return [(int(number), _added(entry)) for number, entry in decoder.items()]
    sources = [config]
    if (folder / "special_tokens_map.json").is_file():
        sources.append(_read_json(folder / "special_tokens_map.json"))
    named = [entry for source in sources for entry in _listed(source)]
    special = {entry if isinstance(entry, str) else entry["content"]: entry for entry in named}
    found: dict[str, tuple[int, AddedPiece]] = {}
    if (folder / "added_tokens.json").is_file():
        for content, number in _read_json(folder / "added_tokens.json").items():
            # As the folder says and transformers 4 read it; version 5 takes those of special_tokens_map.json as plain.
            is_special = content in special or content in SPECIAL_PIECES
            found[content] = (number, AddedPiece(content, special=is_special, normalized=not is_special))
    after = max([len(base) - 1, *(number for number, _ in found.values())]) + 1
    for content, entry in special.items():
        known = base.id_of(content)
        number = known if known is not None else found[content][0] if content in found else after
        after += number == after
        found[content] = (number, AddedPiece(content) if isinstance(entry, str) else _added({**entry, "special": True}))
    return list(found.values())


def _listed(source: Mapping[str, Any]) -> Iterable[Any]:
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = source.get(name) or ()
        yield from listed.values() if isinstance(listed, Mapping) else listed


def _with_added(
    pieces: Iterable[str], added: Iterable[tuple[int, AddedPiece]], normalizer: Normalizer, where: str
) -> Parts:
    """`added` come with their ids: those of pieces that are there already, or the next ones behind them."""
    pieces = list(pieces)
    number_of = {piece: index for index, piece in enumerate(pieces)}
    kept = {piece: AddedPiece(piece) for piece in SPECIAL_PIECES}
    for number, piece in sorted(added, key=lambda pair: pair[0]):
        known = number_of.get(piece.content)
        if known is None:
            known = len(pieces)
            pieces.append(piece.content)
            piece = dataclasses.replace(piece, in_model=False)
        if known != number:
            raise VocabularyError(f"{where}: added token {piece.content!r} has id {number}; {known} was expected")
        kept[piece.content] = piece
    special = [piece.content for piece in kept.values() if piece.special and piece.content not in SPECIAL_PIECES]
    return Parts(Vocabulary(pieces, where=where, more_special=special), normalizer, tuple(kept.values()))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise VocabularyError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise VocabularyError(f"{path}: a JSON object was expected, found {type(value).__name__}")
    return value
