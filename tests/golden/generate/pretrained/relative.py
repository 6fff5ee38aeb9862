"""Encoders of sound whose scores add products with relative positions."""

from __future__ import annotations

from typing import Any

from .encoders import SOUNDS
from .kinds import GROUPED, SIZES
from .model import LAYERS, Attention, Model, attention_of_decoder
from .sounds import MELS

SELF_ATTENTION = "layers.{}.self_attn"
OF_ENCODER = f"encoder.{SELF_ATTENTION}"
CONFORMER = {**SOUNDS, "num_codevectors_per_group": 4, "conv_depthwise_kernel_size": 3}
PARAKEET = {
    **MELS,
    "subsampling_factor": 2,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 3,
}
STREAMING = {**PARAKEET, "sliding_window": 7, "default_num_lookahead_tokens": 2}
# The eager ways of these classes add bool masks to the scores, or invert masks.
MASKED = "sdpa"
SEAMLESS = {
    "vocab_size": 12,
    "hidden_size": 24,
    "encoder_layers": LAYERS,
    "encoder_ffn_dim": 8,
    "encoder_attention_heads": 6,
    "decoder_layers": LAYERS,
    "decoder_ffn_dim": 8,
    "decoder_attention_heads": 3,
    "speech_encoder_layers": LAYERS,
    "speech_encoder_attention_heads": 4,
    "speech_encoder_intermediate_size": 8,
    "feature_projection_input_dim": 4,
    "conv_depthwise_kernel_size": 3,
    "adaptor_kernel_size": 2,
    "adaptor_stride": 2,
    "max_position_embeddings": 32,
    "max_source_positions": 32,
}
GRANITE = {
    "input_dim": 4,
    "num_layers": LAYERS,
    "hidden_dim": 24,
    "num_heads": 4,
    "output_dim": 8,
    "context_size": 6,
    "max_pos_emb": 8,
    "conv_kernel_size": 3,
}
GRANITE_5 = {
    **MELS,
    "num_mel_bins": 1,
    "vocab_size": 12,
    "context_size": 6,
    "max_position_embeddings": 8,
    "conv_kernel_size": 3,
}


def relative(
    name: str,
    path: str = SELF_ATTENTION,
    model_type: str = "",
    inputs: str = "frames",
    padded: bool = False,
    model_class: str = "",
    **config: Any,
) -> Model:
    return Model(
        name,
        model_type or name,
        (Attention(path),),
        config,
        inputs=inputs,
        padded=padded,
        model_class=model_class,
        implementation=MASKED,
    )


def granite(name: str, model_class: str, **config: Any) -> Model:
    return Model(
        name,
        name,
        (Attention("layers.{}.attn", first=".to_q", last=".to_out", cut=True),),
        {**GRANITE, **config},
        inputs="hidden frames",
        model_class=model_class,
    )


def conformer(
    name: str, positions: str | None, label: str = "", **config: Any
) -> Model:
    """Without positions, attention is that of other models."""
    return relative(
        f"{name}_{label or positions or 'none'}",
        OF_ENCODER,
        name,
        inputs="sound" if name == "wav2vec2-conformer" else "features",
        padded=name == "wav2vec2-bert",
        **CONFORMER,
        position_embeddings_type=positions,
        **config,
    )


def with_encoder(model_type: str, model_class: str, encoder: dict) -> Model:
    """A model around an encoder, which alone is run."""
    return Model(
        model_type,
        model_type,
        (Attention(OF_ENCODER),),
        {
            "encoder_config": encoder,
            "vocab_size": 12,
            "pad_token_id": 0,
            "decoder_hidden_size": 8,
            "blank_token_id": 11,
        },
        inputs="frames",
        run_part="encoder",
        model_class=model_class,
        implementation=MASKED,
    )


