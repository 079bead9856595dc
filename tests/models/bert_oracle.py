"""transformers' BERT beside ours: same weights, same batch, and a list of everything that differs by more than 1e-5.

At the default initialisation even a wrong GELU passes, so the weights are wide and biases and norms are moved.
"""

from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from bertsmith.checkpoints.folder import tensors_for_hugging_face
from bertsmith.checkpoints.hugging_face import config_to_json, model_type_of
from bertsmith.checkpoints.names import TABLES, expand
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.nn.heads import LabelHead, MlmHead, NspHead
from bertsmith.nn.rows import Rows, lay_out

TOLERANCE = 1e-5


@dataclass
class Ours:
    encoder: Bert
    mlm: MlmHead
    nsp: NspHead
    label: LabelHead

    @property
    def heads(self) -> dict[str, nn.Module]:
        return {"mlm": self.mlm, "nsp": self.nsp, "label": self.label}

    @property
    def modules(self) -> nn.ModuleDict:
        return nn.ModuleDict({"encoder": self.encoder, **self.heads})


@dataclass
class Batch:
    sequences: list[list[int]]
    segments: list[list[int]]
    targets: list[tuple[int, int, int]]  # row, position, piece
    is_next: list[bool]

    def rows(self) -> tuple[Tensor, Rows, Tensor, Tensor]:
        ids_T, rows = lay_out(self.sequences)
        segments_T, _ = lay_out(self.segments)
        starts = rows.starts.tolist()
        return ids_T, rows, segments_T, torch.tensor([starts[row] + position for row, position, _ in self.targets])

    def padded(self) -> tuple[Tensor, Tensor, Tensor]:
        longest = max(map(len, self.sequences))
        ids_BL = torch.tensor([row + [0] * (longest - len(row)) for row in self.sequences])
        segments_BL = torch.tensor([row + [0] * (longest - len(row)) for row in self.segments])
        keep_BL = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in self.sequences])
        return ids_BL, keep_BL, segments_BL


def small_config(*, pre_norm: bool = False) -> BertConfig:
    return BertConfig(
        vocab_size=101, width=32, depth=3, heads=4, ffn_width=64, max_length=48, dropout=0.0, attention_dropout=0.0,
        pre_norm=pre_norm,
    )  # fmt: skip


def make_ours(config: BertConfig, seed: int = 0) -> Ours:
    encoder = Bert(config)
    mlm, nsp = MlmHead(encoder.embed.words.weight, norm_eps=config.norm_eps), NspHead(config.width)
    ours = Ours(encoder, mlm, nsp, LabelHead(config.width, 5, 0.0))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in ours.modules.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if norm else (0.1 if "embed" in name else 0.2) * noise)
    ours.modules.eval()
    return ours


