"""Encoders of images and videos in models of text and images."""

from __future__ import annotations

from typing import Any

from .encoders import IMAGES, WIDTHS, clip_like, qwen_vision
from .kinds import GROUPED, SIZES
from .model import LAYERS, Attention, Model

SELF_ATTENTION = "layers.{}.self_attn"
# Patches in rows of 48 numbers, 3 colours of 4 x 4.
PACKED = {**WIDTHS, "patch_size": 4}


def packed(
    name: str,
    path: str = SELF_ATTENTION,
    inputs: str = "packed patches",
    *,
    file_path: str = "",
    rotary: bool = False,
    repeats: bool = False,
    model_class: str = "",
    **config: Any,
) -> Model:
    """An encoder that gets the patches of all images after each other."""
    return Model(
        name,
        name,
        (Attention(path, file_path, rotary=rotary, repeats=repeats),),
        {**PACKED, **config},
        inputs=inputs,
        model_class=model_class,
    )


MUSE = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "pos_emb_height": 3,
    "pos_emb_width": 3,
    "patch_temporal": 1,
    "layer_types": ["window_attention", "full_attention"],
}
PRISM = {
    **WIDTHS,
    "image_size": 8,
    "num_frames": 2,
    "tubelet_size": [1, 4, 4],
    "num_spatial_layers": 1,
    "num_temporal_layers": 1,
    "num_auxiliary_layers": 1,
    "attn_logit_softcapping": 2.0,
}

