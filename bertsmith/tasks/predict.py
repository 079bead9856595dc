"""Answers of a model for any number of texts: hidden states, filled masks, labels.

Texts are sorted by length, cut into batches of at most `budget` tokens, and answered in the order they came. Whatever
stands beside a text in its batch does not change its answer. Modules are put into evaluation mode and left there.

Dimension key: T tokens of the batch, R rows, D model width, V pieces, K masks, C labels.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bertsmith.base.log import Log
from bertsmith.errors import InputError
from bertsmith.models.bert import Bert
from bertsmith.nn.device import Precision, autocast
from bertsmith.nn.heads import MlmHead
from bertsmith.tasks.label import LabelBatch, LabelModel, collate
from bertsmith.text.tokenizer import Encoding, Tokenizer

Item = str | tuple[str, str]
MOST_CHARACTERS = 1_000_000  # of one text
BUDGET = 4_096  # tokens a batch: enough to keep two cores busy with base, little enough for its activations


@dataclass(frozen=True)
class LabelPrediction:
    """The most probable label, and the probability of each in the model's order."""

    label: str
    probabilities: dict[str, float]


def encode_texts(
    encoder: Bert,
    tokenizer: Tokenizer,
    items: Sequence[Item],
    *,
    max_length: int | None = None,
    budget: int = BUDGET,
    precision: Precision | None = None,
    log: Log | None = None,
) -> list[np.ndarray]:
    """Hidden states [tokens, D] (float32) of each text or pair, [CLS] and [SEP] included.

    Longer texts are cut at `max_length` (the model's own by default), with one warning that counts them.
    """
    encodings = encode(tokenizer, items, max_length=_length(encoder, max_length), log=log)

    def answer(batch: LabelBatch) -> list[np.ndarray]:
        hidden_TD = encoder(batch.ids_T, batch.rows, batch.segments_T).float().cpu()
        return [part.numpy().copy() for part in hidden_TD.split(list(batch.rows.lengths))]

    return _in_batches(encoder, encodings, answer, budget, precision)


def predict_labels(
    model: LabelModel,
    tokenizer: Tokenizer,
    items: Sequence[Item],
    labels: Sequence[str],
    *,
    max_length: int | None = None,
    budget: int = BUDGET,
    precision: Precision | None = None,
    log: Log | None = None,
) -> list[LabelPrediction]:
    """The label of each text or pair; `labels` are the model's names in the order of its classes."""
    encodings = encode(tokenizer, items, max_length=_length(model.encoder, max_length), log=log)
    return predict_encoded(model, encodings, labels, budget=budget, precision=precision)


def predict_encoded(
    model: LabelModel,
    encodings: Sequence[Encoding],
    labels: Sequence[str],
    *,
    budget: int = BUDGET,
    precision: Precision | None = None,
) -> list[LabelPrediction]:
    """`predict_labels` for texts that are already tokenized."""

    def answer(batch: LabelBatch) -> list[LabelPrediction]:
        logits_RC = model.logits(batch)
        if logits_RC.shape[1] != len(labels):
            raise InputError(f"{len(labels)} label names for a head of {logits_RC.shape[1]} classes")
        return [
            LabelPrediction(labels[int(np.argmax(row))], dict(zip(labels, map(float, row), strict=True)))
            for row in logits_RC.double().softmax(-1).cpu().numpy()
        ]

    return _in_batches(model, encodings, answer, budget, precision)


