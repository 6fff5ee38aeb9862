"""Models of an encoder and a decoder."""

from __future__ import annotations

from typing import Any

from .encoders import IMAGES
from .kinds import GROUPED, SIZES
from .model import LAYERS, Attention, Model, attention_of_decoder

STACKS = {
    "d_model": 24,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "vocab_size": 12,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
SMALL = {
    **SIZES,
    "hidden_size": 16,
}
SPECTRA = {
    **STACKS,
    "max_source_positions": 20,
    "max_target_positions": 12,
}
GEMMA2 = {
    **GROUPED,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "sliding_window": 2,
}


def bart_like(
    model_type: str,
    inputs: str = "text to text",
    cross: str = "encoder_attn",
    **config: Any,
) -> Model:
    return Model(
        model_type.replace("-", "_"),
        model_type,
        (
            Attention("encoder.layers.{}.self_attn", label="encoder."),
            *attention_of_decoder("decoder.layers", cross=cross),
        ),
        {**STACKS, **config},
        prefix="model.",
        inputs=inputs,
        padded=model_type in ("bart", "whisper"),
        mask="decoder_attention_mask"
        if model_type == "whisper"
        else "attention_mask",
    )


def t5_like(name: str, *, model_class: str = "", **config: Any) -> Model:
    return Model(
        name,
        name,
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
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
            **config,
        },
        inputs="text to text",
        padded=name == "t5",
        model_class=model_class,
    )


