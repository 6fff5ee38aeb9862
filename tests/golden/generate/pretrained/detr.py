"""Models that add positions to what queries and keys are made of, and not to what
values are made of."""

from __future__ import annotations

import dataclasses
from typing import Any

from .kinds import SIZES
from .model import LAYERS, Attention, Model

RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 8, 8],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
STACKS = {
    "d_model": 24,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "num_queries": 5,
    "backbone_config": RESNET,
}


SWIN = {
    "model_type": "swin",
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 1, 1, 1],
    "window_size": 2,
    "image_size": 64,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}


def own_attention(
    stack: str, positions: str = "position_embeddings", path: str = ""
) -> Attention:
    return Attention(
        path or f"{stack}.layers.{{}}.self_attn",
        label=f"{stack}.",
        positions=positions,
        mask="attention_mask",
    )


def detr_like(
    model_type: str,
    own: str = "position_embeddings",
    context: str = "encoder_position_embeddings",
    decodes: bool = True,
    **config: Any,
) -> Model:
    attention = [own_attention("encoder", own)]
    if decodes:
        attention += [
            own_attention("decoder", own),
            Attention(
                "decoder.layers.{}.encoder_attn",
                label="cross.",
                positions=own,
                context_positions=context,
                mask="attention_mask",
            ),
        ]
    return Model(
        model_type.replace("-", "_"),
        model_type,
        tuple(attention),
        {**STACKS, **config},
        prefix="model.",
        inputs="images with objects",
    )


RT_STACKS = {
    **STACKS,
    "backbone_config": {
        "model_type": "rt_detr_resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 8, 8],
        "depths": [1, 1, 1, 1],
        "out_indices": [2, 3, 4],
    },
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [8, 8, 8],
    "decoder_in_channels": [16, 16, 16],
    "decoder_n_points": 2,
    "anchor_image_size": None,
}


def rt_detr_like(model_type: str, file_list: str = "encoder", **config: Any) -> Model:
    """Queries of objects attend to few points of the image."""
    encoder = own_attention("encoder", path="encoder.aifi.0.layers.{}.self_attn")
    return Model(
        model_type,
        model_type,
        (
            dataclasses.replace(
                encoder, file_path=f"encoder.{file_list}.0.layers.{{}}.self_attn"
            ),
            own_attention("decoder"),
        ),
        {**RT_STACKS, **config},
        prefix="model.",
        inputs="images with objects",
    )


def sam_like(
    name: str,
    vision: dict[str, Any],
    inputs: str = "points of images",
    image_size: int = 16,
    **config: Any,
) -> Model:
    """The tokens of masks attend to themselves and to the image."""
    layer = "mask_decoder.transformer.layers.{}"
    return Model(
        name,
        name,
        (
            # Layer 0 has no positions.
            Attention(f"{layer}.self_attn", label="decoder.", value="value"),
            Attention(
                f"{layer}.cross_attn_token_to_image", label="cross.", value="value"
            ),
        ),
        {
            "vision_config": vision,
            "prompt_encoder_config": {
                "hidden_size": 16,
                "image_size": image_size,
                "patch_size": image_size // 4,
                "mask_input_channels": 4,
                "num_point_embeddings": 4,
            },
            "mask_decoder_config": {
                "hidden_size": 16,
                "mlp_dim": 8,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": 2,
                "iou_head_depth": 2,
                "iou_head_hidden_dim": 8,
                **config,
            },
        },
        inputs=inputs,
    )


def grounding_dino_like(model_type: str) -> Model:
    """Texts attend to themselves, and objects to themselves and to the text."""
    return Model(
        model_type.replace("-", "_"),
        model_type,
        tuple(
            Attention(path, label=label, value="values", mask="attention_mask")
            for path, label in (
                ("encoder.layers.{}.text_enhancer_layer.self_attn", "encoder."),
                ("decoder.layers.{}.self_attn", "decoder."),
                ("decoder.layers.{}.encoder_attn_text", "cross."),
            )
        ),
        {
            **STACKS,
            "d_model": 32,
            "num_feature_levels": 1,
            "backbone_config": {**SWIN, "out_features": ["stage4"]},
            "text_config": {**SIZES, "model_type": "bert"},
        },
        prefix="model.",
        inputs="texts about images",
    )


def lw_detr_like(
    model_type: str, file_path: str, backbone: dict[str, Any], **config: Any
) -> Model:
    """A decoder alone, of queries of objects."""
    return Model(
        model_type,
        model_type,
        (
            Attention(
                "decoder.layers.{}.self_attn",
                file_path,
                positions="position_embeddings",
            ),
        ),
        {
            "backbone_config": backbone,
            "d_model": 32,
            "decoder_ffn_dim": 8,
            "decoder_layers": LAYERS,
            "decoder_self_attention_heads": 4,
            "decoder_cross_attention_heads": 2,
            "num_queries": 5,
            "group_detr": 2,
            **config,
        },
        prefix="model.",
        inputs="square images",
    )


