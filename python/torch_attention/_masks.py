"""Masks as tiles: which keys each query attends to, evaluated once for all layers.

    mod = MaskMod.causal() & MaskMod.documents(ids)  # ids (B, T)
    mask = BlockMask(mod, T, batch_size=B)
    y = torch_attention.attention(q, k, v, block_mask=mask)

Rules are evaluated by tiles of 64 queries and 64 keys, and attention takes time in
proportion to the tiles that some query attends to. No (T, S) tensor is formed, unless
an operator's device or transformation needs one (docs/python.md).
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# The functions of the masks that are being evaluated, by the number that the program of
# the operator `block_mask` has for them.
_functions: dict[int, Function] = {}
_numbers = itertools.count()


@contextmanager
def _numbered(functions: list[Function]) -> Iterator[list[int]]:
    """Yields numbers by which the operator `_mask_function` finds the functions."""
    numbers = [next(_numbers) for _ in functions]
    _functions.update(zip(numbers, functions))
    try:
        yield numbers
    finally:
        for number in numbers:
            del _functions[number]


def _indexing_by_tensors() -> AbstractContextManager[Any]:
    """Lets `ids[query]` look up a tensor where vmap makes `query` a single number."""
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    except ImportError:
        return nullcontext()
    return TransformGetItemToIndex()


def _call_function(number: int, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Returns what a function says of queries (Q, 1) and keys (1, K), as FlexAttention
    evaluates it: for single numbers, so that it may reduce and index as it likes."""
    of_keys = torch.vmap(_functions[number], in_dims=(None, None, None, 0))
    of_queries = torch.vmap(of_keys, in_dims=(None, None, 0, None))
    with _indexing_by_tensors():
        return of_queries(batch, head, query[:, 0], key[0])


def register() -> torch.library.Library:
    """Registers the operator by which the library calls functions, for as long as the
    result lives."""
    library = torch.library.Library("torch_attention", "IMPL")
    library.impl("_mask_function", _call_function, "CPU")
    return library


class MaskMod:
    """Which keys a query attends to, as a value; FlexAttention calls it `mask_mod`.

    Rules are combined by `&`, `|` and `~`, which mean what they mean for each query and
    key. Queries and keys are counted by position: their index plus the offset that
    `BlockMask` gets. Tensors are copied.

        packed = MaskMod.causal() & MaskMod.documents(document_ids)
        images = MaskMod.causal() | MaskMod.documents(image_ids)
    """

    def __init__(self, *rules: tuple[Any, ...]) -> None:
        # In postfix order: a word of the operator `block_mask`, and its operands.
        self._rules = rules

    @classmethod
    def function(cls, function: Function) -> MaskMod:
        """A query attends to the keys for which `function(b, h, q_idx, kv_idx)` is True:
        int64 tensors of one number each, as FlexAttention passes them. It is called on
        the CPU by torch.vmap, and only where other rules do not decide."""
        if not callable(function):
            raise TypeError(f"MaskMod: expected a function, but got {type(function).__name__}")
        return cls(("function", function))

    @classmethod
    def causal(cls) -> MaskMod:
        """A query attends to its own and earlier keys."""
        return cls(("causal",))

    @classmethod
    def window(cls, window: int, window_after: int | None = None) -> MaskMod:
        """A query attends to its own key and the `window - 1` before it, and to all
        later ones, or to `window_after` of them."""
        after = None if window_after is None else operator.index(window_after)
        return cls(("window", operator.index(window), after))

    @classmethod
    def chunk(cls, size: int) -> MaskMod:
        """A query attends to the keys of its own chunk, which begins at a multiple of
        `size`."""
        return cls(("chunk", operator.index(size)))

    @classmethod
    def documents(cls, ids: Tensor, key_ids: Tensor | None = None) -> MaskMod:
        """A query attends to the keys with the same id: integers (L) or, for each
        sequence, (B, L), where L is larger than all positions. Tokens with a negative
        id attend to no key, and no query attends to them. `key_ids` are those of the
        keys, if they differ."""
        return cls(("documents", ids.clone(), None if key_ids is None else key_ids.clone()))

    @classmethod
    def packed_documents(cls, cu_seqlens: Tensor) -> MaskMod:
        """`documents` of packed sequences: integers (n + 1), 0, n1, n1 + n2, ..."""
        return cls(("packed_documents", cu_seqlens.clone()))

    @classmethod
    def prefix(cls, length: int | Tensor) -> MaskMod:
        """All queries attend to the keys before position `length`, or, with integers
        (B), before that of their sequence."""
        if isinstance(length, Tensor):
            return cls(("prefixes", length.clone()))
        return cls(("prefix", operator.index(length)))

    @classmethod
    def blocks(cls, sees: Tensor, query_size: int, key_size: int) -> MaskMod:
        """A query attends to the keys of some blocks: bool (R, C) or (B, H, R, C),
        where B and H may be 1. `sees[..., r, c]` is true where the `query_size` queries
        from position r * query_size on attend to the `key_size` keys from
        c * key_size on."""
        sizes = operator.index(query_size), operator.index(key_size)
        return cls(("blocks", sees.clone(), *sizes))

    def __and__(self, other: MaskMod) -> MaskMod:
        """Both let the query attend to the key."""
        return self._combined("and", other)

    def __or__(self, other: MaskMod) -> MaskMod:
        """One of the two, or both, let the query attend to the key."""
        return self._combined("or", other)

    def __invert__(self) -> MaskMod:
        """This rule does not let the query attend to the key."""
        return MaskMod(*self._rules, ("not",))

    def _combined(self, word: str, other: MaskMod) -> MaskMod:
        if not isinstance(other, MaskMod):
            return NotImplemented
        return MaskMod(*self._rules, *other._rules, (word,))

    def __repr__(self) -> str:
        words = [rule[0] for rule in self._rules]
        return f"MaskMod({' '.join(words)})"

    def _evaluate(self, *sizes: int, **offsets: Tensor | None) -> Tensor:
        """Returns the packed mask, outside of graphs of torch.compile, which does not
        know its length. Its import is left to who uses it, since it takes long."""
        compiler = sys.modules.get("torch._dynamo")
        call = self._call_operator if compiler is None else compiler.disable(self._call_operator)
        return call(*sizes, **offsets)

    def _call_operator(self, *sizes: int, **offsets: Tensor | None) -> Tensor:
        tensors: list[Tensor] = []
        functions: list[Function] = []
        words: list[Any] = []
        for word, *operands in self._rules:
            words.append(word)
            for operand in operands:
                if isinstance(operand, Tensor):
                    words.append(len(tensors))
                    tensors.append(operand)
                elif callable(operand):
                    words.append(functions)
                    functions.append(operand)
                else:
                    words.append("none" if operand is None else operand)
        with _numbered(functions) as numbers:
            following = iter(numbers)
            program = " ".join(
                str(next(following) if word is functions else word) for word in words
            )
            return torch.ops.torch_attention.block_mask(program, tensors, *sizes, **offsets)


