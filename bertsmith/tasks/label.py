"""One label for each text or pair: the pooled [CLS], dropout, a linear layer, cross-entropy (Devlin et al., 2019, 4.1).

Dimension key: T tokens of the batch, R rows, D model width, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertsmith.errors import InputError
from bertsmith.models.bert import Bert
from bertsmith.nn.heads import LabelHead
from bertsmith.nn.rows import Rows, lay_out
from bertsmith.objectives.terms import Term
from bertsmith.text.tokenizer import Encoding


@dataclass(frozen=True)
class LabelBatch:
    """Texts laid end to end, and the class number of each row where it is known."""

    ids_T: Tensor
    rows: Rows
    segments_T: Tensor
    labels_R: Tensor | None


def collate(
    encodings: Sequence[Encoding], labels: Sequence[int] | None = None, device: torch.device | None = None
) -> LabelBatch:
    """A batch of encoded texts, in the order given."""
    if labels is not None and len(labels) != len(encodings):
        raise InputError(f"{len(encodings)} texts and {len(labels)} labels; one label for each text was expected")
    ids_T, rows = lay_out([encoding.ids for encoding in encodings], device)
    segments_T = torch.tensor([segment for encoding in encodings for segment in encoding.segments], device=device)
    return LabelBatch(ids_T, rows, segments_T, None if labels is None else torch.tensor(labels, device=device))


class LabelModel(nn.Module):
    """An encoder and a label head; called with a batch, it gives the loss term the training loop takes."""

    def __init__(self, encoder: Bert, head: LabelHead):
        super().__init__()
        self.encoder, self.head = encoder, head

    def logits(self, batch: LabelBatch) -> Tensor:
        """Scores [R, C] before softmax, float32."""
        hidden_TD = self.encoder(batch.ids_T, batch.rows, batch.segments_T)
        logits_RC: Tensor = self.head(self.encoder.pool(hidden_TD, batch.rows))
        return logits_RC.float()

    def forward(self, batch: LabelBatch) -> list[Term]:
        if batch.labels_R is None:
            raise InputError("a batch without labels has no loss; ask for its logits")
        logits_RC = self.logits(batch)
        loss = functional.cross_entropy(logits_RC, batch.labels_R, reduction="sum")
        correct = (logits_RC.detach().argmax(-1) == batch.labels_R).sum()
        return [Term("label", 1.0, loss, batch.rows.count, correct)]
