"""Encoders of images and sounds that attend within windows of two dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .encoders import WIDTHS
from .kinds import SIZES
from .model import Attention, Model, layers_before


@dataclass(frozen=True)
class Swin(Model):
    """Swin or a follower: also what goes into the windows, and what the windows
    become together."""

    def run(
        self, model: nn.Module, inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        handles = []
        number_of: dict[str, str] = {}
        for each in self.attention:
            first = layers_before(each, model)
            for layer in each.layers:
                path = each.path.format(layer).rpartition(".")[0]
                number_of[path] = f"{each.label}{first + layer}"

        def see_layer(module, args, kwargs, name):
            seen[f"{name}.sides"] = torch.tensor(kwargs.get("input_dimensions", args[1]))
            seen[f"{name}.before"] = args[0].detach().clone()

        def see_norm(_, args, output, name):
            sides = seen[f"{name}.sides"].tolist()
            seen[f"{name}.image"] = output.detach().unflatten(1, sides).clone()

        def see_after(_, args, name):
            sides = seen.pop(f"{name}.sides").tolist()
            added = args[0].detach() - seen.pop(f"{name}.before")
            seen[f"{name}.merged"] = added.unflatten(1, sides).clone()

        def see_attention(module, args, kwargs, name):
            mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
            if mask is not None:
                images = len(args[0]) // len(mask)
                seen[f"{name}.mask"] = mask.ne(0).unsqueeze(1).repeat(images, 1, 1, 1)
            seen[f"{name}.bias"] = bias_of(module)

        def bound(function, name):
            return lambda *arguments: function(*arguments, name)

        for path, name in number_of.items():
            layer = model.get_submodule(path)
            handles += [
                layer.register_forward_pre_hook(bound(see_layer, name), with_kwargs=True),
                layer.layernorm_before.register_forward_hook(bound(see_norm, name)),
                layer.layernorm_after.register_forward_pre_hook(bound(see_after, name)),
                layer.attention.register_forward_pre_hook(
                    bound(see_attention, name), with_kwargs=True
                ),
            ]
        found = super().run(model, inputs)
        for handle in handles:
            handle.remove()
        return found | {key: value.contiguous() for key, value in seen.items()}


def bias_of(attention: nn.Module) -> Tensor:
    """The bias of all pairs of tokens of a window: (1, heads, N, N)."""
    inner = getattr(attention, "self", None) or attention.relative_position_bias
    index = inner.relative_position_index
    tokens = int(index.numel() ** 0.5)
    bias = inner.relative_position_bias_table.detach()[index.view(-1)]
    return bias.view(tokens, tokens, -1).permute(2, 0, 1).unsqueeze(0).clone()


def stages(path: str, depths: list[int], prefix: str = "") -> tuple[Attention, ...]:
    """The attention of all layers in all stages; {} stands for the stage, and []
    for the layer in it. Files do not have the prefix."""
    return tuple(
        Attention(
            prefix + path.format(stage).replace("[]", "{}"),
            path.format(stage).replace("[]", "{}"),
            layers=tuple(range(count)),
            after="+".join(f"depths.{before}" for before in range(stage)),
        )
        for stage, count in enumerate(depths)
    )


def swin(
    name: str,
    model_type: str,
    depths: list[int],
    inputs: str = "swin images",
    model_class: str = "",
    **config: Any,
) -> Model:
    prefix = "swin." if model_class.endswith("Backbone") else ""
    return Swin(
        name,
        model_type,
        stages("encoder.layers.{}.blocks.[].attention", depths, prefix),
        {
            "image_size": [20, 28],
            "patch_size": 2,
            "embed_dim": 8,
            "depths": depths,
            "num_heads": [1, 2, 4][: len(depths)],
            "mlp_ratio": 1.0,
            **config,
        },
        inputs=inputs,
        model_class=model_class,
    )


SAM3_LAYERS = {
    **WIDTHS,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 20,
    "pretrain_image_size": 8,
    "patch_size": 4,
    "window_size": 3,
    "global_attn_indexes": [1],
}

SAM = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 20,
    "patch_size": 4,
    "window_size": 3,
    "global_attn_indexes": [1],
    "mlp_dim": 8,
    "output_channels": 8,
}


def sam(name: str, path: str, model_class: str = "", **config: Any) -> Model:
    return Model(
        name,
        name,
        (Attention(path, layers=(0, 1, 2)),),
        {**SAM, **config},
        inputs="square image",
        model_class=model_class,
    )


OF_DETR = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "num_windows": 4,
    "mlp_ratio": 1,
}

IMAGES_IN_WINDOWS = (
    # The last stage is as large as a window, and has no shift.
    swin("swin", "swin", [2, 1, 2], window_size=3),
    swin("swin_unbiased", "swin", [1, 3], window_size=2, qkv_bias=False),
    swin("donut_swin", "donut-swin", [2, 2], window_size=4),
    # Windows larger than the image of the last stage.
    swin("maskformer_swin", "maskformer-swin", [2, 1, 2], window_size=4),
    swin("swin_backbone", "swin", [2, 1, 2], window_size=4, model_class="SwinBackbone"),
    Swin(
        "clap_audio",
        "clap_audio_model",
        stages("audio_encoder.layers.{}.blocks.[].attention", [2, 2]),
        {
            "window_size": 3,
            "spec_size": 16,
            "num_mel_bins": 4,
            "patch_size": 2,
            "patch_stride": [2, 2],
            "patch_embeds_hidden_size": 8,
            "depths": [2, 2],
            "num_attention_heads": [2, 4],
            "hidden_size": 16,
            "mlp_ratio": 1.0,
        },
        inputs="spectra of sounds",
        model_class="ClapAudioModel",
    ),
    Model(
        "sam3_vit",
        "sam3_vit_model",
        (Attention("layers.{}.attention", rotary=True, repeats=True, layers=(0, 1, 2)),),
        SAM3_LAYERS,
        inputs="square image",
    ),
    Model(
        "sam3_vision",
        "sam3_vision_model",
        (
            Attention(
                "backbone.layers.{}.attention",
                rotary=True,
                repeats=True,
                layers=(0, 1, 2),
            ),
        ),
        {
            "backbone_config": {"model_type": "sam3_vit_model", **SAM3_LAYERS},
            "fpn_hidden_size": 8,
        },
        inputs="square image",
    ),
    sam("sam_vision_model", "vision_encoder.layers.{}.attn"),
    sam(
        "sam_hq_vision_model",
        "vision_encoder.layers.{}.attn",
        use_rel_pos=False,
        qkv_bias=False,
    ),
    Model(
        "vitdet",
        "vitdet",
        (Attention("encoder.layer.{}.attention", layers=(0, 1, 2)),),
        {
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": [20, 28],
            "patch_size": 4,
            "window_size": 3,
            "window_block_indices": [0, 2],
            "use_relative_position_embeddings": True,
            "pretrain_image_size": 20,
            "mlp_ratio": 1,
        },
        inputs="swin images",
    ),
    Model(
        "seggpt",
        "seggpt",
        (Attention("encoder.layers.{}.attention"),),
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [16, 8],
            "patch_size": 4,
            "pretrain_image_size": 8,
            "mlp_dim": 8,
            "decoder_hidden_size": 8,
            "intermediate_hidden_state_indices": [0, 1],
            "merge_index": 0,
        },
        inputs="image with a prompt",
    ),
    Model(
        "lw_detr_vit",
        "lw_detr_vit",
        (Attention("encoder.layer.{}.attention", layers=(0, 1, 2)),),
        {**OF_DETR, "pretrain_image_size": 8, "window_block_indices": [0, 2]},
        inputs="large square image",
        model_class="LwDetrViTBackbone",
    ),
    Model(
        "rf_detr_dinov2",
        "rf_detr_dinov2",
        (Attention("encoder.layer.{}.attention", layers=(0, 1, 2)),),
        {**OF_DETR, "num_windows": 2, "out_indices": [2, 3]},
        inputs="large square image",
        model_class="RfDetrDinov2Backbone",
    ),
    Model(
        "gemma4_vision",
        "gemma4_vision",
        (Attention("encoder.layers.{}.self_attn", rotary=True, in_halves=True),),
        {
            **SIZES,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 8,
        },
        inputs="patches with positions",
        model_class="Gemma4VisionModel",
    ),
)
