"""Cases of the classes of Hugging Face, which need the package transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..golden_set import Unavailable
from .case import Case, write_state


def cases() -> Iterator[Case]:
    yield from gpt2_cases()
    yield from bert_cases()
    yield from llama_cases()
    yield from bart_cases()


def gpt2_cases() -> Iterator[Case]:
    yield Case(
        "gpt2",
        "gpt2",
        gpt2_model,
        *(12, 12, 3, 8),
        module="transformer.h.1.attn",
        run=run_masked,
        save=save_pretrained,
    )
    yield Case(
        "gpt2-torch",
        "gpt2",
        gpt2_model,
        *(12, 12, 3, 8),
        module="transformer.h.0.attn",
        suffix=".pt",
        run=run_masked,
    )
    yield Case(
        "gpt2-published",
        "gpt2",
        lambda: gpt2_model("Model"),
        *(12, 12, 3, 8),
        module="h.1.attn",
        run=run_masked,
        save=save_published_gpt2,
    )
    yield Case(
        "gpt2-older",
        "gpt2",
        lambda: gpt2_model("Model"),
        *(12, 12, 3, 8),
        module="h.1.attn",
        suffix=".pt",
        run=run_masked,
        save=save_older_gpt2,
    )


def bert_cases() -> Iterator[Case]:
    yield Case(
        "bert",
        "bert",
        bert_model,
        *(8, 8, 2, 9),
        module="bert.encoder.layer.1.attention",
        causal=False,
        run=run_bert,
        save=save_pretrained,
    )
    yield Case(
        "swin",
        "bert",
        swin_model,
        *(8, 8, 2, 9),
        module="encoder.layers.0.blocks.0.attention",
        causal=False,
        window=3,
        run=lambda module, x: module(x)[0],
        save=save_pretrained,
    )


def llama_cases() -> Iterator[Case]:
    llama: dict[str, Any] = {
        "module": "model.layers.1.self_attn",
        "kv_heads": 2,
        "run": run_without_rotation,
    }
    yield Case(
        "llama",
        "llama",
        llama_model,
        *(16, 16, 4, 10),
        **llama,
        qkv_bias=False,
        out_bias=False,
        save=save_pretrained,
    )
    yield Case(
        "llama-bias",
        "llama",
        lambda: llama_model(attention_bias=True),
        *(16, 16, 4, 10),
        **llama,
        suffix=".pt",
    )
    yield Case(
        "qwen2",
        "llama",
        lambda: llama_model("Qwen2"),
        *(16, 16, 4, 10),
        **llama,
        out_bias=False,
        save=save_pretrained,
    )


def bart_cases() -> Iterator[Case]:
    yield Case(
        "bart-encoder",
        "bart",
        lambda: bart_model(max_position_embeddings=8),
        *(8, 8, 2, 8),
        module="encoder.layers.0.self_attn",
        causal=False,
        run=run_unmasked,
        save=save_pretrained,
    )
    yield Case(
        "bart-decoder",
        "bart",
        lambda: bart_model(max_position_embeddings=8),
        *(8, 8, 2, 8),
        module="decoder.layers.0.self_attn",
        suffix=".pt",
        run=run_masked,
    )
    yield Case(  # its keys have no bias
        "whisper",
        "bart",
        whisper_model,
        *(8, 8, 2, 8),
        module="decoder.layers.0.self_attn",
        run=run_masked,
        save=save_pretrained,
    )


# --- Models ----------------------------------------------------------------


def small(kind: str, head: str, **sizes: Any) -> nn.Module:
    """Builds a class of transformers, such as GPT2 and LMHeadModel."""
    try:
        import transformers
    except ImportError as error:
        raise Unavailable("transformers cannot be imported") from error
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=11, attn_implementation="eager", **sizes
    )
    return getattr(transformers, kind + head)(config)


def gpt2_model(head: str = "LMHeadModel") -> nn.Module:
    return small("GPT2", head, n_positions=8, n_embd=12, n_layer=2, n_head=3)


def bert_model() -> nn.Module:
    return small(
        "Bert",
        "ForMaskedLM",
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=9,
    )


def swin_model() -> nn.Module:
    return small(
        "Swin",
        "Model",
        embed_dim=8,
        depths=[1],
        num_heads=[2],
        window_size=3,
        image_size=12,
        patch_size=2,
    )


def llama_model(kind: str = "Llama", **options: Any) -> nn.Module:
    return small(
        kind,
        "ForCausalLM",
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=10,
        **options,
    )


def bart_model(kind: str = "Bart", **options: Any) -> nn.Module:
    return small(
        kind,
        "Model",
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        pad_token_id=1,
        **options,
    )


def whisper_model() -> nn.Module:
    return bart_model(
        "Whisper",
        num_mel_bins=2,
        max_source_positions=8,
        max_target_positions=8,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=2,
    )


# --- How they are called ---------------------------------------------------


def additive_mask(x: Tensor) -> Tensor:
    """(1, 1, T, T), the future at minus infinity."""
    t = x.shape[1]
    return torch.full((1, 1, t, t), -torch.inf).triu(diagonal=1)


def run_masked(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, attention_mask=additive_mask(x))[0]


def run_unmasked(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)[0]


def run_bert(module: nn.Module, x: Tensor) -> Tensor:
    """Runs BERT's attention up to its dense layer, without the residual."""
    return module.output.dense(module.self(x)[0])


def run_without_rotation(module: nn.Module, x: Tensor) -> Tensor:
    """Runs Llama's attention without its rotary position embedding.

    A rotation by angles of zero leaves queries and keys as they are.
    """
    angles = torch.zeros(1, x.shape[1], module.head_dim)
    rotation = (angles.cos(), angles.sin())
    mask = additive_mask(x)
    return module(x, position_embeddings=rotation, attention_mask=mask)[0]


# --- How they are saved ----------------------------------------------------


def save_pretrained(module: nn.Module, path: Path) -> None:
    """Saves by Hugging Face's own function, which leaves out tied weights."""
    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        path.write_bytes(Path(folder, "model.safetensors").read_bytes())


def save_published_gpt2(module: nn.Module, path: Path) -> None:
    """Saves as the published GPT-2: with its mask, without `transformer`."""
    save_gpt2(module, path, torch.float32, {})


def save_older_gpt2(module: nn.Module, path: Path) -> None:
    """Saves as older releases did: with two more buffers for the mask."""
    extra = {"masked_bias": torch.tensor(-1e4)}
    save_gpt2(module, path, torch.uint8, extra)


def save_gpt2(
    module: nn.Module, path: Path, dtype: torch.dtype, extra: dict[str, Tensor]
) -> None:
    length = module.config.n_positions
    mask = torch.ones(1, 1, length, length, dtype=dtype).tril()
    state = {}
    for key, tensor in module.state_dict().items():
        if key.endswith("attn.c_attn.weight"):
            place = key.removesuffix("c_attn.weight")
            state[f"{place}bias"] = mask.clone()
            state.update({f"{place}{k}": t for k, t in extra.items()})
        state[key] = tensor
    write_state(state, path)