ENCODER_DECODERS = (
    bart_like("bart"),
    bart_like("mbart"),
    bart_like("marian"),
    bart_like("pegasus"),
    bart_like("m2m_100"),
    bart_like("blenderbot"),
    bart_like("blenderbot-small"),
    bart_like("plbart"),
    bart_like("mvp"),
    bart_like("nllb-moe", cross="cross_attention", num_experts=2, expert_capacity=4),
    bart_like(
        "whisper",
        "spectra to text",
        **{**SPECTRA, "max_source_positions": 10},
        num_mel_bins=4,
    ),
    bart_like(
        "speech_to_text",
        "spectra to text",
        **SPECTRA,
        input_feat_per_channel=20,
        conv_channels=8,
    ),
    Model(
        "fsmt",
        "fsmt",
        tuple(
            Attention(f"{path}", label=f"{label}.", time_first=True)
            for path, label in (
                ("encoder.layers.{}.self_attn", "encoder"),
                ("decoder.layers.{}.self_attn", "decoder"),
                ("decoder.layers.{}.encoder_attn", "cross"),
            )
        ),
        # With a cache it gets one token at a time, and so has no mask.
        {
            **STACKS,
            "src_vocab_size": 12,
            "tgt_vocab_size": 12,
            "use_cache": False,
        },
        prefix="model.",
        inputs="text to text",
    ),
    Model(
        "dia",
        "dia",
        (
            Attention("encoder.layers.{}.self_attention", label="encoder."),
            *attention_of_decoder(
                "decoder.layers", own="self_attention", cross="cross_attention"
            ),
        ),
        {
            "encoder_config": {**SMALL, "num_key_value_heads": 2, "head_dim": 6},
            "decoder_config": {
                **SMALL,
                "hidden_size": 24,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "cross_num_attention_heads": 2,
                "cross_num_key_value_heads": 1,
                "cross_head_dim": 4,
                "cross_hidden_size": 16,
                "num_channels": 2,
            },
            "delay_pattern": [0, 1],
        },
        prefix="model.",
        inputs="text to codes",
    ),
    Model(
        "musicgen",
        "musicgen",
        (
            *attention_of_decoder("decoder.model.decoder.layers"),
        ),
        {
            "text_encoder": {
                "model_type": "t5",
                "d_model": 16,
                "d_kv": 4,
                "d_ff": 8,
                "num_layers": 1,
                "num_heads": 2,
                "vocab_size": 12,
            },
            "audio_encoder": {
                "model_type": "encodec",
                "hidden_size": 8,
                "num_filters": 2,
                "codebook_size": 16,
                "num_lstm_layers": 1,
            },
            "decoder": {
                **SMALL,
                "ffn_dim": 8,
                "num_codebooks": 2,
                "pad_token_id": 12,
                "bos_token_id": 12,
            },
        },
        inputs="codes with a context",
        run_part="decoder",
        model_class="MusicgenForConditionalGeneration",
    ),
    Model(
        "trocr",
        "vision-encoder-decoder",
        (
            Attention(
                "encoder.layers.{}.attention",
                "encoder.encoder.layer.{}.attention",
                label="encoder.",
            ),
            *attention_of_decoder("decoder.model.decoder.layers"),
        ),
        {
            "encoder": {**IMAGES, "model_type": "vit", "qkv_bias": False},
            "decoder": {
                "model_type": "trocr",
                "d_model": 16,
                "decoder_layers": LAYERS,
                "decoder_attention_heads": 2,
                "decoder_ffn_dim": 8,
                "vocab_size": 12,
                "max_position_embeddings": 32,
                "cross_attention_hidden_size": 24,
                "is_decoder": True,
                "add_cross_attention": True,
            },
        },
        inputs="images to text",
        model_class="VisionEncoderDecoderModel",
    ),
    Model(
        "encoder_decoder",
        "encoder-decoder",
        tuple(
            Attention(path, first=".self", last=".output.dense", label=label)
            for path, label in (
                ("encoder.encoder.layer.{}.attention", "encoder."),
                ("decoder.bert.encoder.layer.{}.attention", "decoder."),
                ("decoder.bert.encoder.layer.{}.crossattention", "cross."),
            )
        ),
        {
            "encoder": {**SMALL, "model_type": "bert"},
            "decoder": {
                **SMALL,
                "model_type": "bert",
                "num_attention_heads": 2,
                "is_decoder": True,
                "add_cross_attention": True,
            },
        },
        inputs="text to text",
        model_class="EncoderDecoderModel",
    ),
    t5_like("t5"),
    t5_like(
        "pop2piano",
        model_class="Pop2PianoForConditionalGeneration",
        composer_vocab_size=2,
    ),
    t5_like("mt5"),
    t5_like("umt5"),
    t5_like("switch_transformers", num_experts=2, expert_capacity=9),
    Model(
        "moonshine",
        "moonshine",
        (
            Attention("encoder.layers.{}.self_attn", label="encoder."),
            *attention_of_decoder("decoder.layers"),
        ),
        {
            "hidden_size": 40,
            "intermediate_size": 8,
            "encoder_num_hidden_layers": LAYERS,
            "decoder_num_hidden_layers": LAYERS,
            "encoder_num_attention_heads": 2,
            "decoder_num_attention_heads": 2,
            "pad_head_dim_to_multiple_of": 8,
            "vocab_size": 12,
            "pad_token_id": 0,
        },
        prefix="model.",
        inputs="long sound to text",
    ),
    Model(
        "t5gemma",
        "t5gemma",
        (
            Attention("encoder.layers.{}.self_attn", label="encoder."),
            *attention_of_decoder("decoder.layers", cross="cross_attn"),
        ),
        {
            "encoder": {**GEMMA2, "hidden_size": 16},
            "decoder": {**GEMMA2, "attn_logit_softcapping": 2.0},
            "vocab_size": 12,
        },
        prefix="model.",
        inputs="text to text",
    ),
    Model(
        "florence2",
        "florence2",
        (
            Attention(
                "language_model.encoder.layers.{}.self_attn", label="encoder."
            ),
            *attention_of_decoder("language_model.decoder.layers"),
        ),
        {
            "text_config": {**STACKS, "model_type": "bart", "d_model": 16},
            "vision_config": {
                "depths": [1],
                "patch_size": [3],
                "patch_stride": [2],
                "patch_padding": [1],
                "patch_prenorm": [False],
                "embed_dim": [8],
                "num_heads": [2],
                "num_groups": [2],
                "window_size": 2,
                "projection_dim": 16,
            },
        },
        inputs="text to text",
        run_part="language_model",
    ),
    Model(
        "time_series_transformer",
        "time_series_transformer",
        (
            Attention("encoder.layers.{}.self_attn", label="encoder."),
            *attention_of_decoder("decoder.layers"),
        ),
        {
            "d_model": 16,
            "encoder_layers": LAYERS,
            "decoder_layers": LAYERS,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 8,
            "decoder_ffn_dim": 8,
            "prediction_length": 5,
            "context_length": 8,
            "lags_sequence": [1],
            "num_time_features": 1,
        },
        prefix="model.",
        inputs="series to series",
    ),
    Model(
        "mimi",
        "mimi",
        (
            Attention(
                "encoder.encoder_transformer.layers.{}.self_attn",
                "encoder_transformer.layers.{}.self_attn",
                label="encoder.",
            ),
            Attention(
                "decoder.decoder_transformer.layers.{}.self_attn",
                "decoder_transformer.layers.{}.self_attn",
                label="decoder.",
            ),
        ),
        {
            "hidden_size": 24,
            "intermediate_size": 8,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 6,
            "sliding_window": 4,
            "num_filters": 2,
            "upsampling_ratios": [2, 2],
            "codebook_size": 4,
            "codebook_dim": 8,
            "num_quantizers": 2,
            "vector_quantization_hidden_dimension": 8,
            "upsample_groups": 24,
        },
        inputs="wave",
    ),
)
