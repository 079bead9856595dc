"""Model folders: transformers reads what we write with equal results, and the other way round; damage is named."""

import contextlib
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from junk import edited

from bertsmith.checkpoints.folder import describe, load_model, read_config, save_model
from bertsmith.checkpoints.hugging_face import find_weights
from bertsmith.errors import BertsmithError, CheckpointError, FileError
from bertsmith.models.bert import Bert, BertConfig
from bertsmith.models.catalog import parameter_count
from bertsmith.nn.heads import LabelHead, MlmHead, NspHead
from bertsmith.nn.layers import initialise
from bertsmith.nn.rows import lay_out
from bertsmith.text.normalize import Normalizer
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.vocabulary import Vocabulary
from bertsmith.train.evaluate import load_label_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "small", "##er", "한국", "##어", "a", "b", "c"]
LABELS = ["good", "bad", "나쁨"]
IDS = [[2, 5, 6, 3], [2, 7, 8, 9, 3, 10, 3]]


def make(*parts: str, pre_norm: bool = False, pieces: list[str] = PIECES, vocab_size: int = 12) -> dict:
    """Arguments of save_model for a small model with these parts, wide weights, and norms that are moved."""
    config = BertConfig(
        vocab_size=vocab_size, width=16, depth=2, heads=2, ffn_width=32, max_length=20, dropout=0.2,
        attention_dropout=0.3, pre_norm=pre_norm,
    )  # fmt: skip
    encoder = Bert(config, pooler="pooler" in parts)
    made = {"encoder": encoder}
    if "mlm" in parts:
        made["mlm"] = MlmHead(encoder.embed.words.weight, norm_eps=config.norm_eps)
    if "nsp" in parts:
        made["nsp"] = NspHead(16)
    if "label" in parts:
        made |= {"label": LabelHead(16, 3, 0.2), "labels": LABELS}
    torch.manual_seed(0)
    for module in [value for value in made.values() if isinstance(value, torch.nn.Module)]:
        initialise(module, 1, std=0.2)
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
        module.eval()
    tokenizer = Tokenizer(Vocabulary(pieces), Normalizer("unicode-safe"))
    return made | {"tokenizer": tokenizer, "provenance": {"recipe": "tiny", "scores": {"mlm": 0.25}}}


@pytest.fixture
def whole(tmp_path) -> Path:
    save_model(tmp_path / "model", **make("pooler", "mlm", "nsp", "label"))
    return tmp_path / "model"


def outputs(found) -> dict[str, torch.Tensor]:
    ids_T, rows = lay_out(IDS)
    segments_T = torch.tensor([0, 0, 0, 0] + [0] * 5 + [1] * 2)
    hidden_TD = found["encoder"](ids_T, rows, segments_T)
    result = {"hidden": hidden_TD}
    if found["encoder"].pooler is not None:
        pooled_RD = result["pooled"] = found["encoder"].pool(hidden_TD, rows)
        result |= {name: found[name](pooled_RD) for name in ("nsp", "label") if found.get(name) is not None}
    if found.get("mlm") is not None:
        result["mlm"] = found["mlm"](hidden_TD)
    return {name: value.detach() for name, value in result.items()}


def theirs(folder: Path, auto: str) -> dict[str, torch.Tensor]:
    model = getattr(transformers, auto).from_pretrained(folder, attn_implementation="eager").eval()
    keep = torch.tensor([[1] * 4 + [0] * 3, [1] * 7])
    inputs = {
        "input_ids": torch.tensor([IDS[0] + [0] * 3, IDS[1]]),
        "attention_mask": keep,
        "token_type_ids": torch.tensor([[0] * 7, [0] * 5 + [1] * 2]),
    }
    with torch.no_grad():
        found = model(**inputs)
    names = {"last_hidden_state": "hidden", "pooler_output": "pooled", "prediction_logits": "mlm",
             "seq_relationship_logits": "nsp"}  # fmt: skip
    names["logits"] = "mlm" if auto == "AutoModelForMaskedLM" else "label"
    result = {names[name]: value for name, value in found.items() if name in names and value is not None}
    return {name: value[keep.bool()] if value.dim() == 3 else value for name, value in result.items()}


