import pytest
import torch
from main_road import SMALL, Road, typed, write_table, write_text


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tensors of a few hundred numbers: a second thread only waits, on a busy machine for seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def road(tmp_path_factory) -> Road:
    """Everything up to a classifier, once for all tests."""
    home = tmp_path_factory.mktemp("road")
    text, table = write_text(home / "text.txt", 30, 1), write_table(home / "train.csv", 60, 2)
    vocabulary, corpus, run, tuned = home / "vocabulary", home / "corpus", home / "run", home / "tuned"
    said = {
        "vocab": typed("vocab", text, "--out", vocabulary, "--size", 150, "--workers", 1),
        "prepare": typed("prepare", text, "--tokenizer", vocabulary, "--out", corpus, "--workers", 1),
        "pretrain": typed("pretrain", "tiny", "--data", corpus, "--out", run, *SMALL),
        "finetune": typed(
            *("finetune", "--train", table, "--model", run / "model", "--out", tuned, "--seeds", 2),
            *("--set", "epochs=1", "--set", "max_length=24"),
        ),
    }
    for name, ran in said.items():
        assert ran.code == 0, f"{name}: {ran.err}"
    return Road(text, table, vocabulary, corpus, run, tuned, said)
