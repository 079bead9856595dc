"""`bertsmith.load` and `Model`: a folder in memory, asked in Python."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel

import bertsmith
from bertsmith.errors import CheckpointError, ConfigError, FileError, InputError
from bertsmith.text.vocabulary import Vocabulary

WORDS = ["the", "cat", "sat", "on", "mat", "##s", "good", "bad", "film", ".", "고양이", "매트"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def perturbed(model):
    """Weights at which a wrong bias, norm or activation shows."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    return model.eval()


def tiny(cls, **changes):
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=16,
        **changes,
    )
    return perturbed(cls(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes a folder of a Hugging Face class once; the tokenizer is a small one."""
    made = {}

    def make(cls, **changes):
        key = (cls, repr(changes))
        if key not in made:
            path = tmp_path_factory.mktemp(cls.__name__)
            tiny(cls, **changes).save_pretrained(path)
            bertsmith.Tokenizer(Vocabulary(PIECES)).save(path)
            made[key] = path
        return made[key]

    return make


def test_encode_gives_the_hidden_states_of_transformers_in_the_order_asked(folder):
    path = folder(BertModel)
    texts = ["the cat sat on the mat .", "", ("good film", "bad cats"), "고양이", "the cat " * 40]
    found = bertsmith.load(path).encode(texts)
    theirs, tokenizer = BertModel.from_pretrained(path).eval(), bertsmith.Tokenizer.load(path)
    for text, hidden in zip(texts, found, strict=True):
        enc = tokenizer.encode(*([text] if isinstance(text, str) else text), max_length=16)
        with torch.no_grad():
            expected = theirs(torch.tensor([enc.ids]), token_type_ids=torch.tensor([enc.segments])).last_hidden_state[0]
        assert hidden.dtype == np.float32
        assert hidden.shape == (len(enc.ids), 24)
        np.testing.assert_allclose(hidden, expected.numpy(), atol=1e-5, rtol=0)


def test_a_text_that_is_too_long_is_cut_with_one_warning(folder, capfd):
    model = bertsmith.load(folder(BertModel))
    assert [len(hidden) for hidden in model.encode(["cat " * 30, "mat " * 50])] == [16, 16]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "2 of 2 texts are longer than 16 tokens" in lines[0]
    model.encode(["the cat sat"])
    assert capfd.readouterr().err == ""


def test_no_texts_give_nothing_and_one_bare_text_is_refused(folder):
    model = bertsmith.load(folder(BertForSequenceClassification, num_labels=2))
    assert model.encode([]) == []
    assert model.predict([]) == []
    for ask in (model.encode, model.predict):
        with pytest.raises(InputError, match="list of texts"):
            ask("one text")


def test_fill_says_what_transformers_says(folder):
    path = folder(BertForPreTraining)
    model = bertsmith.load(path)
    masks = model.fill("the [MASK] sat on [MASK] .", top=3)
    enc = model.tokenizer.encode("the [MASK] sat on [MASK] .")
    with torch.no_grad():
        logits = BertForPreTraining.from_pretrained(path).eval()(torch.tensor([enc.ids])).prediction_logits[0]
    places = [place for place, number in enumerate(enc.ids) if number == model.tokenizer.vocabulary.mask_id]
    assert len(masks) == len(places) == 2
    for mask, place in zip(masks, places, strict=True):
        values, ids = logits[place].double().softmax(-1).topk(3)
        assert [piece for piece, _ in mask] == [PIECES[int(number)] for number in ids]
        np.testing.assert_allclose([value for _, value in mask], values.numpy(), atol=1e-5)


def test_fill_refuses_a_folder_without_the_head_and_a_text_without_a_mask(folder):
    with pytest.raises(CheckpointError, match="masked-LM head"):
        bertsmith.load(folder(BertModel)).fill("the [MASK]")
    with pytest.raises(InputError, match=r"\[MASK\]"):
        bertsmith.load(folder(BertForMaskedLM)).fill("the cat")


def test_predict_names_labels_as_the_folder_does(folder):
    path = folder(BertForSequenceClassification, id2label={0: "bad", 1: "good", 2: "so so"})
    model = bertsmith.load(path)
    texts = ["good film", ("bad", "film"), ""]
    answers = model.predict(texts)
    theirs = BertForSequenceClassification.from_pretrained(path).eval()
    for text, answer in zip(texts, answers, strict=True):
        enc = model.tokenizer.encode(*([text] if isinstance(text, str) else text))
        with torch.no_grad():
            logits = theirs(torch.tensor([enc.ids]), token_type_ids=torch.tensor([enc.segments])).logits[0]
        assert list(answer.probabilities) == ["bad", "good", "so so"] == model.labels
        assert answer.label == model.labels[int(logits.argmax())]
        np.testing.assert_allclose(list(answer.probabilities.values()), logits.softmax(-1).numpy(), atol=1e-5)


def test_predict_without_a_label_head_says_what_to_do(folder):
    with pytest.raises(CheckpointError, match="has no label head"):
        bertsmith.load(folder(BertModel)).predict(["good"])


def test_a_head_that_the_folder_lacks_is_refused_by_name(folder):
    with pytest.raises(CheckpointError, match="no label head"):
        bertsmith.load(folder(BertModel), head="label")
    with pytest.raises(ConfigError, match="'tagger'"):
        bertsmith.load(folder(BertModel), head="tagger")
    for labels in (1, 0, ["same", "same"], "text"):
        with pytest.raises(ConfigError, match="labels="):
            bertsmith.load(folder(BertModel), head="label", labels=labels)
    with pytest.raises(ConfigError, match="without a head"):
        bertsmith.load(folder(BertModel), labels=2)


def test_a_fresh_head_is_the_same_for_the_same_seed(folder):
    def heads(**changes):
        return bertsmith.load(
            folder(BertModel), head="label", labels=["a", "b", "c"], **changes
        ).module.head.state_dict()

    torch.testing.assert_close(heads(), heads(), atol=0, rtol=0)
    assert not torch.equal(heads()["linear.weight"], heads(seed=1)["linear.weight"])
    assert heads()["linear.weight"].shape == (3, 24)


def test_a_masked_lm_without_pooler_gets_one_with_its_label_head(folder):
    plain = bertsmith.load(folder(BertForMaskedLM))
    assert plain.module(input_ids=torch.tensor([[2, 5, 3]])).pooled is None
    model = bertsmith.load(folder(BertForMaskedLM), head="label", labels=2)
    assert model.module(input_ids=torch.tensor([[2, 5, 3]])).logits.shape == (1, 2)
    assert model.predict(["the cat"])[0].label in ("0", "1")


def test_the_folders_own_head_is_kept_if_the_labels_are_its_own(folder):
    path = folder(BertForSequenceClassification, id2label={0: "bad", 1: "good"})
    own = bertsmith.load(path).module.head.linear.weight
    for labels in (None, 2, ["bad", "good"]):
        assert torch.equal(bertsmith.load(path, head="label", labels=labels).module.head.linear.weight, own)
    other = bertsmith.load(path, head="label", labels=["good", "bad"])
    assert not torch.equal(other.module.head.linear.weight, own)
    assert other.labels == ["good", "bad"]


def test_save_and_load_again(folder, tmp_path):
    model = bertsmith.load(folder(BertForPreTraining), head="label", labels=["x", "y"])
    model.save(tmp_path / "out", note="by hand")
    again = bertsmith.load(tmp_path / "out")
    assert again.labels == ["x", "y"]
    assert again.fill("the [MASK]") == model.fill("the [MASK]")
    assert again.predict(["good"]) == model.predict(["good"])
    assert "mlm, nsp, label" in repr(again)


def test_save_replaces_no_folder_that_holds_other_things(folder, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match="other things"):
        bertsmith.load(folder(BertModel)).save(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_missing_folder_and_a_file_are_said_clearly(tmp_path):
    for path in (tmp_path / "none", tmp_path / "file"):
        (tmp_path / "file").write_text("x")
        with pytest.raises((FileError, CheckpointError), match=path.name):
            bertsmith.load(path)


def test_an_unknown_device_is_refused(folder):
    with pytest.raises(ConfigError, match="abacus"):
        bertsmith.load(folder(BertModel), device="abacus")