SAM_VISION = {
    "hidden_size": 8,
    "output_channels": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "window_size": 2,
    "global_attn_indexes": [0],
    "num_pos_feats": 8,
    "mlp_dim": 8,
}
SAM2_VISION = {
    "backbone_config": {
        "model_type": "sam2_hiera_det_model",
        "hidden_size": 8,
        "num_attention_heads": 1,
        "image_size": [64, 64],
        "query_stride": [2, 2],
        "window_positional_embedding_background_size": [2, 2],
        "num_query_pool_stages": 3,
        "blocks_per_stage": [1, 1, 1, 1],
        "embed_dim_per_stage": [8, 16, 32, 64],
        "num_attention_heads_per_stage": [1, 1, 1, 1],
        "window_size_per_stage": [2, 2, 2, 2],
        "global_attention_blocks": [],
    },
    "backbone_channel_list": [64, 32, 16, 8],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    "fpn_hidden_size": 16,
}


DETR = (
    detr_like("detr"),
    detr_like("table-transformer", "object_queries", "spatial_position_embeddings"),
    detr_like("conditional_detr", decodes=False),
    detr_like(
        "dab-detr",
        "object_queries",
        decodes=False,
        **{"hidden_size": 24, "d_model": 24},
    ),
    rt_detr_like("rt_detr"),
    rt_detr_like("rt_detr_v2"),
    rt_detr_like("d_fine"),
    rt_detr_like("deimv2", "aifi"),
    Model(
        "maskformer",
        "maskformer",
        (
            own_attention(
                "decoder", path="transformer_module.decoder.layers.{}.self_attn"
            ),
            Attention(
                "transformer_module.decoder.layers.{}.encoder_attn",
                label="cross.",
                positions="position_embeddings",
                context_positions="encoder_position_embeddings",
                mask="attention_mask",
            ),
        ),
        {
            "backbone_config": SWIN,
            "decoder_config": {**STACKS, "model_type": "detr", "backbone_config": None},
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
        },
        prefix="model.",
        inputs="images with objects",
    ),
    Model(
        "mask2former",
        "mask2former",
        (
            Attention(
                "transformer_module.decoder.layers.{}.self_attn",
                label="decoder.",
                positions="position_embeddings",
                time_first=True,
            ),
            Attention(
                "transformer_module.decoder.layers.{}.cross_attn",
                label="cross.",
                value="value",
                mask="attn_mask",
                time_first=True,
            ),
        ),
        {
            "backbone_config": SWIN,
            "feature_size": 32,
            "mask_feature_size": 8,
            "hidden_dim": 24,
            "encoder_feedforward_dim": 8,
            "encoder_layers": 1,
            "decoder_layers": LAYERS + 1,
            "num_attention_heads": 4,
            "dim_feedforward": 8,
            "num_queries": 5,
        },
        prefix="model.",
        inputs="images with objects",
    ),
    sam_like("sam", SAM_VISION, attention_downsample_rate=4),
    sam_like("sam_hq", SAM_VISION, vit_dim=8),
    sam_like(
        "sam2",
        SAM2_VISION,
        "large points of images",
        image_size=64,
        attention_downsample_rate=4,
    ),
    Model(
        "deformable_detr",
        "deformable_detr",
        (own_attention("decoder"),),
        {**STACKS, "d_model": 32, "num_feature_levels": 1},
        prefix="model.",
        inputs="images with objects",
    ),
    grounding_dino_like("grounding-dino"),
    grounding_dino_like("mm-grounding-dino"),
    lw_detr_like(
        "lw_detr",
        "decoder.layers.{}.self_attn",
        {
            "model_type": "lw_detr_vit",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 64,
            "pretrain_image_size": 64,
            "patch_size": 16,
            "num_windows": 4,
            "out_indices": [1],
        },
        projector_scale_factors=[1.0],
    ),
    lw_detr_like(
        "rf_detr",
        "transformer.decoder.layers.{}.self_attn",
        {
            "model_type": "rf_detr_dinov2",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 64,
            "patch_size": 16,
            "num_windows": 1,
            "out_features": ["stage1"],
        },
    ),
    Model(
        "oneformer",
        "oneformer",
        (
            Attention(
                "transformer_module.decoder.layers.{}.self_attn.self_attn",
                label="decoder.",
                positions="position_embeddings",
                time_first=True,
            ),
            Attention(
                "transformer_module.decoder.layers.{}.cross_attn.multihead_attn",
                label="cross.",
                value="value",
                mask="attn_mask",
                time_first=True,
            ),
        ),
        {
            "backbone_config": SWIN,
            "conv_dim": 32,
            "mask_dim": 32,
            "hidden_dim": 24,
            "encoder_feedforward_dim": 8,
            "encoder_layers": 1,
            "decoder_layers": LAYERS + 1,
            "num_attention_heads": 4,
            "dim_feedforward": 8,
            "num_queries": 5,
            "query_dec_layers": 1,
            "task_seq_len": 4,
            "text_encoder_width": 24,
        },
        prefix="model.",
        inputs="images with a task",
    ),
)
