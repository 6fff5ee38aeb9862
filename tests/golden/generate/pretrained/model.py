"""How a model is made, run and written."""

from __future__ import annotations

import importlib
import inspect
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_attention_reference import safetensors_file

from ..golden_set import Unavailable
from .inputs import TOKENS, draw_inputs

LAYERS = 2

# The arguments that are kept of a call of attention, and their other names.
ARGUMENTS = {
    "input": ("hidden_states", "query", "queries"),
    "context": (
        "key_value_states",
        "encoder_hidden_states",
        "cross_attention_states",
        "key",
        "keys",
    ),
}
# Which tokens are global, and which padding: arguments of Longformer.
OF_TOKENS = {"global": "is_index_global_attn", "padding": "is_index_masked"}
# The sides of patches in pixels.
PATCH = 4


@dataclass(frozen=True)
class Attention:
    """The attention of each layer of a model, or of a part of it."""

    # In the model; {} stands for the layer.
    path: str
    # In the file, if it is another.
    file_path: str = ""
    # Modules below `path` whose input and output are those of attention.
    first: str = ""
    last: str = ""
    # Before the numbers of layers in the expected tensors: "encoder.".
    label: str = ""
    layers: tuple[int, ...] = tuple(range(LAYERS))
    # The argument with the bias by the distance of tokens, if the caller is to
    # give it.
    bias: str = ""
    # The caller is to give the angles of the rotary embedding.
    rotary: bool = False
    # The angles of a pair are next to each other, and not half a head apart.
    repeats: bool = False
    # The argument with a mask that only the model knows, if the caller is to give
    # it: numbers that are added to the scores.
    mask: str = ""
    # The blocks of tokens that see each other, from what the model reads and the
    # number of tokens, if the caller is to give them.
    blocks: Callable[[Mapping[str, Tensor], int], Tensor] | None = None
    # The arguments that are added to what queries, and to what keys of a context
    # are made of, if values are made of the tokens without them.
    positions: str = ""
    context_positions: str = ""
    # The argument that values are made of, if it is given apart.
    value: str = ""
    # True if its tensors are (T, B, C), and queries and keys given apart.
    time_first: bool = False
    # Its input has tokens after those of the output, which fill the last block.
    cut: bool = False
    # The numbers of layers before those of the path, if they are another list:
    # a field, "vision_config.num_layers", elements, "depths.0+depths.1", or "2".
    after: str = ""
    # The angles of pairs are in each half of a head, and not half a head apart.
    in_halves: bool = False
    # The module below `path` whose input is the context, if the class makes it.
    context: str = ""
    # Computes the bias from the module and its arguments, if none of them is it.
    own_bias: Callable[[nn.Module, Mapping[str, Any]], Tensor] | None = None


def attention_of_decoder(
    path: str, own: str = "self_attn", cross: str = "encoder_attn"
) -> tuple[Attention, Attention]:
    """A decoder's attention to itself, and to the encoder's output."""
    return (
        Attention(f"{path}.{{}}.{own}", label="decoder."),
        Attention(f"{path}.{{}}.{cross}", label="cross."),
    )