VISION = (
    qwen_vision(
        "exaone4_5_vision",
        num_heads=4,
        hidden_size=32,
        num_key_value_heads=2,
        window_size=16,
        fullatt_block_indexes=[1],
    ),
    packed(
        "glm_image_vision",
        "blocks.{}.attn",
        depth=LAYERS,
        num_heads=4,
        image_size=16,
    ),
    packed(
        "dots3_note_vision_encoder",
        "blocks.{}.attn",
        rotary=True,
        model_class="Dots3NoteVisionModel",
        hidden_size=16,
        num_attention_heads=2,
        adapter_in_dim=16,
        adapter_out_dim=8,
        attention_bias=True,
        mlp_layer_types=["dense", "dense"],
        num_experts_per_tok=1,
    ),
    packed(
        "hunyuan_vl_vision", max_image_size=16, out_hidden_size=8, text_hidden_size=8
    ),
    packed(
        "inkling2_vision",
        inputs="packed patches of squares",
        rotary=True,
        repeats=True,
        hidden_size=16,
        num_attention_heads=2,
        posemb_grid_size=4,
        projection_hidden_dim=8,
        text_hidden_size=8,
    ),
    packed(
        "lfm3_vl_vision",
        inputs="packed pairs of patches",
        rotary=True,
        hidden_size=32,
        num_key_value_heads=2,
        layer_types=["full_attention", "full_attention"],
    ),
    packed(
        "minimax_m3_vl_vision",
        inputs="packed pairs of patches",
        rotary=True,
        model_class="MiniMaxM3VLVisionModel",
        hidden_size=16,
        num_attention_heads=2,
    ),
    packed("muse_glimmer_vision", "layers.{}.attn", rotary=True, **MUSE),
    clip_like(
        "granite_docling_vision",
        "images",
        **IMAGES,
        deepstack_visual_indexes=[0],
        scale_factor=2,
    ),
    clip_like("minicpm_ocr_vision", "patches in a row", **IMAGES, insert_layer_id=-1),
    Model(
        "mllama_vision_model",
        "mllama_vision_model",
        (
            Attention("transformer.layers.{}.self_attn", mask="attention_mask"),
            Attention(
                "global_transformer.layers.{}.self_attn",
                layers=(0,),
                mask="attention_mask",
                after="num_hidden_layers",
            ),
        ),
        {
            "hidden_size": 16,
            "num_hidden_layers": LAYERS,
            "num_global_layers": 1,
            "attention_heads": 2,
            "intermediate_size": 8,
            "vision_output_dim": 48,
            "image_size": 8,
            "patch_size": 4,
            "intermediate_layers_indices": [0, 1],
            "supported_aspect_ratios": [[1, 1], [1, 2]],
            "max_num_tiles": 2,
        },
        inputs="tiles",
        model_class="MllamaVisionModel",
    ),
    Model(
        "molmo2_vision",
        "molmo2_vision",
        (Attention(SELF_ATTENTION),),
        {
            **WIDTHS,
            "image_size": [8, 8],
            "patch_size": 4,
            "head_dim": 8,
            "num_key_value_heads": 2,
        },
        inputs="patches of images",
        model_class="Molmo2VisionModel",
    ),
    Model(
        "step3p5_vision",
        "step3p5_vision",
        (Attention(SELF_ATTENTION, "transformer.resblocks.{}.attn", rotary=True),),
        {
            **IMAGES,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "max_position_embeddings": 4,
        },
        inputs="wide image",
        model_class="Step3p7VisionModel",
    ),
    Model(
        "radio",
        "radio",
        (Attention("encoder.layer.{}.attention", "blocks.{}.attn"),),
        {**IMAGES, "mlp_ratio": 0.5, "max_img_size": 16, "num_registers": 1},
        inputs="images",
    ),
    Model(
        "sapiens2",
        "sapiens2",
        (Attention("model.layer.{}.attention", "blocks.{}.attn", rotary=True),),
        {
            **IMAGES,
            "hidden_size": 32,
            "num_register_tokens": 2,
            "num_key_value_attention_heads": 2,
            "num_first_full_attention_layers": 1,
            "num_last_full_attention_layers": 0,
        },
        inputs="wide image",
    ),
    Model(
        "tipsv2",
        "tipsv2",
        (
            Attention(
                "text_model.encoder.layers.{}.self_attn",
                "transformer.resblocks.{}.attn",
                label="text.",
            ),
            Attention(
                "vision_model.encoder.layer.{}.attention",
                "blocks.{}.attn",
                label="vision.",
            ),
        ),
        {
            "text_config": {**SIZES, "max_position_embeddings": 9},
            "vision_config": {**IMAGES, "mlp_ratio": 0.5},
        },
        inputs="text and images",
    ),
    Model(
        "bridgetower",
        "bridgetower",
        (
            Attention(
                "vision_model.visual.transformer.resblocks.{}.attn",
                label="vision.",
                layers=(0,),
                time_first=True,
            ),
        ),
        {
            "text_config": {**SIZES, "pad_token_id": 1},
            "vision_config": {
                "hidden_size": 64,
                "num_hidden_layers": 1,
                "image_size": 8,
                "patch_size": 4,
            },
            "hidden_size": 24,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
        },
        inputs="text and images",
    ),
    Model(
        "videoprism",
        "videoprism",
        (
            Attention("text_model.layers.{}.attention", label="text."),
            Attention(
                "video_model.vision_model.spatial_layers.{}.attention",
                label="vision.",
                layers=(0,),
            ),
            Attention(
                "video_model.vision_model.temporal_layers.{}.attention",
                label="vision.",
                layers=(0,),
                after="vision_config.num_spatial_layers",
            ),
        ),
        {
            "text_config": {**SIZES, "attn_logit_softcapping": 2.0},
            "vision_config": PRISM,
        },
        inputs="text with a mask, and videos",
        model_class="VideoPrismClipModel",
    ),
    Model(
        "unlimited_ocr_vision",
        "unlimited_ocr_vision",
        (
            Attention(
                "vision_encoder.encoder.layers.{}.self_attn",
                "vision_encoder.transformer.layers.{}.self_attn",
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
            "encoder_config": {**IMAGES},
        },
        inputs="large images",
        model_class="UnlimitedOcrVisionModel",
    ),
)
