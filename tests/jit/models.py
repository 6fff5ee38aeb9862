"""TorchScript models with attention, and what is to be found in them.

`cases(size)` yields models of the documents, of LibTorch and, where it is
installed, of transformers.
"""

import torch
from document_models import documents
from libtorch_models import libtorch
from transformers_models import has_transformers, transformers


def cases(size):
    torch.manual_seed(1)
    yield from documents(size)
    yield from libtorch(size)
    if has_transformers():
        yield from transformers(size)