@dataclass(frozen=True)
class Model:
    """A model of two layers with random weights."""

    files: ClassVar = ("config.json", "model.safetensors", "expected.safetensors")

    name: str
    model_type: str
    attention: tuple[Attention, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    # The prefix of a model with a head before the names of the bare one.
    prefix: str = ""
    # The input of the model.
    inputs: str = "text"
    # It is run with padded batches, too.
    padded: bool = False
    # The argument that says what is padding.
    mask: str = "attention_mask"
    # The module that is run, if it is a part of the model.
    run_part: str = ""
    # The way in which attention is computed.
    implementation: str = "eager"
    # The class, if it is not the bare model of its type.
    model_class: str = ""

    def write(self, folder: Path) -> None:
        try:
            import transformers  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"needs the package transformers: {error}")
        config = self.make_config()
        model = self.make(config)
        expected = self.run(model, draw_inputs(self.inputs))
        if self.padded:
            expected |= self.run_padded(model)
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        self.write_tensors(model, expected, folder)

    def config_class(self) -> Any:
        import transformers

        if self.model_class:
            return class_of(self.model_class).config_class
        return transformers.CONFIG_MAPPING[self.model_type]

    def make_config(self) -> Any:
        return self.config_class()(**self.config)

    def make(self, config: Any) -> nn.Module:
        """Returns a model of this configuration with random weights."""
        torch.manual_seed(1)
        model = self.make_empty(config)
        draw_weights(model.eval())
        return model

    def make_empty(self, config: Any) -> nn.Module:
        import transformers

        config._attn_implementation = self.implementation
        if self.model_class:
            return class_of(self.model_class)(config)
        return transformers.AutoModel.from_config(config)

    def write_tensors(
        self, model: nn.Module, expected: Mapping[str, Tensor], folder: Path
    ) -> None:
        safetensors_file.write(
            folder / "model.safetensors", self.weights_of_attention(model)
        )
        safetensors_file.write(folder / "expected.safetensors", expected)

    def run(
        self, model: nn.Module, inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Returns what went into each attention, and what came out."""
        seen: dict[str, Tensor] = {}
        handles = []
        for attention in self.attention:
            # Layers may share a module, which is then called for each in turn.
            calls: dict[tuple[str, str], list[int]] = {}
            before = layers_before(attention, model)
            for layer in attention.layers:
                path = attention.path.format(layer)
                for end in (attention.first, attention.last):
                    calls.setdefault((path, end), []).append(before + layer)

            def see_input(module, args, kwargs, key, left, each):
                name = f"{each.label}{left[key][0]}"
                given = {
                    **inspect.signature(module.forward)
                    .bind_partial(*args, **kwargs)
                    .arguments
                }
                given.setdefault("hidden_states", args[0] if args else None)
                for what, names in {**ARGUMENTS, "bias": (each.bias,)}.items():
                    for argument in names:
                        tensor = given.get(argument)
                        # FSMT's attention to itself has the argument, too.
                        is_known = argument not in ("key", "keys") or each.label == "cross."
                        if isinstance(tensor, Tensor) and is_known:
                            seen[f"{name}.{what}"] = batched(tensor, each, what)
                see_kinds_of_tokens(seen, name, given)
                add_positions(seen, name, given, each)
                tokens = seen[f"{name}.input"].shape[1]
                computed = bias_in(module, given, each, tokens)
                if computed is not None:
                    seen[f"{name}.bias"] = computed
                see_mask(seen, name, given.get(each.mask))
                if each.blocks:
                    seen[f"{name}.blocks"] = each.blocks(inputs, tokens)
                starts = given.get("cu_seqlens")
                if starts is not None and len(starts) > 2:
                    seen[f"{name}.cu_seqlens"] = starts.long()
                if each.rotary:
                    found = angles_of(given, tokens, inputs, each)
                    seen.update((f"{name}.{key}", found[key]) for key in found)

            def see_context(_, args, key, left, each):
                name = f"{each.label}{left[key][0]}"
                seen[f"{name}.context"] = batched(args[0], each)

            def see_output(_, args, output, key, left, each):
                name = f"{each.label}{left[key].pop(0)}"
                if isinstance(output, tuple | list):
                    # T5's layer 0 gives the bias that it computed.
                    bias = output[1] if len(output) > 1 else None
                    if each.bias and isinstance(bias, Tensor):
                        seen.setdefault(f"{name}.bias", bias.detach())
                    output = first_output(output)
                seen[f"{name}.output"] = batched(output, each)

            paths = sorted({path for path, _ in calls})
            for path in paths:
                left = {path: list(calls[path, attention.last])}
                known = {"key": path, "left": left, "each": attention}
                first = model.get_submodule(f"{path}{attention.first}")
                last = model.get_submodule(f"{path}{attention.last}")
                handles += [
                    first.register_forward_pre_hook(
                        bound(see_input, **known), with_kwargs=True
                    ),
                    last.register_forward_hook(bound(see_output, **known)),
                ]
                if attention.context:
                    module = model.get_submodule(f"{path}{attention.context}")
                    hook = bound(see_context, **known)
                    handles.append(module.register_forward_pre_hook(hook))
        with torch.no_grad():
            model.get_submodule(self.run_part)(**inputs)
        for handle in handles:
            handle.remove()
        return cut_to_outputs(self.attention, seen)

    def run_padded(self, model: nn.Module) -> dict[str, Tensor]:
        """Runs batches whose second sequence is padded."""
        expected = {}
        of_decoder = self.mask.startswith("decoder_")
        tokens = 5 if of_decoder else TOKENS
        for side, place in (("right", slice(-3, None)), ("left", slice(None, 3))):
            inputs = draw_inputs(self.inputs)
            mask = torch.ones(2, tokens, dtype=torch.long)
            mask[1, place] = 0
            seen = self.run(model, {**inputs, self.mask: mask})
            expected |= {f"{side}.{key}": value for key, value in seen.items()}
            expected[f"{side}.{'decoder_' * of_decoder}mask"] = mask
        return expected

    def weights_of_attention(self, model: nn.Module) -> dict[str, Tensor]:
        """As `save_pretrained` names them."""
        paths = {
            re.escape((each.file_path or each.path).format(layer))
            for each in self.attention
            for layer in each.layers
        }
        wanted = re.compile(rf"(.*\.)?({'|'.join(sorted(paths))})\..*")
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            saved = safetensors_file.read(Path(folder) / "model.safetensors")[0]
        return {
            self.prefix + key: value.contiguous()
            for key, value in saved.items()
            if wanted.fullmatch(key)
            or "relative_attention_bias" in key
            or key.endswith("class_pos_emb")
            or is_shared(key, saved)
        }


def is_shared(key: str, saved: Mapping[str, Tensor]) -> bool:
    """Returns whether a tensor is one of the embeddings that all layers of
    DeBERTa share, or of their norm."""
    path, _, name = key.rpartition("encoder.")
    return (
        name in ("rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
        and f"{path}encoder.rel_embeddings.weight" in saved
    )


def cut_to_outputs(
    all_attention: tuple[Attention, ...], seen: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Returns tensors whose inputs have as many tokens as the outputs."""
    for attention in all_attention:
        for layer in attention.layers if attention.cut else ():
            name = f"{attention.label}{layer}"
            tokens = seen[f"{name}.output"].shape[1]
            seen[f"{name}.input"] = seen[f"{name}.input"][:, :tokens]
    return {key: value.contiguous() for key, value in seen.items()}


def class_of(name: str) -> type:
    """Returns a class of `transformers`, or of one of its modules."""
    module, _, of_module = name.rpartition(".")
    return getattr(importlib.import_module(f"transformers.{module}".rstrip(".")), of_module)


def bias_in(
    module: nn.Module, given: Mapping[str, Any], attention: Attention, tokens: int
) -> Tensor | None:
    """Returns the bias that the module itself computes."""
    if attention.own_bias:
        return attention.own_bias(module, given).detach().clone()
    # Each layer of UMT5 computes its own.
    computes = hasattr(module, "compute_bias") and "position_bias" not in given
    return module.compute_bias(tokens, tokens) if attention.bias and computes else None


def first_output(outputs: tuple | list) -> Tensor:
    # GPT-NeoX Japanese leaves a bias to its caller.
    left = outputs[2] if len(outputs) > 2 else None
    return outputs[0] + left if isinstance(left, nn.Parameter) else outputs[0]


def layers_before(attention: Attention, model: nn.Module) -> int:
    """Returns the number of layers in the lists before that of the path."""
    count = 0
    for path in attention.after.split("+") if attention.after else ():
        found = int(path) if path.isdigit() else model.config
        for name in [] if path.isdigit() else path.split("."):
            found = found[int(name)] if name.isdigit() else getattr(found, name)
        count += found
    return count


def see_kinds_of_tokens(
    seen: dict[str, Tensor], name: str, given: Mapping[str, Any]
) -> None:
    for what, argument in OF_TOKENS.items():
        if given.get(argument) is not None:
            seen[f"{name}.{what}"] = given[argument].clone()


def add_positions(
    seen: dict[str, Tensor], name: str, given: Mapping[str, Any], each: Attention
) -> None:
    """Adds to the tokens what the model adds, and keeps those of values."""
    tokens = f"{name}.context" if each.label == "cross." else f"{name}.input"
    if each.value:
        seen[f"{name}.value"] = batched(given[each.value], each)
    elif each.positions or each.context_positions:
        seen[f"{name}.value"] = seen[tokens].clone()
    for what, argument in (("input", each.positions), ("context", each.context_positions)):
        positions = given.get(argument)
        if positions is not None:
            key = f"{name}.{what}"
            seen[key] = seen[key] + batched(positions, each)


def see_mask(seen: dict[str, Tensor], name: str, mask: Tensor | None) -> None:
    """Keeps where the mask hides; PyTorch's module has masks (B * H, T, S)."""
    if mask is not None:
        batch = len(seen[f"{name}.input"])
        all_heads = mask.unflatten(0, (batch, -1)) if mask.dim() == 3 else mask
        seen[f"{name}.mask"] = all_heads.ne(0)


def batched(tensor: Tensor, attention: Attention, what: str = "") -> Tensor:
    """A batch, of models that put all images after each other too."""
    copy = tensor.detach().clone()
    if what == "bias" and copy.dim() == 4:
        return copy
    if copy.dim() == 4 and attention.value:
        # SAM has several prompts for each image.
        copy = copy.flatten(0, 1)
    if copy.dim() == 4:
        # Windows, or a whole image, of rows and columns.
        copy = copy.flatten(1, 2)
    if attention.time_first:
        copy = copy.transpose(0, 1)
    return copy.unsqueeze(0) if copy.dim() == 2 else copy


def grid_of(inputs: Mapping[str, Tensor]) -> Tensor:
    """Returns the rows and columns of patches that an image has."""
    if "grid_thw" in inputs:
        return inputs["grid_thw"][0, 1:]
    if "image_grid_thw" in inputs:
        # In squares of patches.
        return 2 * inputs["image_grid_thw"][0, 1:]
    if "pixel_position_ids" in inputs:
        # Columns are before rows.
        return inputs["pixel_position_ids"][0].amax(0).flip(0) + 1
    return torch.tensor(inputs["pixel_values"].shape[-2:]) // PATCH


def angles_of(
    given: Mapping[str, Any],
    tokens: int,
    inputs: Mapping[str, Tensor],
    attention: Attention,
) -> dict[str, Tensor]:
    """The cosines and sines of pairs that a call was given, and their grid."""
    both = given.get("position_embeddings")
    if both is None:
        both = of_complex(given["freqs_ci"])
    states = given["hidden_states"]
    # Windows, or a whole image, of rows and columns.
    is_grid = states is not None and states.dim() == 4
    grid = torch.tensor(states.shape[1:3]) if is_grid else grid_of(inputs)
    found = {"grid": grid}
    for what, angles, still in zip(("cos", "sin"), both, (1, 0)):
        if attention.in_halves:
            angles = of_halves(angles)
        found[what] = of_pairs(angles, tokens, still, attention.repeats)
    return found


def of_pairs(
    angles: Tensor, tokens: int, still: float, repeats: bool = False
) -> Tensor:
    """Cosines or sines of pairs, which models have twice; tokens before those
    of patches are not rotated."""
    angles = angles.detach().reshape(-1, angles.shape[-1])
    angles = angles[:, ::2] if repeats else angles[:, : angles.shape[-1] // 2]
    before = torch.full((tokens - len(angles), angles.shape[-1]), float(still))
    return torch.cat([before, angles.float()])


def of_halves(angles: Tensor) -> Tensor:
    """The order of half a head apart, of pairs in each half of a head."""
    quarters = angles.chunk(4, -1)
    return torch.cat([quarters[i] for i in (0, 2, 1, 3)], -1)


def blocks_of_images(inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """0 for the tokens of the first image, 1 for those of the second, ..."""
    types = inputs.get("token_type_ids", inputs.get("mm_token_type_ids"))
    is_image = types.eq(1)
    starts = is_image & ~torch.nn.functional.pad(is_image, (1, 0))[:, :-1]
    return torch.where(is_image, starts.long().cumsum(1) - 1, -1)


def blocks_of_prefix(inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """0 for the tokens of image and prompt, which are of type 0."""
    return torch.where(inputs["token_type_ids"].eq(0), 0, -1)


def blocks_of_types(inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """0 for all tokens of type 1."""
    return torch.where(inputs["token_type_ids"].eq(1), 0, -1)


def blocks_of_image_before(inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """0 for the tokens of the image, which come before those of the text."""
    text = inputs["input_ids"]
    image = text.new_zeros(len(text), tokens - text.shape[1])
    return torch.cat([image, torch.full_like(text, -1)], 1)


def of_complex(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of pairs, each twice, of complex numbers."""
    turns = turns.reshape(-1, turns.shape[-1]).repeat(1, 2)
    return turns.real, turns.imag


def bound(function, **known):
    return lambda *arguments: function(*arguments, **known)


def draw_weights(model: nn.Module) -> None:
    """Draws weights of which all matter: norms and biases too."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
        else:
            nn.init.uniform_(parameter, 0.5, 1.0)
    for module in model.modules():
        # Sines and cosines, not learned.
        if hasattr(module, "create_weight"):
            module.weight.data.copy_(module.create_weight())
