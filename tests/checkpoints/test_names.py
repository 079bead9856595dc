import pytest
import torch

from bertsmith.checkpoints.hugging_face import model_type_of
from bertsmith.checkpoints.names import TABLES, expand, plan
from bertsmith.errors import CheckpointError
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.nn.heads import LabelHead, MlmHead, NspHead


def small(pre_norm: bool) -> BertConfig:
    return BertConfig(vocab_size=9, width=4, depth=2, heads=2, ffn_width=8, max_length=5, pre_norm=pre_norm)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_table_names_every_parameter_once_on_both_sides(pre_norm):
    config = small(pre_norm)
    with torch.device("meta"):
        encoder = Bert(config)
        mlm = MlmHead(encoder.embed.words.weight, norm_eps=1e-12)
        parts = {"encoder": encoder, "mlm": mlm, "nsp": NspHead(4), "label": LabelHead(4, 3, 0.0)}
    ours = {name for name, _ in torch.nn.ModuleDict(parts).named_parameters()}
    table = expand(TABLES[model_type_of(config)], config.depth)
    assert set(table) == ours
    theirs = [name for names in table.values() for name in names]
    assert len(theirs) == len(set(theirs))


def names(depth: int = 1) -> list[str]:
    return [name for names in expand(TABLES["bert"], depth).values() for name in names]


def test_known_leftovers_are_taken_as_such():
    more = ["bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]
    found = plan(names() + more, TABLES["bert"], 1, where="here")
    assert found.parts == ("pooler", "mlm", "nsp", "label")
    assert found.tied_decoder == "cls.predictions.decoder.weight"
    assert found.sources["mlm.bias"] == ("cls.predictions.bias",)


def test_an_alias_stands_in_for_its_name():
    given = [name for name in names() if name != "cls.predictions.bias"] + ["cls.predictions.decoder.bias"]
    assert plan(given, TABLES["bert"], 1, where="here").sources["mlm.bias"] == ("cls.predictions.decoder.bias",)


def test_a_bare_encoder_and_old_norm_names():
    given = [name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
             for name in names() if name.startswith("bert.") and "pooler" not in name]  # fmt: skip
    found = plan(given, TABLES["bert"], 1, where="here")
    assert found.parts == ()
    assert found.sources["encoder.embed.norm.weight"] == ("embeddings.LayerNorm.gamma",)


def test_everything_missing_and_left_over_is_listed():
    given = [name for name in names() if "key" not in name] + ["strange"]
    with pytest.raises(
        CheckpointError, match=r"here: 2 tensors missing: .*key\.weight, .*key\.bias; 1 tensor left over: s"
    ):
        plan(given, TABLES["bert"], 1, where="here")
    with pytest.raises(CheckpointError, match=r"here: 21 tensors missing: .* and 9 more"):
        plan([], TABLES["bert"], 1, where="here")


def test_half_a_head_is_refused():
    with pytest.raises(CheckpointError, match=r"1 tensor missing: cls\.seq_relationship\.bias"):
        plan([name for name in names() if name != "cls.seq_relationship.bias"], TABLES["bert"], 1, where="here")
