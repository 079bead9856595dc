"""Next sentence prediction (Devlin et al., 2018, 3.1, task 2): does B follow A, or is it a random one?

Dimension key: R rows, D width, C = 2 classes; class 0 is "B follows A", as in the 2018 code and in Hugging Face.
"""

from torch import Tensor
from torch.nn import functional

from bertsmith.nn.heads import NspHead
from bertsmith.objectives.terms import Term


def next_sentence_term(head: NspHead, pooled_RD: Tensor, is_next_R: Tensor, *, weight: float = 1.0) -> Term:
    """The term "nsp": summed cross-entropy over the rows, and how many were guessed right."""
    logits_RC = head(pooled_RD).float()
    labels_R = (~is_next_R).long()
    correct = (logits_RC.detach().argmax(-1) == labels_R).sum()
    return Term("nsp", weight, functional.cross_entropy(logits_RC, labels_R, reduction="sum"), len(labels_R), correct)
