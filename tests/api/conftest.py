import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tensors of a few hundred numbers: a second thread only waits, on a busy machine for seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
