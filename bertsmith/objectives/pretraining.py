"""BERT's pre-training model: encoder, masked LM head and, if wanted, the next sentence head.

Dimension key: T tokens of the batch, K target positions, D width, V pieces.
"""

from torch import nn

from bertsmith.errors import InputError
from bertsmith.models.bert import Bert
from bertsmith.nn.heads import MlmHead, NspHead
from bertsmith.nn.layers import initialise
from bertsmith.objectives.batch import PretrainBatch
from bertsmith.objectives.masked_lm import masked_lm_term
from bertsmith.objectives.sentence_pair import next_sentence_term
from bertsmith.objectives.terms import Term


class BertPretraining(nn.Module):
    """`model(batch)` gives the terms "mlm" and, with `nsp`, "nsp".

    Without `nsp` the encoder's pooler is taken off: nothing would ever train it. With `nsp` an encoder that lacks one
    is refused. `initialise(model, seed)` sets fresh weights in all of it.
    """

    def __init__(self, encoder: Bert, *, nsp: bool, mlm_head: MlmHead | None = None, nsp_head: NspHead | None = None):
        super().__init__()
        if nsp and encoder.pooler is None:
            raise InputError(
                "next sentence prediction reads the pooler, and this encoder has none; call add_pooler(seed) first"
            )
        if not nsp:
            encoder.pooler = None
        self.encoder = encoder
        self.mlm = mlm_head or MlmHead(encoder.embed.words.weight, norm_eps=encoder.config.norm_eps)
        self.nsp = (nsp_head or NspHead(encoder.config.width)) if nsp else None

    def forward(self, batch: PretrainBatch) -> list[Term]:
        hidden_TD = self.encoder(batch.ids_T, batch.rows, batch.segments_T)
        terms = [masked_lm_term(self.mlm, hidden_TD, batch.target_positions_K, batch.target_ids_K)]
        if self.nsp is not None:
            if batch.is_next_R is None:
                raise InputError("this model predicts next sentences, and the batch has no sentence pairs")
            terms.append(next_sentence_term(self.nsp, self.encoder.pool(hidden_TD, batch.rows), batch.is_next_R))
        return terms


def fresh_pretraining(encoder: Bert, *, nsp: bool, seed: int) -> BertPretraining:
    """A pre-training model with new weights, a pure function of the configuration and `seed`."""
    model = BertPretraining(encoder, nsp=nsp)
    initialise(model, seed)
    return model