def seamless(model_type: str, speech: bool, label: str = "", **config: Any) -> Model:
    """Speech or text in, text out."""
    family = "SeamlessM4Tv2" if model_type.endswith("v2") else "SeamlessM4T"
    encoder = (
        Attention("speech_encoder.encoder.layers.{}.self_attn", label="audio.")
        if speech
        else Attention("text_encoder.layers.{}.self_attn", label="encoder.")
    )
    return Model(
        f"{model_type}_{label or ('speech' if speech else 'text')}",
        model_type,
        (
            encoder,
            *attention_of_decoder("text_decoder.layers", cross="cross_attention"),
        ),
        {**SEAMLESS, **config},
        inputs="frames to text" if speech else "text to text",
        model_class=f"{family}For{'Speech' if speech else 'Text'}ToText",
        implementation=MASKED,
    )


BERT = {"feature_projection_input_dim": 4}

RELATIVE = (
    conformer("wav2vec2-conformer", "relative"),
    conformer("wav2vec2-conformer", None),
    conformer("wav2vec2-bert", "relative_key", **BERT),
    conformer(
        "wav2vec2-bert",
        "relative_key",
        "clipped",
        **BERT,
        left_max_position_embeddings=3,
        right_max_position_embeddings=2,
    ),
    conformer("wav2vec2-bert", "relative", **BERT),
    conformer("wav2vec2-bert", None, **BERT),
    relative("parakeet_encoder", **PARAKEET, attention_bias=False),
    with_encoder("parakeet_ctc", "ParakeetForCTC", PARAKEET),
    with_encoder("parakeet_rnnt", "ParakeetForRNNT", PARAKEET),
    with_encoder("parakeet_tdt", "ParakeetForTDT", PARAKEET),
    relative("nemotron_asr_streaming_encoder", **STREAMING),
    with_encoder("nemotron_asr_streaming", "NemotronAsrStreamingForRNNT", STREAMING),
    with_encoder(
        "nemotron3_5_asr",
        "Nemotron3_5AsrForRNNT",
        {"model_type": "nemotron_asr_streaming_encoder", **STREAMING},
    ),
    Model(
        "cohere_asr",
        "cohere_asr",
        (Attention(OF_ENCODER, label="encoder."),),
        {
            "encoder_config": {"model_type": "parakeet_encoder", **PARAKEET},
            **GROUPED,
            "head_dim": 8,
            "vocab_size": 12,
            "pad_token_id": 0,
            "decoder_start_token_id": 2,
        },
        prefix="model.",
        inputs="frames to text",
    ),
    granite("granite_speech_encoder", "GraniteSpeechCTCEncoder"),
    granite("granite_speech_plus_encoder", "GraniteSpeechPlusCTCEncoder", dim_head=5),
    relative("granite_speech5_encoder", **GRANITE_5),
    with_encoder("granite_speech5_ctc", "GraniteSpeech5ForCTC", GRANITE_5),
    Model(
        "fastspeech2_conformer",
        "fastspeech2_conformer",
        tuple(
            Attention(f"{stack}.conformer_layers.{{}}.self_attn", label=f"{stack}.")
            for stack in ("encoder", "decoder")
        ),
        {
            "hidden_size": SIZES["hidden_size"],
            "vocab_size": 12,
            "num_mel_bins": 4,
            "encoder_layers": LAYERS,
            "decoder_layers": LAYERS,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 3,
            "encoder_linear_units": 8,
            "decoder_linear_units": 8,
            "speech_decoder_postnet_units": 8,
            "duration_predictor_channels": 8,
            "energy_predictor_channels": 8,
            "pitch_predictor_channels": 8,
        },
    ),
    seamless("seamless_m4t", speech=True),
    seamless("seamless_m4t", speech=False),
    seamless("seamless_m4t_v2", speech=True, left_max_position_embeddings=3),
    seamless(
        "seamless_m4t_v2",
        speech=True,
        label="chunks",
        speech_encoder_chunk_size=4,
        speech_encoder_left_chunk_num=2,
    ),
    seamless("seamless_m4t_v2", speech=False),
    Model(
        "speecht5",
        "speecht5",
        attention_of_decoder("speecht5.decoder.wrapped_decoder.layers"),
        {
            **SOUNDS,
            "vocab_size": 12,
            "encoder_layers": LAYERS,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 8,
            "decoder_layers": LAYERS,
            "decoder_attention_heads": 3,
            "decoder_ffn_dim": 8,
        },
        inputs="sound to text",
        model_class="SpeechT5ForSpeechToText",
    ),
)
