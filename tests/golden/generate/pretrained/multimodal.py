"""Models of text and images, and of text and sound."""

from __future__ import annotations

from typing import Any

from .encoder_decoders import SMALL
from .encoders import IMAGES, WIDTHS
from .kinds import EXPERTS, GROUPED, SIZES, SLIDING_FIRST
from .model import (
    LAYERS,
    Attention,
    Model,
    blocks_of_image_before,
    blocks_of_images,
    blocks_of_prefix,
)
from .own_rules import GEMMA4, KOSMOS_2

# Sizes of images that are not run, to keep the making short.
VISION = {
    "gemma4": {
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "position_embedding_size": 16,
    },
    "qwen2_vl": {
        "embed_dim": 16,
        "depth": 1,
        "hidden_size": 24,
        "num_heads": 2,
        "patch_size": 4,
    },
    "qwen2_5_vl": {
        "hidden_size": 16,
        "depth": 1,
        "out_hidden_size": 24,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 8,
    },
    "qwen3_vl": {
        "hidden_size": 16,
        "depth": 1,
        "out_hidden_size": 24,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 8,
    },
    "qwen3_vl_moe": {
        "hidden_size": 16,
        "depth": 1,
        "out_hidden_size": 24,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 8,
    },
    "ernie4_5_vl_moe": {
        "hidden_size": 16,
        "depth": 1,
        "num_heads": 2,
        "patch_size": 4,
        "intermediate_size": 8,
    },
    "internvl": {**IMAGES, "image_size": [8, 8], "patch_size": [4, 4]},
    "mistral3": {**IMAGES, "model_type": "pixtral", "head_dim": 6},
}
MULTIMODAL_ROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [1, 1, 1],
}
KOSMOS = {
    "text_config": {**KOSMOS_2["text_config"]},
    "vision_config": {
        "hidden_size": 24,
        "intermediate_size": 8,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "head_dim": 8,
        "patch_embed_hidden_size": 12,
        "max_num_patches": 16,
    },
    "latent_query_num": 4,
}


def with_images(
    name: str,
    text: str,
    vision: str = "",
    inputs: str = "text",
    blocks: Any = None,
    **config: Any,
) -> Model:
    """A model that writes text; the images are not run."""
    inner = {"model_type": vision, **IMAGES} if vision else {}
    return Model(
        name,
        name.split("_with_images")[0].removesuffix("_2"),
        (
            Attention(
                "language_model.layers.{}.self_attn",
                "layers.{}.self_attn",
                label="text.",
                blocks=blocks,
            ),
        ),
        {
            "text_config": {**GROUPED, "model_type": text, **config},
            "vision_config": {**inner, **VISION.get(name, {})},
        },
        inputs=inputs,
    )


def two_towers(name: str) -> Model:
    return Model(
        name,
        name,
        tuple(
            Attention(f"{part}_model.encoder.layers.{{}}.self_attn", label=f"{part}.")
            for part in ("text", "vision")
        ),
        {"text_config": SIZES, "vision_config": IMAGES},
        inputs="text and images",
    )


