"""Masked LM (Devlin et al., 2018, 3.1, task 1): name the piece that stood at each target position.

Scores are made at the target positions only; the other 85 % of the tokens never meet the vocabulary.

Dimension key: T tokens of the batch, K target positions, D width.
"""

from torch import Tensor

from bertsmith.nn.heads import MlmHead
from bertsmith.objectives.terms import Term


def masked_lm_term(
    head: MlmHead, hidden_TD: Tensor, positions_K: Tensor, targets_K: Tensor, *, weight: float = 1.0
) -> Term:
    """The term "mlm": summed cross-entropy at the positions, and how many pieces were guessed right."""
    count = len(positions_K)
    if count == 0:
        return Term("mlm", weight, hidden_TD.sum() * 0.0, 0, positions_K.new_zeros(()))
    total, correct = head.loss(hidden_TD.index_select(0, positions_K), targets_K)
    return Term("mlm", weight, total, count, correct)