def fill_masks(
    encoder: Bert,
    mlm: MlmHead,
    tokenizer: Tokenizer,
    text: Item,
    top: int = 5,
    *,
    max_length: int | None = None,
    precision: Precision | None = None,
) -> list[list[tuple[str, float]]]:
    """For each [MASK] in `text`, in order, the `top` most probable pieces with their probabilities.

    No piece is left out, special ones included, so that probabilities
    are those of the model (Hugging Face's fill-mask does the same).
    """
    if top < 1:
        raise InputError(f"top {top}: at least 1 was expected")
    _check_size(text, "the text")
    mask, most = tokenizer.vocabulary.mask_id, _length(encoder, max_length)
    whole = tokenizer.encode(*_pair(text))
    if mask not in whole.ids:
        raise InputError(f"no [MASK] in {str(text)[:80]!r}; write [MASK], in capitals, where a word is to be filled in")
    if len(whole.ids) > most:
        raise InputError(f"the text has {len(whole.ids):,} tokens, beyond the {most:,} the model takes; shorten it")
    with _answering(encoder, precision), _answering(mlm, precision):
        batch = collate([whole], device=device_of(encoder))
        hidden_TD = encoder(batch.ids_T, batch.rows, batch.segments_T)
        at_K = torch.tensor([place for place, piece in enumerate(whole.ids) if piece == mask], device=hidden_TD.device)
        probabilities_KV = mlm(hidden_TD[at_K]).double().softmax(-1).cpu()
    pieces = tokenizer.vocabulary.pieces
    best = probabilities_KV.topk(min(top, len(pieces)))
    return [
        [(pieces[int(piece)], float(value)) for piece, value in zip(ids, values, strict=True)]
        for ids, values in zip(best.indices, best.values, strict=True)
    ]


def encode(
    tokenizer: Tokenizer, items: Sequence[Item], *, max_length: int, log: Log | None = None, what: str = "texts"
) -> list[Encoding]:
    """Every item tokenized and cut at `max_length`, longest first; one warning counts what was cut."""
    if isinstance(items, str):
        raise InputError("a list of texts was expected, found one text; put it in a list")
    for number, item in enumerate(items, start=1):
        _check_size(item, f"number {number} of the {what}")
    encodings = tokenizer.encode_batch(list(items), max_length=max_length)
    cut = [encoding.cut for encoding in encodings if encoding.cut]
    if cut and log is not None:
        log.warn(
            f"{len(cut):,} of {len(encodings):,} {what} are longer than {max_length} tokens; "
            f"{sum(cut):,} tokens were cut off"
        )
    return encodings


def _check_size(item: Item, name: str) -> None:
    """Tokenizing takes some 80 bytes a character; a file put in place of a text must not take all memory."""
    size = sum(len(text) for text in _pair(item) if text is not None)
    if size > MOST_CHARACTERS:
        raise InputError(
            f"{name} has {size:,} characters, and at most {MOST_CHARACTERS:,} are taken at a time; split it into texts "
            f"(it begins {str(item)[:40]!r})"
        )


def batches_within(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Every index once, the longest first, in batches of at most `budget` tokens (a longer text stands alone)."""
    batches: list[list[int]] = []
    room = -1
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if lengths[index] > room:
            batches.append([])
            room = budget
        batches[-1].append(index)
        room -= lengths[index]
    return batches


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _in_batches(
    module: nn.Module,
    encodings: Sequence[Encoding],
    answer: Callable[[LabelBatch], list],
    budget: int,
    precision: Precision | None,
) -> list:
    answers: list = [None] * len(encodings)
    with _answering(module, precision):
        for indices in batches_within([len(encoding.ids) for encoding in encodings], budget):
            batch = collate([encodings[index] for index in indices], device=device_of(module))
            for index, result in zip(indices, answer(batch), strict=True):
                answers[index] = result
    return answers


@contextlib.contextmanager
def _answering(module: nn.Module, precision: Precision | None) -> Iterator[None]:
    module.eval()
    with (
        torch.inference_mode(),
        contextlib.nullcontext() if precision is None else autocast(device_of(module), precision),
    ):
        yield


def _length(encoder: Bert, max_length: int | None) -> int:
    most = encoder.config.max_length
    if max_length is not None and max_length > most:
        raise InputError(f"max_length {max_length}: this model takes at most {most} tokens")
    return max_length or most


def _pair(text: Item) -> tuple[str, str | None]:
    return (text, None) if isinstance(text, str) else text