MULTIMODAL = (
    two_towers("clip"),
    two_towers("siglip"),
    Model(
        "blip",
        "blip",
        (
            Attention(
                "text_model.encoder.layer.{}.attention",
                last=".output.dense",
                label="text.",
            ),
            Attention("vision_model.encoder.layers.{}.self_attn", label="vision."),
        ),
        {
            "text_config": SIZES,
            "vision_config": IMAGES,
            # The class decides if its text sees both sides.
            "architectures": ["BlipModel"],
        },
        inputs="text and images",
    ),
    Model(
        "aimv2",
        "aimv2",
        (Attention("vision_model.encoder.layers.{}.attention", label="vision."),),
        {"text_config": SIZES, "vision_config": {**IMAGES, "qkv_bias": True}},
        inputs="text with a mask, and images",
    ),
    Model(
        "mllama",
        "mllama",
        (
            Attention(
                "language_model.layers.{}.self_attn",
                "layers.{}.self_attn",
                label="text.",
                layers=(0,),
            ),
        ),
        {
            "text_config": {**GROUPED, "cross_attention_layers": [1]},
            "vision_config": {
                "hidden_size": 8,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 2,
                "intermediate_size": 8,
                "vision_output_dim": 16,
                "image_size": 8,
                "patch_size": 4,
                "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1]],
                "max_num_tiles": 1,
            },
        },
    ),
    Model(
        "phi4_multimodal",
        "phi4_multimodal",
        (Attention("layers.{}.self_attn", label="text."),),
        {
            **GROUPED,
            "vision_config": {**IMAGES, "image_size": 8, "crop_size": 8},
            "audio_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_blocks": 1,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 8,
                "depthwise_separable_out_channel": 8,
                "input_size": 16,
                "nemo_conv_channels": 8,
            },
        },
        prefix="model.",
    ),
    Model(
        "qwen2_audio",
        "qwen2_audio",
        (Attention("audio_tower.layers.{}.self_attn", label="audio."),),
        {
            "text_config": {**GROUPED, "model_type": "qwen2"},
            "audio_config": {
                "model_type": "qwen2_audio_encoder",
                "d_model": 24,
                "encoder_layers": LAYERS,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 8,
                "max_source_positions": 10,
                "num_mel_bins": 4,
            },
        },
        inputs="mels",
        run_part="audio_tower",
    ),
    Model(
        "altclip",
        "altclip",
        (
            Attention(
                "text_model.roberta.encoder.layers.{}.attention",
                "text_model.roberta.encoder.layer.{}.attention",
                last=".output.dense",
                label="text.",
            ),
            Attention(
                "vision_model.encoder.layers.{}.self_attn",
                "vision_model.encoder.layer.{}.self_attn",
                label="vision.",
            ),
        ),
        {"text_config": SIZES, "vision_config": IMAGES},
        inputs="text and images",
    ),
    Model(
        "blip_2",
        "blip-2",
        (Attention("vision_model.encoder.layers.{}.self_attn", label="vision."),),
        {
            "text_config": {
                **SIZES,
                "model_type": "opt",
                "ffn_dim": 8,
                "word_embed_proj_dim": 24,
            },
            "vision_config": IMAGES,
            "qformer_config": {**SIZES, "encoder_hidden_size": 24},
            "num_query_tokens": 2,
        },
        inputs="images",
        run_part="vision_model",
    ),
    Model(
        "llama4_with_images",
        "llama4",
        (
            Attention(
                "vision_model.model.layers.{}.self_attn", label="vision.", rotary=True
            ),
        ),
        {
            "text_config": {
                **GROUPED,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "head_dim": 8,
            },
            "vision_config": {
                **IMAGES,
                "hidden_size": 32,
                "intermediate_size": 128,
                "vision_output_dim": 8,
                "projector_input_dim": 8,
                "projector_output_dim": 8,
            },
        },
        inputs="images",
        run_part="vision_model",
    ),
    with_images("aya_vision", "cohere2", "siglip_vision_model", head_dim=6),
    with_images("gemma3_with_images", "gemma3_text", "siglip_vision_model", head_dim=8),
    with_images(
        "gemma3_with_images_in_text",
        "gemma3_text",
        "siglip_vision_model",
        "text with images",
        blocks_of_images,
        head_dim=8,
        sliding_window=3,
        layer_types=SLIDING_FIRST,
    ),
    with_images(
        "gemma4",
        "gemma4_text",
        inputs="text with images of type 1",
        blocks=blocks_of_images,
        **GEMMA4,
        layer_types=SLIDING_FIRST,
        use_bidirectional_attention="vision",
    ),
    with_images(
        "paligemma",
        "gemma",
        "siglip_vision_model",
        "image before text",
        blocks_of_prefix,
        head_dim=8,
    ),
    with_images(
        "paligemma_2",
        "gemma2",
        "siglip_vision_model",
        "image before text",
        blocks_of_prefix,
        head_dim=8,
        sliding_window=3,
    ),
    Model(
        "git",
        "git",
        (
            Attention(
                "encoder.layer.{}.attention",
                last=".output.dense",
                label="text.",
                blocks=blocks_of_image_before,
            ),
        ),
        {
            **SMALL,
            "vision_config": {**IMAGES, "num_hidden_layers": 1},
        },
        prefix="git.",
        inputs="text and images",
    ),
    with_images("internvl", "qwen2"),
    with_images("llava", "llama", "clip_vision_model"),
    with_images("llava_next", "llama", "clip_vision_model"),
    with_images("llava_onevision", "qwen2", "siglip_vision_model"),
    with_images("vipllava", "llama", "clip_vision_model"),
    with_images("mistral3", "mistral"),
    with_images("qwen2_vl", "qwen2_vl_text", rope_parameters=MULTIMODAL_ROPE),
    with_images("qwen2_5_vl", "qwen2_5_vl_text", rope_parameters=MULTIMODAL_ROPE),
    with_images(
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
        **EXPERTS,
        head_dim=6,
        rope_parameters=MULTIMODAL_ROPE,
    ),
    with_images(
        "qwen3_vl", "qwen3_vl_text", head_dim=6, rope_parameters=MULTIMODAL_ROPE
    ),
    Model(
        "janus",
        "janus",
        (Attention("vision_model.encoder.layers.{}.self_attn", label="vision."),),
        {
            "text_config": {**GROUPED, "model_type": "llama"},
            "vision_config": {**IMAGES, "mlp_ratio": 0.5},
            "vq_config": {
                "embed_dim": 4,
                "num_embeddings": 4,
                "latent_channels": 4,
                "base_channels": 32,
                "channel_multiplier": [1],
                "num_res_blocks": 1,
                "projection_dim": 8,
                "image_token_embed_dim": 8,
            },
        },
        inputs="images",
        run_part="vision_model",
    ),
    Model(
        "idefics",
        "idefics",
        (
            Attention("layers.{}.self_attn", label="text."),
            Attention("vision_model.encoder.layers.{}.self_attn", label="vision."),
        ),
        {
            **SIZES,
            "qk_layer_norms": True,
            "vision_config": {**IMAGES, "embed_dim": 24},
        },
        prefix="model.",
        inputs="text about images",
    ),
    Model(
        "kosmos_2_5",
        "kosmos-2.5",
        (Attention("vision_model.encoder.layer.{}.attention", label="vision."),),
        KOSMOS,
        inputs="flattened patches",
        run_part="vision_model",
    ),
    Model(
        "kosmos_2_5_text",
        "kosmos-2.5",
        (Attention("text_model.model.layers.{}.self_attn", label="text."),),
        KOSMOS,
        run_part="text_model",
    ),
    Model(
        "glmasr",
        "glmasr",
        (Attention("audio_tower.layers.{}.self_attn", label="audio."),),
        {
            "text_config": {**GROUPED, "model_type": "llama"},
            "audio_config": {
                **GROUPED,
                "num_key_value_heads": 4,
                "num_mel_bins": 4,
                "head_dim": 8,
            },
        },
        inputs="mels",
        run_part="audio_tower",
    ),
    Model(
        "voxtral_realtime",
        "voxtral_realtime",
        (Attention("audio_tower.layers.{}.self_attn", label="audio."),),
        {
            "text_config": {**GROUPED, "head_dim": 6},
            "audio_config": {
                **WIDTHS,
                "num_mel_bins": 4,
                "head_dim": 8,
                "sliding_window": 3,
            },
        },
        inputs="mels",
        run_part="audio_tower",
    ),
    with_images(
        "ernie4_5_vl_moe",
        "ernie4_5_vl_moe_text",
        hidden_size=32,
        use_bias=True,
        rope_parameters={**MULTIMODAL_ROPE, "mrope_section": [1, 1, 2]},
        moe_num_experts=2,
        moe_k=1,
        moe_intermediate_size=[8, 8],
    ),
)
