"""One weight file: its name, how it is made, and what a reader must give."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

# None instead of tensors: the file is to be refused.
Content = tuple[bytes, Mapping[str, Tensor] | None]

# The content is made when its turn comes: this Python may be unable to.
WeightFile = tuple[str, Callable[[], Content]]