@pytest.mark.parametrize("pre_norm", [False, True], ids=["bert", "pre-norm"])
@pytest.mark.parametrize(
    ("auto", "parts", "compared"),
    [
        ("AutoModel", ("pooler",), {"hidden", "pooled"}),
        ("AutoModel", ("pooler", "mlm", "nsp"), {"hidden", "pooled"}),
        ("AutoModelForPreTraining", ("pooler", "mlm", "nsp"), {"mlm", "nsp"}),
        ("AutoModelForMaskedLM", ("mlm",), {"mlm"}),
        ("AutoModelForSequenceClassification", ("pooler", "label"), {"label"}),
    ],
)
def test_transformers_reads_our_folder_with_equal_results(tmp_path, auto, parts, compared, pre_norm):
    made = make(*parts, pre_norm=pre_norm)
    save_model(tmp_path / "model", **made)
    ours, found = outputs(made), theirs(tmp_path / "model", auto)
    assert compared <= found.keys()
    for name in compared:
        torch.testing.assert_close(found[name], ours[name], atol=1e-5, rtol=0)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert config.architectures[0].endswith(auto.removeprefix("AutoModel")) or auto == "AutoModel"
    if "label" in parts:
        assert config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize("pre_norm", [False, True], ids=["bert", "pre-norm"])
@pytest.mark.parametrize("parts", [(), ("mlm",), ("pooler", "mlm", "nsp"), ("pooler", "mlm", "nsp", "label")], ids=str)
def test_saved_and_loaded_is_bit_equal(tmp_path, parts, pre_norm):
    made = make(*parts, pre_norm=pre_norm)
    save_model(tmp_path / "model", **made)
    loaded = load_model(tmp_path / "model")
    found = {"encoder": loaded.encoder, "mlm": loaded.mlm, "nsp": loaded.nsp, "label": loaded.label}
    for name, module in found.items():
        state = module.state_dict() if module is not None else None
        assert (state is None) == (name not in made)
        if state is not None:
            assert all(torch.equal(value, made[name].state_dict()[key]) for key, value in state.items())
    assert loaded.config == made["encoder"].config
    assert loaded.missing == [part for part in ("pooler", "mlm", "nsp", "label") if part not in parts]
    assert loaded.labels == (LABELS if "label" in parts else None)
    assert loaded.provenance == made["provenance"]
    assert loaded.tokenizer.fingerprint == made["tokenizer"].fingerprint
    for name, value in outputs(found).items():
        assert torch.equal(value, outputs(made)[name]), name
    if loaded.mlm is not None:
        assert loaded.mlm.table_VD is loaded.encoder.embed.words.weight
    assert not any(module.training for module in found.values() if module is not None)
    save_model(tmp_path / "again", **{k: v for k, v in found.items() if v is not None}, labels=loaded.labels,
               tokenizer=loaded.tokenizer, provenance=loaded.provenance)  # fmt: skip
    for file in sorted((tmp_path / "model").iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name


THEIR_CONFIG = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                "intermediate_size": 32, "max_position_embeddings": 20, "initializer_range": 0.3}  # fmt: skip


def write_theirs(
    folder: Path, kind: str = "BertForPreTraining", *, pickled: bool = False, rename=lambda name: name, most="1GB"
):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind.partition('For')[0].removesuffix('Model')}Config")(**THEIR_CONFIG)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder, max_shard_size=most)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    if pickled:
        torch.save({rename(name): value for name, value in model.state_dict().items()}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return model


@pytest.mark.parametrize(
    ("kind", "auto", "parts"),
    [
        ("BertModel", "AutoModel", {"pooler"}),
        ("BertForPreTraining", "AutoModelForPreTraining", {"pooler", "mlm", "nsp"}),
        ("BertForMaskedLM", "AutoModelForMaskedLM", {"mlm"}),
        ("BertForSequenceClassification", "AutoModelForSequenceClassification", {"pooler", "label"}),
        ("MegatronBertForMaskedLM", "AutoModelForMaskedLM", {"mlm"}),
    ],
)
def test_we_read_transformers_folder_with_equal_results(tmp_path, kind, auto, parts):
    write_theirs(tmp_path, kind)
    loaded = load_model(tmp_path)
    ours = outputs({"encoder": loaded.encoder, "mlm": loaded.mlm, "nsp": loaded.nsp, "label": loaded.label})
    found = theirs(tmp_path, auto)
    assert set(loaded.missing) == {"pooler", "mlm", "nsp", "label"} - parts
    assert loaded.architecture == kind
    for name, value in found.items():
        torch.testing.assert_close(ours[name], value, atol=1e-5, rtol=0)
    if "label" in parts:
        assert loaded.labels == ["LABEL_0", "LABEL_1"]


@pytest.fixture
def split(tmp_path) -> Path:
    """A folder whose weights transformers wrote to several files, and beside it the same in one."""
    write_theirs(tmp_path / "one")
    write_theirs(tmp_path / "split", most="5KB")
    assert len([*(tmp_path / "split").glob("model-*.safetensors")]) > 2
    return tmp_path / "split"


def test_weights_in_several_files_are_read(split):
    one, several = load_model(split.parent / "one"), load_model(split)
    for name in ("encoder", "mlm", "nsp"):
        expected = getattr(one, name).state_dict()
        for key, tensor in getattr(several, name).state_dict().items():
            assert torch.equal(tensor, expected[key]), key
    about = describe(split)["weights"]
    assert about["file"] == "model.safetensors.index.json"
    assert about["bytes"] == sum(path.stat().st_size for path in split.glob("model-*.safetensors"))


def a_part(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[1]


def change_index(folder: Path, change) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: a_part(folder).unlink(), r"model-00002-of-\d+\.safetensors: no such file"),
        (lambda folder: os.truncate(a_part(folder), 2_000), r"model-00002-of-\d+\.safetensors: 2,000 bytes, by its"),
        (
            lambda folder: change_index(folder, lambda files: files.update(surprise=a_part(folder).name)),
            r"index\.json: not what its files hold: surprise; copy or",
        ),
        (
            lambda folder: change_index(folder, lambda files: files.pop("bert.pooler.dense.bias")),
            r"index\.json: not what its files hold: bert\.pooler\.dense\.bias; copy or",
        ),
        (
            lambda folder: change_index(folder, lambda files: files.update(surprise="../one/model.safetensors")),
            r'index\.json: "weight_map" should give a weight file of this folder',
        ),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text("[]"),
            r"index\.json: an object was expected",
        ),
    ],
    ids=["missing", "truncated", "too much", "too little", "elsewhere", "no object"],
)  # fmt: skip
def test_damage_to_several_files_is_named(split, damage, message):
    damage(split)
    with pytest.raises((CheckpointError, FileError), match=message):
        load_model(split)
    assert not describe(split)["fits"]


