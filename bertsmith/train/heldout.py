"""How good a pre-training model is on text it does not train on."""

import torch
from torch import nn

from bertsmith.corpus.instances import Instances
from bertsmith.corpus.shards import Corpus
from bertsmith.nn.device import Precision, autocast
from bertsmith.objectives.batch import collate

KINDS = ("loss", "accuracy")
SAMPLE = 2_000_000  # tokens of the training corpus that are counted for the baselines


def evaluate_pretraining(
    model: nn.Module,
    instances: Instances,
    *,
    rows: int = 512,
    batch: int = 32,
    device: torch.device,
    precision: Precision,
    frequencies: torch.Tensor | None = None,
) -> dict[str, float]:
    """Loss and accuracy on `rows` held-out instances, whose pairs and masks are the same every time.

    With `frequencies` (how often each piece stands in the training corpus) also `frequent_accuracy`, that of always
    saying the most frequent piece, and `frequent_loss`, that of saying each piece as often as it is there.
    """
    held = sorted(instances.heldout(rows), key=lambda instance: len(instance.ids), reverse=True)
    sums: dict[str, float] = {}
    model.eval()
    with torch.no_grad():
        for start in range(0, len(held), batch):
            group = collate(held[start : start + batch], device)
            with autocast(device, precision):
                terms = model(group)
            for term in terms:
                right = 0.0 if term.correct is None else float(term.correct)
                for name, value in (("loss", float(term.sum)), ("accuracy", right), ("count", term.count)):
                    sums[f"{term.name}_{name}"] = sums.get(f"{term.name}_{name}", 0.0) + value
    model.train()
    counts = {name.removesuffix("_count"): value for name, value in sums.items() if name.endswith("_count")}
    shares = {
        f"{name}_{kind}": sums[f"{name}_{kind}"] / max(many, 1) for name, many in counts.items() for kind in KINDS
    }
    scores = {**shares, "rows": len(held), "targets": int(counts["mlm"])}
    if frequencies is not None:
        targets = torch.cat([torch.as_tensor(instance.targets) for instance in held])
        scores["frequent_accuracy"] = float((targets == frequencies.argmax()).double().mean())
        scores["frequent_loss"] = float(-log_shares(frequencies)[targets].mean())
    return scores


def piece_frequencies(corpus: Corpus, vocabulary: int) -> torch.Tensor:
    """[vocabulary] how often each piece stands in (the beginning of) a corpus."""
    counts = torch.zeros(vocabulary, dtype=torch.int64)
    left = SAMPLE
    for shard in corpus.shards:
        if left <= 0:
            break
        tokens = torch.from_numpy(shard.tokens[:left].astype("int64"))
        counts += torch.bincount(tokens, minlength=vocabulary)
        left -= len(tokens)
    return counts


def log_shares(frequencies: torch.Tensor) -> torch.Tensor:
    """[vocabulary] log of each piece's share of a text; a piece never seen counts as seen once."""
    smooth = frequencies.double() + 1
    return (smooth / smooth.sum()).log()
