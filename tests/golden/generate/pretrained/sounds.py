"""Encoders of sound, models that write or speak it, and text beside images."""

from __future__ import annotations

from typing import Any

from .encoders import IMAGES, WIDTHS
from .kinds import GROUPED, SIZES, SLIDING_FIRST
from .model import LAYERS, Attention, Model, attention_of_decoder, blocks_of_types

SELF_ATTENTION = "layers.{}.self_attn"
MELS = {**WIDTHS, "num_mel_bins": 4}
# Heads of sizes of which half are rotated.
HALVES = {**MELS, "hidden_size": 16, "num_attention_heads": 2}
CODEC = {
    "model_type": "mimi",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
    "num_filters": 2,
    "upsampling_ratios": [2, 2],
    "codebook_size": 4,
    "codebook_dim": 8,
    "num_quantizers": 2,
    "vector_quantization_hidden_dimension": 8,
    "upsample_groups": 8,
}
DIARIZATION = {
    "audio_config": {**HALVES, "subsampling_factor": 2},
    "head_config": {"hidden_size": 8, "audio_hidden_size": 16, "subsampling_factor": 2},
    "streaming_config": {"subsampling_factor": 2},
}


def alone(
    name: str,
    inputs: str = "text",
    model_class: str = "",
    path: str = SELF_ATTENTION,
    file_path: str = "",
    **config: Any,
) -> Model:
    return Model(
        name,
        name,
        (Attention(path, file_path),),
        config,
        inputs=inputs,
        model_class=model_class,
    )


def qformer(name: str) -> Model:
    return Model(
        name,
        name,
        (
            Attention("encoder.layer.{}.attention", last=".output.dense"),
            Attention(
                "encoder.layer.{}.crossattention",
                last=".output.dense",
                label="cross.",
                layers=(0,),
            ),
        ),
        {**SIZES, "encoder_hidden_size": 16},
        inputs="queries",
    )


def codec_halves(name: str) -> Model:
    """A codec like Mimi, with a stack in each half."""
    return Model(
        name,
        name,
        (
            Attention(
                "encoder.encoder_transformer.layers.{}.self_attn", label="encoder."
            ),
            Attention(
                "decoder.decoder_transformer.layers.{}.self_attn", label="decoder."
            ),
        ),
        {
            "hidden_size": 24,
            "intermediate_size": 8,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "sliding_window": 4,
            "num_filters": 2,
            "upsampling_ratios": [2, 2],
            "upsample_groups": 24,
            "latent_stride": 2,
            "latent_dim": 8,
        },
        inputs="wave",
    )