def old_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_old_pickled_folders_are_read(tmp_path):
    model = write_theirs(tmp_path, pickled=True, rename=old_name)
    loaded = load_model(tmp_path)
    assert torch.equal(loaded.encoder.embed.norm.weight, model.bert.embeddings.LayerNorm.weight)
    assert torch.equal(loaded.mlm.bias, model.cls.predictions.bias)
    layer = model.bert.encoder.layer[1].attention.self
    expected = torch.cat([layer.query.weight, layer.key.weight, layer.value.weight])
    assert torch.equal(loaded.encoder.layers[1].attention.qkv.weight, expected)


def test_a_decoder_that_is_not_the_table_is_refused(tmp_path):
    write_theirs(tmp_path, pickled=True)
    change_pickled(tmp_path, "cls.predictions.decoder.weight", lambda tensor: tensor + 1)
    with pytest.raises(CheckpointError, match=r"decoder\.weight is not the word table"):
        load_model(tmp_path)


def change_pickled(folder: Path, name: str, change) -> None:
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    tensors[name] = change(tensors[name])
    torch.save(tensors, folder / "pytorch_model.bin")


class Evil:
    def __reduce__(self):
        return print, ("unpickled freely",)


def test_nothing_is_unpickled_freely(tmp_path, capsys):
    write_theirs(tmp_path, pickled=True)
    torch.save({"a": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: not a readable weight file"):
        load_model(tmp_path)
    assert "unpickled freely" not in capsys.readouterr().out
    (tmp_path / "pytorch_model.bin").write_bytes(b"no weights at all")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: not a readable weight file"):
        load_model(tmp_path)


def change_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    mapping = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in mapping.items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, r"config\.json: hidden_act is 'relu'; only 'gelu'"),
        ({"hidden_act": "gelu_new"}, r"hidden_act is 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, r"is_decoder is True"),
        ({"model_type": "t5"}, r"model_type is 't5'; bertsmith reads bert, megatron-bert"),
        ({"hidden_size": None, "hiden_size": 16}, r"hidden_size is missing; is it what 'hiden_size' should be called"),
        ({"num_attention_heads": 3}, r"width 16 cannot be split among 3 heads"),
        ({"num_hidden_layers": "two"}, r"a whole number was expected, found 'two'"),
        ({"num_hidden_layers": 1}, r"16 tensors left over: bert\.encoder\.layer\.1\."),
        ({"num_hidden_layers": 3}, r"16 tensors missing: bert\.encoder\.layer\.2\."),
        ({"intermediate_size": 48}, r"6 of wrong shape: .*is \[32, 16\], by config\.json \[48, 16\]"),
        ({"vocab_size": 11}, r"word_embeddings\.weight is \[12, 16\], by config\.json \[11, 16\]"),
        ({"id2label": {"0": "a", "1": "b"}}, r"names 2 labels, classifier\.weight in the weights is \[3, 16\]"),
        ({"id2label": {"0": "a", "1": "b", "3": "c"}}, r"id2label should have the numbers 0 to 2"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(whole, changes, message):
    change_config(whole, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_model(whole)


def break_json(folder):
    (folder / "config.json").write_text('{\n"a": \n}')


def truncate(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def truncate_header(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:50])


def empty(folder):
    (folder / "model.safetensors").write_bytes(b"")


def scramble_header(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[8:20] = b"x" * 12
    (folder / "model.safetensors").write_bytes(bytes(data))


def lengthen(folder):
    with open(folder / "model.safetensors", "ab") as file:
        file.write(b"more")


def drop_and_add(folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["surprise"] = tensors.pop("bert.pooler.dense.bias")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def no_tokenizer(folder):
    for name in ("vocab.txt", "tokenizer.json"):
        (folder / name).unlink()


def is_folder(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), CheckpointError, "it has no config.json"),
        (break_json, CheckpointError, r"config\.json:3: not valid JSON"),
        (truncate, CheckpointError, r"model\.safetensors: [\d,]+ bytes, by its header [\d,]+: it was cut off; copy or"),
        (truncate_header, CheckpointError, r"50 bytes, not even its header is whole"),
        (empty, CheckpointError, r"0 bytes, not even its header is whole"),
        (scramble_header, CheckpointError, r"no safetensors header"),
        (lengthen, CheckpointError, r"there is more in it than it says"),
        (drop_and_add, CheckpointError, r"1 tensor missing: bert\.pooler\.dense\.bias; 1 tensor left over: surprise"),
        (no_tokenizer, CheckpointError, r"no tokenizer; vocab\.txt or tokenizer\.json was expected"),
        (lambda folder: (folder / "model.safetensors").unlink(), CheckpointError, r"no weights; model\.safetensors or"),
        (is_folder, FileError, "is a folder; a file was expected"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_damage_is_named_before_any_weights_are_read(whole, monkeypatch, damage, error, message):
    damage(whole)
    monkeypatch.setattr("bertsmith.checkpoints.folder._build", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(error, match=message):
        load_model(whole)
    if error is CheckpointError and (whole / "config.json").exists() and damage is not break_json:
        about = describe(whole)
        assert not about["fits"]
        assert len(about["problems"]) == 1


def test_a_vocabulary_that_does_not_fit_is_refused(whole, tmp_path):
    more = make("pooler", "mlm", pieces=[*PIECES, "p12", "p13"], vocab_size=14)
    save_model(tmp_path / "other", **more)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (whole / name).write_bytes((tmp_path / "other" / name).read_bytes())
    message = (
        r"the tokenizer has 14 pieces, the embedding table 12 rows; 'p12' is the first piece without one\. Use the"
    )
    with pytest.raises(CheckpointError, match=message):
        load_model(whole)
    assert not describe(whole)["fits"]
    wrong = make("pooler") | {"tokenizer": more["tokenizer"]}
    with pytest.raises(CheckpointError, match="'p12' is the first piece without one"):
        save_model(tmp_path / "never", **wrong)
    assert not (tmp_path / "never").exists()


def test_no_folder_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder; a model folder was expected"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file; a model folder was expected"):
        read_config(tmp_path / "file")


def test_describe_says_what_it_is(whole):
    about = describe(whole)
    assert about["fits"]
    assert (about["family"], about["model_type"], about["size"]) == ("bert", "bert", None)
    assert about["architecture"] == "BertForSequenceClassification"
    assert about["parameters"] == parameter_count(read_config(whole))
    assert about["heads"] == ["mlm", "nsp", "label"]
    assert about["labels"] == LABELS
    assert about["tokenizer"]["pieces"] == 12
    assert about["tokenizer"]["preset"] == "unicode-safe"
    assert about["provenance"]["recipe"] == "tiny"
    json.dumps(about)


def test_a_failed_save_leaves_the_old_folder(whole, monkeypatch):
    before = {file.name: file.read_bytes() for file in whole.iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileError, match="the disk is full"):
        save_model(whole, **make("pooler"))
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in whole.iterdir()} == before
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]


def test_the_weight_file_is_looked_into_without_being_read(whole):
    weights = find_weights(whole)
    assert weights.shapes["classifier.weight"] == (3, 16)
    assert set(weights.types.values()) == {"F32"}


@pytest.mark.parametrize("name", ["config.json", "bertsmith.json", "tokenizer_config.json", "tokenizer.json"])
def test_whatever_stands_in_its_json_a_folder_is_read_or_refused(whole, name):
    for _ in edited(whole / name, 150):
        for function in (load_model, describe, load_label_model):
            with contextlib.suppress(BertsmithError):
                function(whole)


def test_whatever_stands_in_an_index_its_folder_is_read_or_refused(split):
    index = split / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a\0.bin"}}))
    with pytest.raises(BertsmithError):
        load_model(split)
    for _ in edited(index, 100):
        for function in (load_model, describe):
            with contextlib.suppress(BertsmithError):
                function(split)
