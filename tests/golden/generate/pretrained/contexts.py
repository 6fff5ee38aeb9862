"""Models whose contexts, biases or masks the caller makes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .encoders import BERT_LIKE, IMAGES, SOUNDS, WIDTHS
from .kinds import GROUPED, SIZES
from .model import LAYERS, Attention, Model

STAGES = {
    "num_encoder_blocks": 2,
    "depths": [1, 2],
    "hidden_sizes": [16, 24],
    "num_attention_heads": [2, 3],
    "patch_sizes": [3, 3],
    "strides": [1, 2],
    "mlp_ratios": [1, 1],
    "decoder_hidden_size": 8,
}


def in_stages(
    name: str,
    path: str,
    file_path: str,
    *,
    first: str,
    context: str,
    last: str,
    inputs: str = "images",
    **config: Any,
) -> Model:
    """Encoders of images whose keys and values are of smaller images."""

    def stage(number: int, layers: tuple[int, ...], after: str) -> Attention:
        return Attention(
            path.format(number, "{}"),
            file_path.format(number, "{}"),
            first,
            last,
            "cross.",
            layers,
            after=after,
            context=context,
        )

    return Model(
        name,
        name,
        (stage(0, (0,), ""), stage(1, (0, 1), "depths.0")),
        {**STAGES, **config},
        inputs=inputs,
    )


def bias_of_products(module: nn.Module, given: Mapping[str, Any]) -> Tensor:
    """BROS: products of queries and what is learned of the places of words."""
    x = given["hidden_states"]
    heads, size = module.num_attention_heads, module.attention_head_size
    query = module.query(x).unflatten(-1, (heads, size))
    places = given["bbox_pos_emb"].reshape(x.shape[1], x.shape[1], x.shape[0], size)
    return torch.einsum("bihd,ijbd->bhij", query, places) / math.sqrt(size)


def bias_of_layout(module: nn.Module, given: Mapping[str, Any]) -> Tensor:
    """LiLT: the scores of the layout's stream."""
    x = given["layout_inputs"]
    query, key = (
        each(x).unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)
        for each in (module.layout_query, module.layout_key)
    )
    return query @ key.mT / math.sqrt(query.shape[-1])


def gated_bias(module: nn.Module, given: Mapping[str, Any]) -> Tensor:
    """WavLM: a bias by distance, times a gate for each query and head."""
    x = given["hidden_states"]
    bias = given.get("position_bias")
    if bias is None:
        bias = module.compute_bias(x.shape[1], x.shape[1])
    bias = bias.reshape(-1, module.num_heads, *bias.shape[-2:])
    heads = x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
    sums = module.gru_rel_pos_linear(heads).unflatten(-1, (2, 4)).sum(-1)
    first, second = sums.sigmoid().unbind(-1)
    gate = first * (second * module.gru_rel_pos_const[..., 0] - 1) + 2
    return gate.unsqueeze(-1) * bias


def masked_bias(_: nn.Module, given: Mapping[str, Any]) -> Tensor:
    """CPM-Ant: hidden keys have -inf."""
    hidden = given["attention_mask"].unsqueeze(1).logical_not()
    return given["position_bias"].masked_fill(hidden, -math.inf)