SOUNDS_AND_TEXT = (
    qformer("blip_2_qformer"),
    Model(
        "canary",
        "canary",
        (
            Attention(
                "encoder.layers.{}.self_attn", label="encoder.", layers=(0,)
            ),
            *attention_of_decoder("decoder.layers"),
        ),
        {
            "encoder_config": {
                "model_type": "parakeet_encoder",
                **MELS,
                "subsampling_factor": 2,
                "subsampling_conv_channels": 4,
                "conv_kernel_size": 3,
                "num_hidden_layers": 1,
            },
            "decoder_config": {**GROUPED, "head_dim": 8},
            "vocab_size": 12,
            "pad_token_id": 0,
            "decoder_start_token_id": 2,
        },
        prefix="model.",
        inputs="frames to text",
    ),
    Model(
        "dots3_note_audio_encoder",
        "dots3_note_audio_encoder",
        (Attention(SELF_ATTENTION, "speech_encoder.layers.{}.self_attn"),),
        {
            **WIDTHS,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "feature_size": 8,
            "downsample_hidden_size": 4,
            "adapter_input_size": 16,
            "adapter_out_dim": 8,
        },
        inputs="chunks of sound",
        model_class="Dots3NoteAudioModel",
    ),
    Model(
        "lasr_ctc",
        "lasr_ctc",
        (Attention("encoder.layers.{}.self_attn"),),
        {
            "encoder_config": {
                **MELS,
                "subsampling_conv_channels": 4,
                "attention_bias": True,
            },
            "vocab_size": 12,
        },
        inputs="frames",
    ),
    Model(
        "moonshine_streaming",
        "moonshine_streaming",
        (
            Attention("encoder.layers.{}.self_attn", label="encoder."),
            *attention_of_decoder("decoder.layers"),
        ),
        {
            "encoder_config": {
                **WIDTHS,
                "hidden_size": 16,
                "num_key_value_heads": 2,
                "sliding_windows": [[4, 3], [3, 0]],
            },
            "hidden_size": 20,
            "intermediate_size": 8,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "pad_head_dim_to_multiple_of": 8,
            "vocab_size": 12,
            "max_position_embeddings": 32,
        },
        prefix="model.",
        inputs="sound with a mask to text",
    ),
    Model(
        "moshi",
        "moshi",
        (
            Attention(
                "decoder.model.layers.{}.self_attn",
            ),
        ),
        {
            **GROUPED,
            "sliding_window": 4,
            "ffn_dim": 8,
            "num_codebooks": 2,
            "audio_encoder_config": CODEC,
            "depth_decoder_config": {
                **GROUPED,
                "ffn_dim": 8,
                "input_size": 24,
                "num_codebooks": 2,
            },
        },
        run_part="decoder.model",
        model_class="MoshiForConditionalGeneration",
    ),
    alone(
        "nemotron3_diarization",
        "frames",
        path="audio_tower.layers.{}.self_attn",
        **DIARIZATION,
    ),
    alone(
        "nemotron3_5_transcribe_audio",
        "frames with a mask",
        path="asr_encoder.layers.{}.self_attn",
        asr_config={**HALVES, "subsampling_factor": 2},
        diarization_config={"model_type": "nemotron3_diarization", **DIARIZATION},
    ),
    Model(
        "pe_audio",
        "pe_audio",
        (Attention("audio_encoder.layers.{}.self_attn", label="audio."),),
        {
            "text_config": {"model_type": "modernbert", **SIZES},
            "audio_config": {
                **GROUPED,
                "head_dim": 8,
                "dac_config": {
                    "model_type": "dac",
                    "encoder_hidden_size": 4,
                    "hidden_size": 8,
                    "downsampling_ratios": [2, 2],
                    "codebook_dim": 4,
                },
            },
        },
        inputs="text and wave",
    ),
    alone(
        "pocket_tts",
        **GROUPED,
        flow_head_config={
            "condition_dim": 24,
            "latent_dim": 8,
            "hidden_size": 8,
            "num_hidden_layers": 1,
        },
        latent_dim=8,
    ),
    alone(
        "gradium_phonon_tts",
        **SIZES,
        flow_head_config={
            "condition_dim": 24,
            "latent_dim": 8,
            "hidden_size": 8,
            "num_hidden_layers": 1,
        },
        latent_dim=8,
    ),
    codec_halves("pocket_tts_audio_tokenizer"),
    Model(
        "pp_formulanet",
        "pp_formulanet",
        (
            *attention_of_decoder("decoder.layers"),
        ),
        {
            "text_config": {
                "d_model": 24,
                "encoder_layers": 3,
                "encoder_attention_heads": 2,
                "decoder_layers": LAYERS,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 8,
                "vocab_size": 12,
                "max_position_embeddings": 32,
            },
            "vision_config": {
                **WIDTHS,
                "num_hidden_layers": 1,
                "output_channels": 8,
                "image_size": 16,
                "patch_size": 4,
                "window_size": 2,
                "mlp_dim": 8,
                "global_attn_indexes": [0],
                "post_conv_in_channels": 8,
                "post_conv_mid_channels": 8,
                "post_conv_out_channels": 8,
                "decoder_hidden_size": 24,
            },
        },
        inputs="larger images to text",
        prefix="model.",
        model_class="PPFormulaNetModel",
    ),
    alone(
        "pp_ocrv5_mobile_rec",
        "lines of text",
        "PPOCRV5MobileRecForTextRecognition",
        "head.encoder.svtr_block.{}.self_attn",
        hidden_size=24,
        num_attention_heads=4,
        mlp_ratio=0.5,
        head_out_channels=12,
    ),
    Model(
        "sam3_lite_text_text_model",
        "sam3_lite_text_text_model",
        (Attention(SELF_ATTENTION, layers=(1, 2)),),
        {
            **SIZES,
            "num_hidden_layers": 4,
            "projection_dim": 8,
            "max_position_embeddings": 9,
        },
    ),
    Model(
        "t5gemma2_encoder",
        "t5gemma2_encoder",
        (Attention("text_model.layers.{}.self_attn", SELF_ATTENTION, label="text."),),
        {
            "text_config": {
                **GROUPED,
                "head_dim": 8,
                "query_pre_attn_scalar": 12,
                "sliding_window": 5,
                "layer_types": SLIDING_FIRST,
                "dropout_rate": 0.0,
            },
            "vision_config": {**IMAGES, "model_type": "siglip_vision_model"},
        },
    ),
    Model(
        "tvp",
        "tvp",
        (Attention("encoder.layer.{}.attention", last=".dense"),),
        {
            **SIZES,
            "num_frames": 1,
            "max_img_size": 64,
            "visual_prompt_size": 2,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 4,
                "hidden_sizes": [4, 4, 4, 24],
                "depths": [1, 1, 1, 1],
                "out_features": ["stage4"],
            },
        },
        inputs="text and a video",
    ),
    alone("ultrabert", **GROUPED, sliding_window=2, layer_types=SLIDING_FIRST),
    Model(
        "ultravbert",
        "ultravbert",
        (Attention("text_model.layers.{}.self_attn", label="text."),),
        {
            "text_config": {
                "model_type": "ultrabert",
                **GROUPED,
                "num_hidden_layers": 3,
                "sliding_window": 2,
                "attention_bias": True,
            },
            "vision_config": {**IMAGES, "model_type": "siglip_vision_model"},
            "pixel_shuffle_factor": 2,
        },
    ),
    Model(
        "muse_glimmer_text",
        "muse_glimmer_text",
        (Attention(SELF_ATTENTION, layers=(0, 1, 2)),),
        {**GROUPED, "num_hidden_layers": 3, "head_dim": 8, "sliding_window": 4},
    ),
    Model(
        "hrm_text",
        "hrm_text",
        (
            Attention(
                "L_module.layers.{}.self_attn",
                "L_module.layers.{}.attn",
                layers=(0,),
                blocks=blocks_of_types,
            ),
            Attention(
                "H_module.layers.{}.self_attn",
                "H_module.layers.{}.attn",
                layers=(0,),
                blocks=blocks_of_types,
                after="num_layers_per_stack",
            ),
        ),
        {**SIZES, "num_hidden_layers": 1, "head_dim": 8, "H_cycles": 1, "L_cycles": 1},
        inputs="text with a prefix",
    ),
    Model(
        "evolla",
        "evolla",
        (Attention(SELF_ATTENTION),),
        {
            **GROUPED,
            "protein_encoder_config": {
                **SIZES,
                "vocab_size": 12,
            },
            "aligner_num_add_layers": 1,
            "aligner_ffn_mult": 1,
            "resampler_depth": 1,
            "resampler_dim_head": 4,
            "resampler_heads": 2,
            "resampler_num_latents": 2,
            "resampler_ff_mult": 1,
        },
        model_class="EvollaModel",
    ),
)
