"""Encoders of text, images and sound."""

from __future__ import annotations

from typing import Any

from .kinds import SIZES
from .model import LAYERS, Attention, Model

BERT_LIKE = "encoder.layer.{}.attention"
WIDTHS = {
    "hidden_size": 24,
    "intermediate_size": 8,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}
IMAGES = {**WIDTHS, "image_size": 8, "patch_size": 4}
SOUNDS = {
    **WIDTHS,
    "vocab_size": 12,
    "conv_dim": [8, 8],
    "conv_stride": [2, 2],
    "conv_kernel": [3, 3],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}


def bert_like(model_type: str, prefix: str = "", **config: Any) -> Model:
    return Model(
        model_type.replace("-", "_"),
        model_type,
        (Attention(BERT_LIKE, first=".self", last=".output.dense"),),
        {**SIZES, **config},
        prefix=prefix,
        padded=model_type == "bert",
    )


def vit_like(
    model_type: str,
    path: str = "layers.{}.attention",
    *,
    inputs: str = "images",
    first: str = "",
    last: str = "",
    **config: Any,
) -> Model:
    return Model(
        model_type.replace("-", "_"),
        model_type,
        (Attention(path, BERT_LIKE, first, last),),
        {**IMAGES, **config},
        inputs=inputs,
    )


def sound_like(model_type: str) -> Model:
    return Model(
        model_type.replace("-", "_"),
        model_type,
        (Attention("encoder.layers.{}.attention"),),
        SOUNDS,
        inputs="sound",
    )


def clip_like(model_type: str, inputs: str, **config: Any) -> Model:
    return Model(
        model_type,
        model_type,
        (Attention("encoder.layers.{}.self_attn"),),
        config,
        inputs=inputs,
    )


def qwen_vision(model_type: str, **config: Any) -> Model:
    return Model(
        model_type,
        model_type,
        (Attention("blocks.{}.attn", rotary=True),),
        {
            "hidden_size": 16,
            "depth": LAYERS,
            "num_heads": 2,
            "patch_size": 4,
            "intermediate_size": 8,
            "out_hidden_size": 24,
            **config,
        },
        inputs="patches",
    )