def blocks_of_patches(inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """0 for the patches of the image, which come before the queries."""
    count = 16
    patches = torch.zeros(len(inputs["pixel_values"]), count, dtype=torch.long)
    return nn.functional.pad(patches, (0, tokens - count), value=-1)


TEXT_OF_PIX2STRUCT = {
    "hidden_size": 24,
    "d_kv": 6,
    "d_ff": 8,
    "num_layers": LAYERS,
    "num_heads": 4,
    "vocab_size": 12,
}

CONTEXTS = (
    in_stages(
        "segformer",
        "stages.{}.blocks.{}.attention",
        "encoder.block.{}.{}.attention",
        first=".q_proj",
        context=".k_proj",
        last=".o_proj",
        sr_ratios=[4, 1],
    ),
    in_stages(
        "glpn",
        "encoder.block.{}.{}.attention",
        "",
        first=".self.query",
        context=".self.key",
        last=".output.dense",
        sr_ratios=[2, 1],
    ),
    in_stages(
        "pvt",
        "encoder.block.{}.{}.attention",
        "",
        first=".self.query",
        context=".self.key",
        last=".output.dense",
        inputs="medium images",
        image_size=16,
        patch_sizes=[4, 2],
        strides=[4, 2],
        sequence_reduction_ratios=[2, 1],
    ),
    in_stages(
        "pvt_v2",
        "encoder.layers.{}.blocks.{}.attention",
        "",
        first=".query",
        context=".key",
        last=".proj",
        image_size=8,
        sr_ratios=[2, 1],
        qkv_bias=False,
    ),
    Model(
        "mobilevit",
        "mobilevit",
        tuple(
            Attention(
                f"encoder.layer.{stage}.transformer.layer.{{}}.attention",
                layers=tuple(range(count)),
                after=after,
            )
            for stage, count, after in ((2, 2, ""), (3, 4, "2"), (4, 2, "6"))
        ),
        {
            "hidden_sizes": [8, 12, 16],
            "neck_hidden_sizes": [4, 4, 4, 8, 8, 8, 8],
            "num_attention_heads": 2,
            "output_stride": 8,
        },
        inputs="large images",
    ),
    Model(
        "groupvit_vision_model",
        "groupvit_vision_model",
        (
            Attention("vision_model.encoder.stages.0.layers.{}.self_attn", layers=(0,)),
            Attention(
                "vision_model.encoder.stages.1.layers.{}.self_attn", after="depths.0"
            ),
        ),
        {
            **IMAGES,
            "num_hidden_layers": 3,
            "depths": [1, 2],
            "num_group_tokens": [3, 0],
            "num_output_groups": [3, 2],
        },
        inputs="images",
        model_class="GroupViTVisionModel",
    ),
    Model(
        "idefics2_perceiver",
        "idefics2_perceiver",
        (
            Attention(
                "layers.{}.self_attn",
                first=".q_proj",
                last=".o_proj",
                label="cross.",
                context=".k_proj",
            ),
        ),
        {
            "hidden_size": 24,
            "resampler_n_latents": 3,
            "resampler_depth": LAYERS,
            "resampler_n_heads": 4,
            "resampler_head_dim": 8,
            "num_key_value_heads": 2,
        },
        inputs="latents and an image",
        model_class="models.idefics2.modeling_idefics2.Idefics2PerceiverResampler",
    ),
    Model(
        "perceiver",
        "perceiver",
        (
            Attention(
                "encoder.self_attends.{}.attention",
                first=".self.query",
                last=".output.dense",
            ),
            Attention(
                "encoder.cross_attention.attention",
                first=".self.query",
                last=".output.dense",
                label="cross.",
                layers=(0,),
                context=".self.key",
            ),
        ),
        {
            "num_latents": 3,
            "d_latents": 24,
            "d_model": 16,
            "num_self_attends_per_block": LAYERS,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 2,
            "qk_channels": 16,
            "v_channels": 24,
        },
        inputs="rows of features",
    ),
    Model(
        "sam3_mask_decoder",
        "sam3_mask_decoder",
        (Attention("prompt_cross_attn", label="cross.", layers=(0,)),),
        {"hidden_size": 24, "num_attention_heads": 4},
        inputs="queries and a prompt",
        model_class="models.sam3.modeling_sam3.Sam3MaskDecoder",
    ),
    Model(
        "superglue",
        "superglue",
        (
            Attention("gnn.layers.{}.attention", last=".output.dense", layers=(0,)),
            Attention(
                "gnn.layers.{}.attention",
                last=".output.dense",
                label="cross.",
                layers=(1,),
            ),
        ),
        {
            "hidden_size": 24,
            "num_attention_heads": 4,
            "keypoint_encoder_sizes": [8, 24],
            "gnn_layers_types": ["self", "cross"],
        },
        inputs="points of two images",
        run_part="gnn",
        model_class="SuperGlueForKeypointMatching",
    ),
    Model(
        "molmo2_adapter",
        "molmo2_adapter",
        (
            Attention(
                "image_pooling_2d", label="cross.", layers=(0,), context=".k_proj"
            ),
        ),
        {
            "vision_feature_layer": [1, 0],
            "hidden_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 8,
            "text_hidden_size": 8,
        },
        inputs="patches to pool",
        model_class="Molmo2Adapter",
    ),
    Model(
        "molmo2",
        "molmo2",
        (
            Attention(
                "model.language_model.layers.{}.self_attn",
                "model.transformer.blocks.{}.self_attn",
                label="text.",
            ),
        ),
        {
            "text_config": {**GROUPED, "head_dim": 8},
            "vision_config": {**WIDTHS, "image_size": [8, 8], "patch_size": 4},
            "adapter_config": {
                "hidden_size": 24,
                "intermediate_size": 8,
                "text_hidden_size": 24,
                "vision_feature_layer": [1, 0],
            },
        },
        model_class="Molmo2ForConditionalGeneration",
    ),
    Model(
        "layoutlmv3",
        "layoutlmv3",
        (
            Attention(
                BERT_LIKE, first=".self", last=".output.dense", bias="position_bias"
            ),
        ),
        {**SIZES, "coordinate_size": 4, "shape_size": 4, "visual_embed": False},
        prefix="layoutlmv3.",
        inputs="text with places",
    ),
    Model(
        "bros",
        "bros",
        (
            Attention(
                BERT_LIKE,
                first=".self",
                last=".output.dense",
                own_bias=bias_of_products,
            ),
        ),
        {**SIZES, "hidden_size": 64},
        prefix="bros.",
        inputs="text with places",
    ),
    Model(
        "lilt",
        "lilt",
        (
            Attention(
                BERT_LIKE,
                first=".self",
                last=".output.dense",
                own_bias=bias_of_layout,
            ),
        ),
        {**SIZES, "channel_shrink_ratio": 2},
        prefix="lilt.",
        inputs="text with places",
    ),
    Model(
        "wavlm",
        "wavlm",
        (Attention("encoder.layers.{}.attention", own_bias=gated_bias),),
        {**SOUNDS, "num_buckets": 8, "max_bucket_distance": 12},
        inputs="sound",
    ),
    Model(
        "cpmant",
        "cpmant",
        (
            Attention(
                "encoder.layers.{}.self_att.self_attention", own_bias=masked_bias
            ),
        ),
        {
            "vocab_size": 12,
            "hidden_size": 24,
            "num_attention_heads": 4,
            "dim_head": 8,
            "dim_ff": 8,
            "num_hidden_layers": LAYERS,
            "prompt_length": 3,
            "prompt_types": 3,
            "position_bias_num_buckets": 8,
            "use_cache": False,
        },
        inputs="text",
    ),
    Model(
        "phi4_multimodal_audio",
        "phi4_multimodal_audio",
        (Attention("encoders.{}.self_attn", bias="attention_mask"),),
        {
            "hidden_size": 16,
            "intermediate_size": 8,
            "num_blocks": LAYERS,
            "num_attention_heads": 4,
            "chunk_size": 4,
            "left_chunk": 1,
            "ext_pw_out_channel": 16,
            "depthwise_separable_out_channel": 16,
            "input_size": 8,
            "time_reduction": 2,
            "bias_max_distance": 6,
            "nemo_conv_channels": 4,
        },
        inputs="frames of sound",
        model_class="Phi4MultimodalAudioModel",
    ),
    Model(
        "pix2struct",
        "pix2struct",
        (
            Attention(
                "decoder.layer.{}.self_attention.attention",
                label="text.",
                bias="position_bias",
            ),
            Attention(
                "decoder.layer.{}.encoder_decoder_attention.attention", label="cross."
            ),
            Attention("encoder.encoder.layer.{}.attention", label="vision."),
        ),
        {
            "text_config": TEXT_OF_PIX2STRUCT,
            "vision_config": {
                **WIDTHS,
                "d_kv": 6,
                "d_ff": 8,
                "patch_embed_hidden_size": 12,
                "seq_len": 16,
            },
        },
        inputs="patches to text",
        model_class="Pix2StructForConditionalGeneration",
    ),
    Model(
        "udop",
        "udop",
        (
            Attention(
                "encoder.block.{}.layer.0.SelfAttention",
                label="encoder.",
                bias="position_bias",
            ),
            Attention(
                "decoder.block.{}.layer.0.SelfAttention",
                label="decoder.",
                bias="position_bias",
            ),
            Attention("decoder.block.{}.layer.1.EncDecAttention", label="cross."),
        ),
        {
            "d_model": 24,
            "d_kv": 10,
            "d_ff": 8,
            "num_layers": LAYERS,
            "num_heads": 2,
            "vocab_size": 12,
            "image_size": 8,
            "patch_size": 4,
            "max_2d_position_embeddings": 16,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        },
        inputs="text with places to text",
    ),
    Model(
        "recurrent_gemma",
        "recurrent_gemma",
        (Attention("layers.{}.temporal_block", layers=(2,)),),
        {
            **GROUPED,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "attention_window_size": 4,
            "use_cache": False,
        },
        prefix="model.",
    ),
    Model(
        "zamba",
        "zamba",
        (
            Attention(
                "layers.{}.shared_transf.self_attn",
                "layers.1.shared_transf.self_attn",
                layers=(1, 2),
            ),
        ),
        {
            **GROUPED,
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
            "n_mamba_heads": 2,
            "mamba_d_state": 4,
            "use_mamba_kernels": False,
        },
        prefix="model.",
    ),
    Model(
        "xclip_vision_model",
        "xclip_vision_model",
        (Attention("encoder.layers.{}.self_attn"),),
        {**IMAGES, "num_frames": 2},
        inputs="images",
        model_class="XCLIPVisionModel",
    ),
    Model(
        "deepseek_ocr2_vision",
        "deepseek_ocr2_vision",
        (
            Attention(
                "vision_encoder.layers.{}.self_attn", blocks=blocks_of_patches
            ),
        ),
        {
            "sam_config": {
                **WIDTHS,
                "output_channels": 8,
                "image_size": 64,
                "patch_size": 4,
                "window_size": 2,
                "mlp_dim": 8,
                "global_attn_indexes": [1],
                "downsample_channels": [8, 24],
            },
            "encoder_config": {**GROUPED, "max_position_embeddings": 512},
        },
        inputs="large images",
        model_class="DeepseekOcr2VisionModel",
    ),
)
