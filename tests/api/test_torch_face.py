"""The padded face: equal to transformers, strict about shapes, and good for the usual ten-line loop."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

import bertsmith
from bertsmith.errors import InputError
from bertsmith.text.vocabulary import Vocabulary

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"p{number}" for number in range(60))]
IDS = torch.tensor([[2, 9, 40, 41, 3, 22, 23, 3], [2, 7, 3, 0, 0, 0, 0, 0], [2, 33, 3, 12, 3, 0, 0, 0]])
KEEP = (IDS != 0).long()
SEGMENTS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0] * 8, [0, 0, 0, 1, 1, 0, 0, 0]])
LABELS = torch.tensor([2, 0, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=12,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    bertsmith.Tokenizer(Vocabulary(PIECES)).save(path)
    return path


@pytest.fixture
def net(folder):
    return bertsmith.load(folder).module


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_hidden_pooled_logits_and_loss_are_those_of_transformers(folder, net):
    keys = {"input_ids": IDS, "attention_mask": KEEP, "token_type_ids": SEGMENTS}
    out = net(**keys, labels=LABELS)
    theirs = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        whole, body = theirs(**keys, labels=LABELS), BertModel.from_pretrained(folder).eval()(**keys)
    close(out.hidden[KEEP.bool()], body.last_hidden_state[KEEP.bool()])
    assert bool((out.hidden[~KEEP.bool()] == 0).all())
    close(out.pooled, body.pooler_output)
    close(out.logits, whole.logits)
    close(out.loss, whole.loss)


def test_gradients_are_those_of_transformers(folder, net):
    keys = {"input_ids": IDS, "attention_mask": KEEP, "token_type_ids": SEGMENTS}
    net(**keys, labels=LABELS).loss.backward()
    theirs = BertForSequenceClassification.from_pretrained(folder).eval()
    theirs(**keys, labels=LABELS).loss.backward()
    close(net.head.linear.weight.grad, theirs.classifier.weight.grad)
    close(net.encoder.pooler.weight.grad, theirs.bert.pooler.dense.weight.grad)
    close(net.encoder.embed.words.weight.grad[1:], theirs.bert.embeddings.word_embeddings.weight.grad[1:])


def test_without_mask_segments_and_labels(folder, net):
    out = net(input_ids=IDS[:1])
    with torch.no_grad():
        expected = BertModel.from_pretrained(folder).eval()(IDS[:1])
    close(out.hidden, expected.last_hidden_state)
    assert out.loss is None


def test_the_mask_may_be_numbers_or_booleans_and_ids_int32(net):
    expected = net(IDS, KEEP).hidden
    for mask in (KEEP.bool(), KEEP.float(), KEEP.to(torch.uint8)):
        assert torch.equal(net(IDS, mask).hidden, expected)
    assert torch.equal(net(IDS.int(), KEEP).hidden, expected)


def test_padding_and_neighbours_change_nothing(net):
    close(net(IDS, KEEP).pooled[1], net(IDS[1:2, :3]).pooled[0])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"input_ids": IDS[0]}, "input_ids has shape"),
        ({"input_ids": IDS[:0]}, "input_ids has shape"),
        ({"input_ids": IDS, "attention_mask": KEEP[:2]}, "attention_mask has shape"),
        ({"input_ids": IDS, "token_type_ids": SEGMENTS[:, :3]}, "token_type_ids has shape"),
        ({"input_ids": IDS, "attention_mask": KEEP * 0}, "row 0"),
        ({"input_ids": IDS.flip(1), "attention_mask": KEEP.flip(1)}, "begins with padding"),
        ({"input_ids": IDS + 60}, "id 69"),
        ({"input_ids": IDS.repeat(1, 2)}, "12"),
        ({"input_ids": IDS, "token_type_ids": SEGMENTS + 1}, "segment"),
        ({"input_ids": IDS, "labels": LABELS[:2]}, "labels has shape"),
        ({"input_ids": IDS, "labels": LABELS.float()}, "labels has shape"),
        ({"input_ids": IDS, "labels": LABELS + 1}, "a label is 3"),
        ({"input_ids": IDS, "labels": LABELS - 1}, "a label is -1"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_arithmetic(net, keys, message):
    with pytest.raises(InputError, match=message):
        net(**keys)


def test_labels_without_a_head_are_refused(folder, tmp_path):
    BertModel.from_pretrained(folder).save_pretrained(tmp_path)
    bertsmith.Tokenizer(Vocabulary(PIECES)).save(tmp_path)
    with pytest.raises(InputError, match="no label head"):
        bertsmith.load(tmp_path).module(input_ids=IDS, labels=LABELS)


@pytest.mark.parametrize("rate", [2e-5, 3e-3])  # the first is usual for real models; this one is 32 wide
def test_the_usual_ten_line_loop_learns(folder, rate):
    """Does the text hold p1 or p2? What people write for transformers, with the names they write there."""
    torch.manual_seed(0)
    rows = [[2, *torch.randint(7, 60, (5,)).tolist(), 3] for _ in range(64)]
    for number, row in enumerate(rows):
        row[1 + number % 5] = 6 + number % 2
    input_ids, labels = torch.tensor(rows), torch.arange(64) % 2
    model = bertsmith.load(folder, head="label", labels=["p1", "p2"])
    net = model.module

    def loss_of_all():
        with torch.no_grad():
            return net.eval()(input_ids=input_ids, labels=labels).loss.item()

    before = loss_of_all()
    net.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    for _ in range(12):
        for start in range(0, 64, 16):
            batch = slice(start, start + 16)
            out = net(input_ids=input_ids[batch], attention_mask=torch.ones(16, 7), labels=labels[batch])
            out.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    after = loss_of_all()
    assert after < before - rate * 10
    if rate == 2e-5:  # learns as slowly as it should
        assert after > 0.6
        return
    assert after < 0.2
    assert [answer.label for answer in model.predict(["p1 p20", "p30 p2"])] == ["p1", "p2"]
