"""Code that the exporter, the golden files and the tests share.

classes           the Python classes that the library mirrors
recording         sample values of a module, for `torch-attention verify`
archives          files of torch.save and TorchScript
safetensors_file  safetensors files, without the package of that name
"""

from __future__ import annotations


class ExportError(Exception):
    """A failure to be told in one line."""


def first_line(error: BaseException) -> str:
    """Returns the message, or the error's class if it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]