def _offsets(offsets: int | Tensor | None) -> Tensor | None:
    return torch.tensor([offsets]) if isinstance(offsets, int) else offsets


class BlockMask:
    """A `MaskMod` evaluated for queries and keys, for all layers and both passes.

    The operators of this package take it as `block_mask`, or its tensor `packed`: int64
    (n) on the CPU, which must not be changed, and which TorchScript takes.
    """

    def __init__(
        self,
        mod: MaskMod,
        num_queries: int,
        num_keys: int | None = None,
        *,
        batch_size: int = 1,
        num_heads: int = 1,
        query_offsets: int | Tensor | None = None,
        key_offsets: int | Tensor | None = None,
    ) -> None:
        """Evaluates `mod`. By default there are as many keys as queries.

        `batch_size` and `num_heads` are 1 if all sequences or heads have one mask.
        `query_offsets` and `key_offsets` are the positions of the first query and key:
        one number, or integers (batch_size). They are 0 by default; query_offsets are
        required if there are not as many keys as queries.

        Raises RuntimeError for sizes, ids and lengths that do not fit together, and for
        functions that do not give bool.
        """
        if not isinstance(mod, MaskMod):
            raise TypeError(
                f"BlockMask: expected a MaskMod, such as MaskMod.function(f) of a "
                f"function, but got {type(mod).__name__}"
            )
        self._packed: Tensor = mod._evaluate(
            num_queries,
            num_queries if num_keys is None else num_keys,
            batch_size,
            num_heads,
            query_offsets=_offsets(query_offsets),
            key_offsets=_offsets(key_offsets),
        )
        self._sizes = self._read_sizes()

    @classmethod
    def unpack(cls, packed: Tensor) -> BlockMask:
        """Returns the mask of a tensor that `packed` returned. All of it is checked."""
        mask = cls.__new__(cls)
        mask._packed = packed
        mask._sizes = mask._read_sizes()
        return mask

    @classmethod
    def from_flex_attention(cls, mask: Any) -> BlockMask:
        """Returns the mask of a `BlockMask` of torch.nn.attention.flex_attention.

        Blocks that are full are seen, its `mask_mod` decides in the others that it has,
        and all others are hidden, as in its compiled kernels. With one mask for all
        sequences or heads, `mask_mod` is asked for the first of them.
        """
        from ._flex import from_flex_attention

        return from_flex_attention(mask)

    def _read_sizes(self) -> tuple[int, ...]:
        return tuple(torch.ops.torch_attention.block_mask_sizes(self._packed))

    @property
    def packed(self) -> Tensor:
        return self._packed

    @property
    def shape(self) -> tuple[int, ...]:
        """batch_size, num_heads, num_queries and num_keys."""
        return self._sizes

    @property
    def batch_size(self) -> int:
        return self._sizes[0]

    @property
    def num_heads(self) -> int:
        return self._sizes[1]

    @property
    def num_queries(self) -> int:
        return self._sizes[2]

    @property
    def num_keys(self) -> int:
        return self._sizes[3]

    @property
    def density(self) -> float:
        """The share of the tiles that some query attends to, from 0 to 1."""
        return torch.ops.torch_attention.block_mask_density(self._packed)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes

    def hidden(self, device: torch.device | str = "cpu") -> Tensor:
        """Returns the mask as bool (batch_size, num_heads, T, S), True where a key is
        hidden, as the argument `mask` takes it."""
        return torch.ops.torch_attention.block_mask_hidden(self._packed).to(device)

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockMask.unpack, (self._packed,)

    def __repr__(self) -> str:
        sizes = dict(zip(("batch_size", "num_heads", "num_queries", "num_keys"), self._sizes))
        text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return f"BlockMask({text}, density={self.density:.3g}, nbytes={self.nbytes})"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Passes `packed` to our operators."""
        if not str(function).startswith("torch_attention."):
            return NotImplemented
        args, kwargs = torch.utils._pytree.tree_map_only(
            BlockMask, lambda mask: mask.packed, (args, kwargs or {})
        )
        return function(*args, **kwargs)