ENCODERS = (
    bert_like("bert", "bert."),
    bert_like("bert-generation"),
    bert_like("camembert", "roberta."),
    bert_like("data2vec-text", "data2vec_text."),
    bert_like("electra", "electra.", embedding_size=24),
    bert_like("ernie", "ernie."),
    bert_like("layoutlm", "layoutlm."),
    bert_like("markuplm", "markuplm.", xpath_unit_hidden_size=4),
    bert_like("megatron-bert", "bert."),
    bert_like(
        "rembert", "rembert.", input_embedding_size=8, output_embedding_size=8
    ),
    bert_like("roberta", "roberta."),
    bert_like("roberta-prelayernorm", "roberta_prelayernorm."),
    bert_like(
        "roc_bert",
        "roc_bert.",
        pronunciation_vocab_size=12,
        pronunciation_embed_dim=4,
        shape_vocab_size=12,
        shape_embed_dim=4,
    ),
    bert_like("roformer", "roformer."),
    bert_like("splinter", "splinter."),
    bert_like("tapas", "tapas."),
    bert_like("visual_bert", "visual_bert.", visual_embedding_dim=4),
    bert_like("xlm-roberta"),
    bert_like("xlm-roberta-xl", "roberta."),
    bert_like("xmod", "roberta.", languages=["en_XX"], default_language="en_XX"),
    bert_like("esm", "esm.", position_embedding_type="rotary", mask_token_id=3),
    Model(
        "gte",
        "gte",
        (Attention("layers.{}.self_attn", BERT_LIKE),),
        SIZES,
    ),
    Model(
        "jina_embeddings_v3",
        "jina_embeddings_v3",
        (Attention("layers.{}.self_attn", "encoder.layers.{}.mixer"),),
        SIZES,
    ),
    Model("esmc", "esmc", (Attention("layers.{}.self_attn"),), SIZES),
    Model(
        "mpnet",
        "mpnet",
        (Attention(BERT_LIKE, first=".attn", last=".attn", bias="position_bias"),),
        SIZES,
        "mpnet.",
    ),
    Model(
        "albert",
        "albert",
        (
            Attention(
                "encoder.albert_layer_groups.{}.albert_layers.0.attention",
                last=".dense",
            ),
        ),
        {**SIZES, "embedding_size": 8, "num_hidden_groups": 2},
        "albert.",
    ),
    Model(
        "albert_shared",
        "albert",
        (
            Attention(
                "encoder.albert_layer_groups.0.albert_layers.0.attention",
                last=".dense",
            ),
        ),
        {**SIZES, "embedding_size": 8},
    ),
    Model(
        "distilbert",
        "distilbert",
        (Attention("transformer.layer.{}.attention"),),
        {
            "dim": 24,
            "n_heads": 4,
            "n_layers": LAYERS,
            "hidden_dim": 8,
            "vocab_size": 12,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
        },
        "distilbert.",
        padded=True,
    ),
    *(
        Model(
            name,
            name,
            (Attention("attentions.{}"),),
            {
                "emb_dim": 24,
                "n_heads": 4,
                "n_layers": LAYERS,
                "n_words": 12,
                "max_position_embeddings": 32,
                "causal": name == "xlm",
                "pad_index": 0,
            },
            "transformer.",
        )
        for name in ("xlm", "flaubert")
    ),
    Model(
        "eurobert",
        "eurobert",
        (Attention("layers.{}.self_attn"),),
        {**SIZES, "num_key_value_heads": 2},
        "model.",
    ),
    Model(
        "embedding_gemma2_text",
        "embedding_gemma2_text",
        (Attention("layers.{}.self_attn"),),
        {
            **SIZES,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "sliding_window": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 4,
            "embedding_dim": 8,
        },
    ),
    Model(
        "modernbert",
        "modernbert",
        (Attention("layers.{}.attn"),),
        {
            **SIZES,
            "local_attention": 6,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": True,
        },
        "model.",
        padded=True,
    ),
    Model(
        "nomic_bert",
        "nomic_bert",
        (Attention("layers.{}.self_attn", "encoder.layers.{}.attn"),),
        SIZES,
    ),
    vit_like("vit"),
    vit_like("deit", qkv_bias=False),
    vit_like(
        "vit_mae",
        decoder_hidden_size=8,
        decoder_num_attention_heads=2,
        decoder_num_hidden_layers=1,
        decoder_intermediate_size=8,
    ),
    vit_like("pixio"),
    vit_like("vit_msn"),
    vit_like("ijepa"),
    vit_like("yolos", BERT_LIKE, image_size=[8, 8], num_detection_tokens=2),
    vit_like("dinov2", BERT_LIKE, mlp_ratio=1),
    vit_like("dinov2_with_registers", BERT_LIKE, mlp_ratio=1),
    vit_like("beit"),
    Model(
        "beit_biased",
        "beit",
        (Attention("layers.{}.attention", BERT_LIKE, bias="attention_mask"),),
        {**IMAGES, "use_relative_position_bias": True},
        inputs="images",
    ),
    vit_like(
        "data2vec-vision", BERT_LIKE, first=".attention", last=".output.dense"
    ),
    vit_like(
        "videomae",
        BERT_LIKE,
        inputs="videos",
        first=".attention",
        last=".output.dense",
        num_frames=4,
        tubelet_size=2,
        decoder_hidden_size=8,
        decoder_num_attention_heads=2,
        decoder_num_hidden_layers=1,
        decoder_intermediate_size=8,
    ),
    vit_like("vivit", inputs="videos", num_frames=4, tubelet_size=[2, 4, 4]),
    vit_like(
        "audio-spectrogram-transformer",
        inputs="spectra",
        num_mel_bins=8,
        max_length=16,
        frequency_stride=4,
        time_stride=4,
    ),
    vit_like("internvl_vision", BERT_LIKE, use_qk_norm=True, attention_bias=True),
    vit_like(
        "timesformer", BERT_LIKE, inputs="videos", num_frames=4, qkv_bias=False
    ),
    sound_like("wav2vec2"),
    sound_like("hubert"),
    sound_like("sew"),
    sound_like("unispeech-sat"),
    sound_like("data2vec-audio"),
    sound_like("unispeech"),
    clip_like("clip_text_model", "text", **SIZES),
    clip_like("clip_vision_model", "images", **IMAGES),
    Model(
        "pixtral",
        "pixtral",
        (Attention("transformer.layers.{}.attention", rotary=True),),
        {**IMAGES, "hidden_size": 32},
        inputs="wide image",
    ),
    Model(
        "dinov3_vit",
        "dinov3_vit",
        (Attention("model.layer.{}.attention", "layer.{}.attention", rotary=True),),
        {**IMAGES, "hidden_size": 32, "num_register_tokens": 2},
        inputs="wide image",
    ),
    Model(
        "mlcd_vision_model",
        "mlcd_vision_model",
        (Attention("encoder.layers.{}.self_attn", rotary=True),),
        {**IMAGES, "hidden_size": 32},
        inputs="wide image",
    ),
    qwen_vision("qwen2_5_vl_vision", window_size=16, fullatt_block_indexes=[1]),
    qwen_vision("qwen3_vl_vision", deepstack_visual_indexes=[0]),
    qwen_vision("qwen3_vl_moe_vision", deepstack_visual_indexes=[0]),
    qwen_vision("qwen3_5_vision"),
    qwen_vision("qwen3_5_moe_vision"),
    qwen_vision("glm4v_vision", image_size=16, attention_bias=True),
    qwen_vision("glm4v_moe_vision", image_size=16),
    qwen_vision("glm_ocr_vision"),
    clip_like("siglip_vision_model", "images", **IMAGES),
    clip_like("chinese_clip_vision_model", "images", **IMAGES),
    clip_like("idefics3_vision", "images", **IMAGES),
    clip_like("smolvlm_vision", "images", **IMAGES),
    vit_like(
        "dpt",
        "encoder.layer.{}.attention",
        backbone_out_indices=[0, 0, 1, 1],
        neck_hidden_sizes=[8, 8, 8, 8],
    ),
    Model(
        "mgp_str",
        "mgp-str",
        (Attention("mgp_str.encoder.blocks.{}.attn"),),
        {
            **IMAGES,
            "image_size": [8, 8],
            "max_token_length": 3,
            "num_character_labels": 4,
            "num_bpe_labels": 4,
            "num_wordpiece_labels": 4,
        },
        inputs="images",
    ),
    Model(
        "pix2struct_vision_model",
        "pix2struct_vision_model",
        (Attention("encoder.layer.{}.attention"),),
        {
            **WIDTHS,
            "d_kv": 8,
            "d_ff": 8,
            "patch_embed_hidden_size": 12,
            "seq_len": 16,
        },
        inputs="flattened patches",
        model_class="Pix2StructVisionModel",
    ),
    Model(
        "patchtst",
        "patchtst",
        (Attention("encoder.layers.{}.self_attn"),),
        {
            "d_model": 24,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "ffn_dim": 8,
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 4,
            "patch_stride": 4,
        },
        inputs="series",
    ),
    Model(
        "lxmert",
        "lxmert",
        (Attention(BERT_LIKE, first=".self", last=".output.dense"),),
        {
            "hidden_size": 24,
            "intermediate_size": 8,
            "num_attention_heads": 4,
            "l_layers": LAYERS,
            "x_layers": 1,
            "r_layers": 1,
            "visual_feat_dim": 8,
            "vocab_size": 12,
            "max_position_embeddings": 32,
        },
        prefix="lxmert.",
        inputs="text and regions",
    ),
    Model(
        "clvp_encoder",
        "clvp_encoder",
        (Attention("layers.{}.self_attn"),),
        {
            **WIDTHS,
            "hidden_size": 144,
            "projection_dim": 16,
            "vocab_size": 12,
            "use_attention_bias": True,
            "eos_token_id": 2,
        },
        model_class="ClvpEncoder",
    ),
    Model(
        "clvp_decoder",
        "clvp_decoder",
        (Attention("layers.{}.attn"),),
        {
            **SIZES,
            "max_text_tokens": 8,
            "num_mel_attn_blocks": 1,
            "feature_size": 4,
        },
        model_class="ClvpDecoder",
    ),
)
