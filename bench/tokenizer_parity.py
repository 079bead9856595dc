"""Ids and offsets of real English and Korean lines, ours beside transformers' fast BertTokenizer.

    python bench/tokenizer_parity.py --data DIR [--lines 50000]

DIR holds text_en/heldout.txt.gz, text_ko/*.tar.gz and vocabs/. Takes English lines up to half of the number, the rest
is Korean. Writes bench/records/tokenizer_parity.json; exit code 1 on any difference. Decoded text and the slice promise
(normalize(text[start:end]) contains the piece) are checked as well.
"""

import argparse
import gzip
import json
import sys
import tarfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import tokenizers
import transformers
from record import write_record
from transformers import BertTokenizer

from bertsmith.text.tokenizer import Tokenizer

VOCABULARIES = {
    "bert-base-uncased_vocab.txt": True,
    "bert-base-cased_vocab.txt": False,
    "bert-base-multilingual-cased_vocab.txt": False,
    "koelectra_vocab.txt": False,
}
BATCH = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=50_000, help="lines of both languages together")
    arguments = parser.parse_args()
    lines = list(islice(english(arguments.data), arguments.lines // 2))
    counts = {"english": len(lines), "korean": arguments.lines - len(lines)}
    lines += islice(korean(arguments.data), counts["korean"])
    rows = []
    for name, lowercase in VOCABULARIES.items():
        rows.append(compare(arguments.data / "vocabs" / name, lowercase, lines))
        print(json.dumps(rows[-1]), flush=True)
    write_record(
        "tokenizer_parity", lines=counts, results=rows,
        tokenizers=tokenizers.__version__, transformers=transformers.__version__,
    )  # fmt: skip
    return int(any(row["mismatches"] or row["slices_off"] or row["decoded_otherwise"] for row in rows))


def compare(path: Path, lowercase: bool, lines: list[str]) -> dict[str, object]:
    ours = Tokenizer.load(path, lowercase=lowercase)
    theirs = BertTokenizer(vocab=str(path), do_lower_case=lowercase)
    ids_off = offsets_off = slices_off = decoded_otherwise = tokens = 0
    seconds = {"ours": 0.0, "transformers": 0.0}
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        began = time.perf_counter()
        found = ours.encode_batch(batch)
        middle = time.perf_counter()
        expected = theirs(batch, return_offsets_mapping=True)
        seconds["ours"] += middle - began
        seconds["transformers"] += time.perf_counter() - middle
        for text, encoding, ids, offsets in zip(
            batch, found, expected["input_ids"], expected["offset_mapping"], strict=True
        ):
            tokens += len(ids)
            ids_off += encoding.ids != ids
            offsets_off += encoding.offsets != offsets
            decoded_otherwise += ours.decode(ids) != theirs.decode(ids, skip_special_tokens=True)
            slices_off += any(
                piece.removeprefix("##") not in ours.normalizer(text[a:b])
                for piece, (a, b), word in zip(encoding.pieces, encoding.offsets, encoding.words, strict=True)
                if word is not None and piece != "[UNK]"
            )
    return {
        "vocabulary": path.name,
        "lowercase": lowercase,
        "n": len(lines),
        "tokens": tokens,
        "mismatches": ids_off + offsets_off,
        "lines_with_other_ids": ids_off,
        "lines_with_other_offsets": offsets_off,
        "slices_off": slices_off,
        "decoded_otherwise": decoded_otherwise,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def english(data: Path) -> Iterator[str]:
    with gzip.open(data / "text_en" / "heldout.txt.gz", "rt", encoding="utf-8") as file:
        yield from kept(file)


def korean(data: Path) -> Iterator[str]:
    for archive in sorted((data / "text_ko").glob("*.tar.gz")):
        with tarfile.open(archive) as files:
            for member in files:
                content = files.extractfile(member)
                if content is not None:
                    yield from kept(line.decode() for line in content)


def kept(lines: Iterator[str]) -> Iterator[str]:
    return (line.rstrip("\n") for line in lines if line.strip() and not line.startswith(("<doc", "</doc")))


if __name__ == "__main__":
    sys.exit(main())