def make_batch(config: BertConfig, lengths: tuple[int, ...] = (7, 48, 1, 13, 48, 2, 30), seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(1, config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    segments = [[0] * (length // 2) + [1] * (length - length // 2) for length in lengths]
    targets = [(row, position, (7 * row + position) % config.vocab_size) for row, length in enumerate(lengths)
               for position in range(0, length, 5)]  # fmt: skip
    return Batch(sequences, segments, targets, [row % 2 == 0 for row in range(len(lengths))])


def make_theirs(ours: Ours, kind: str) -> nn.Module:
    """The Hugging Face class Bert`kind` (or MegatronBert`kind`) with our weights, in evaluation mode."""
    config = ours.encoder.config
    model_type = model_type_of(config)
    prefix = {"bert": "Bert", "megatron-bert": "MegatronBert"}[model_type]
    settings = config_to_json(config, parts=[], labels=[f"label {i}" for i in range(5)], pad_id=0)
    settings = {key: value for key, value in settings.items() if key not in ("architectures", "model_type", "dtype")}
    theirs = getattr(transformers, f"{prefix}{kind}")(
        getattr(transformers, f"{prefix}Config")(**settings, attn_implementation="eager")
    )
    wanted = theirs.state_dict()
    tensors = tensors_for_hugging_face(ours.encoder, ours.heads)
    if kind == "Model":
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if name in wanted}
    missing = set(wanted) - set(tensors) - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert not missing, missing
    theirs.load_state_dict(tensors, strict=False)
    theirs.tie_weights()
    return theirs.eval()


def run_ours(ours: Ours, batch: Batch) -> dict[str, Tensor]:
    """Everything by name: hidden states, scores, losses, and gradients under Hugging Face's names."""
    ours.modules.zero_grad()
    ids_T, rows, segments_T, positions_K = batch.rows()
    states = ours.encoder.every_layer(ids_T, rows, segments_T)
    hidden_TD = ours.encoder(ids_T, rows, segments_T)
    pooled_RD = ours.encoder.pool(hidden_TD, rows)
    found = {f"layer {number}": state for number, state in enumerate(states)}
    found |= {"hidden": hidden_TD, "pooled": pooled_RD}
    for layer, weights in enumerate(ours.encoder.attention_weights(ids_T, rows, segments_T)):
        found |= {f"attention {layer} {row}": weights_HLL for row, weights_HLL in enumerate(weights)}
    mlm_KV, nsp_R2 = ours.mlm(hidden_TD.index_select(0, positions_K)), ours.nsp(pooled_RD)
    found |= {"mlm": mlm_KV, "nsp": nsp_R2, "label": ours.label(pooled_RD)}
    _loss(hidden_TD, mlm_KV, nsp_R2, batch).backward()
    return {name: value.detach() for name, value in found.items()} | gradients(ours)


def gradients(ours: Ours) -> dict[str, Tensor]:
    table = expand(TABLES[model_type_of(ours.encoder.config)], ours.encoder.config.depth)
    found = {}
    for name, parameter in ours.modules.named_parameters():
        if not name.startswith("label."):
            assert parameter.grad is not None, name
            parts = parameter.grad.chunk(len(table[name]))
            found |= {f"gradient {theirs}": part for theirs, part in zip(table[name], parts, strict=True)}
    return found


def run_theirs(ours: Ours, batch: Batch) -> dict[str, Tensor]:
    """The same from transformers, with the padding cut away."""
    ids_BL, keep_BL, segments_BL = batch.padded()
    inputs = {"input_ids": ids_BL, "attention_mask": keep_BL, "token_type_ids": segments_BL}
    real = keep_BL.bool()
    theirs = make_theirs(ours, "ForPreTraining")
    body = theirs.bert(**inputs, output_hidden_states=True, output_attentions=True)
    found = {f"layer {number}": state[real] for number, state in enumerate(body.hidden_states)}
    found |= {"hidden": body.last_hidden_state[real], "pooled": body.pooler_output}
    for layer, weights_BHLL in enumerate(body.attentions):
        for row, sequence in enumerate(batch.sequences):
            found[f"attention {layer} {row}"] = weights_BHLL[row, :, : len(sequence), : len(sequence)]
    scores = theirs(**inputs)
    at = torch.tensor([(row, position) for row, position, _ in batch.targets]).T
    mlm_KV, nsp_R2 = scores.prediction_logits[at[0], at[1]], scores.seq_relationship_logits
    found |= {"mlm": mlm_KV, "nsp": nsp_R2}
    found["label"] = make_theirs(ours, "ForSequenceClassification")(**inputs).logits
    _loss(body.last_hidden_state[real], mlm_KV, nsp_R2, batch).backward()
    found = {name: value.detach() for name, value in found.items()}
    return found | {f"gradient {name}": parameter.grad for name, parameter in theirs.named_parameters()}


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """The names of everything that is not equal within 1e-5."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return [
        name
        for name, value in ours.items()
        if not torch.allclose(value, theirs[name].reshape(value.shape), rtol=0, atol=TOLERANCE)
    ]


def _loss(hidden_TD: Tensor, mlm_KV: Tensor, nsp_R2: Tensor, batch: Batch) -> Tensor:
    """Every output takes part, so that every parameter has a gradient worth comparing."""
    sides_TD = torch.linspace(-1, 1, hidden_TD.numel()).view(hidden_TD.shape)
    targets_K = torch.tensor([piece for _, _, piece in batch.targets])
    labels_R = torch.tensor([0 if is_next else 1 for is_next in batch.is_next])
    return (
        functional.cross_entropy(mlm_KV, targets_K)
        + functional.cross_entropy(nsp_R2, labels_R)
        + (hidden_TD * sides_TD).mean()
    )
