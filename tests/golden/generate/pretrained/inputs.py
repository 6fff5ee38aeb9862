"""The inputs that models are run with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TOKENS = 9

Inputs = dict[str, Tensor]


def draw_inputs(kind: str, count: int = TOKENS) -> Inputs:
    """Returns inputs of this kind, of so many tokens where it is a text."""
    # Drawn for every kind: the other numbers of the golden files follow it.
    tokens = torch.randint(3, 12, (2, count))
    return KINDS[kind](tokens)


def short_text() -> Tensor:
    """Tokens that a decoder reads."""
    return torch.randint(3, 12, (2, 5))


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8)


def mels() -> Tensor:
    return torch.randn(2, 4, 20)


def text_with_images(tokens: Tensor) -> Inputs:
    # 1 stands for the tokens of images.
    types = torch.tensor([0, 1, 1, 1, 0, 1, 1, 0, 0]).expand(2, -1)
    return {"input_ids": tokens[:, :TOKENS], "token_type_ids": types}


def text_with_images_of_type_1(_: Tensor) -> Inputs:
    text = draw_inputs("text with images")
    return {
        "input_ids": text["input_ids"],
        "mm_token_type_ids": text["token_type_ids"],
    }


def image_before_text(tokens: Tensor) -> Inputs:
    types = torch.tensor([[0] * 5 + [1] * 4, [0] * 6 + [1] * 3])
    return {"input_ids": tokens[:, :TOKENS], "token_type_ids": types}


def text_with_a_prefix(tokens: Tensor) -> Inputs:
    types = torch.tensor([[1] * 4 + [0] * 5, [1] * 3 + [0] * 6])
    return {"input_ids": tokens[:, :TOKENS], "token_type_ids": types}


def flattened_patches(_: Tensor) -> Inputs:
    places = torch.arange(1, 10.0).expand(2, -1).unsqueeze(-1)
    patches = [places, places, torch.randn(2, 9, 12)]
    return {"flattened_patches": torch.cat(patches, -1)}


def places_of(tokens: Tensor) -> Tensor:
    """Boxes of words on a page: left, top, right, bottom."""
    first = torch.randint(0, 8, (*tokens.shape, 2))
    return torch.cat([first, first + torch.randint(1, 8, first.shape)], -1)


def text_with_a_mask_and_images(_: Tensor) -> Inputs:
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    return {**draw_inputs("text and images"), "attention_mask": mask}


def with_global_tokens(tokens: Tensor, of_second: tuple[int, ...] = ()) -> Inputs:
    """The first token is global, and others of the second text, whose last two
    tokens are padding."""
    is_global = torch.zeros_like(tokens)
    is_global[:, 0] = 1
    is_global[1, list(of_second)] = 1
    mask = torch.ones_like(tokens)
    mask[1, -2:] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "global_attention_mask": is_global,
    }


def global_to_text(tokens: Tensor, of_second: tuple[int, ...] = ()) -> Inputs:
    """Without a mask, which the decoder would read, too."""
    inputs = with_global_tokens(tokens, of_second)
    del inputs["attention_mask"]
    return {**inputs, "decoder_input_ids": short_text()}


def images_with_objects(_: Tensor) -> Inputs:
    """The second image is smaller, and padded."""
    mask = torch.ones(2, 64, 96, dtype=torch.long)
    mask[1, :, 64:] = 0
    return {"pixel_values": torch.randn(2, 3, 64, 96), "pixel_mask": mask}


# Functions that make inputs of each kind; they get the tokens (2, count) of a
# text.
KINDS: dict[str, Callable[[Tensor], Inputs]] = {
    "text": lambda tokens: {"input_ids": tokens},
    "text with a global token": with_global_tokens,
    "text with global tokens": lambda tokens: with_global_tokens(tokens, (3, 4)),
    "text with a global token to text": global_to_text,
    "text with global tokens to text": lambda tokens: global_to_text(tokens, (1, 5)),
    "text with images": text_with_images,
    "text with images of type 1": text_with_images_of_type_1,
    "image before text": image_before_text,
    "text with a prefix": text_with_a_prefix,
    "text to text": lambda tokens: {
        "input_ids": tokens,
        "decoder_input_ids": short_text(),
    },
    "images to text": lambda _: {
        "pixel_values": images(),
        "decoder_input_ids": short_text(),
    },
    "text to codes": lambda tokens: {
        "input_ids": tokens,
        "decoder_input_ids": torch.randint(3, 12, (2, 5, 2)),
    },
    "codes": lambda _: {
        "codebook_idx": 1,
        "input_ids": torch.randint(3, 12, (2, 5, 2)),
    },
    "codes with a context": lambda _: {
        "input_ids": torch.randint(3, 12, (4, 5)),
        "encoder_hidden_states": torch.randn(2, TOKENS, 16),
    },
    "flattened patches": flattened_patches,
    "series": lambda _: {"past_values": torch.randn(2, 32, 2)},
    "series of patches": lambda _: {"past_values": torch.randn(2, 36)},
    "series of a frequency": lambda _: {
        "past_values": torch.randn(2, 36),
        "past_values_padding": torch.zeros(2, 36, dtype=torch.long),
        "freq": torch.tensor([[0], [2]]),
    },
    "series to series": lambda _: {
        "past_values": torch.randn(2, 9),
        "past_time_features": torch.randn(2, 9, 1),
        "past_observed_mask": torch.ones(2, 9),
        "future_values": torch.randn(2, 5),
        "future_time_features": torch.randn(2, 5, 1),
    },
    "wave": lambda _: {"input_values": torch.randn(2, 1, 40)},
    "text and regions": lambda tokens: {
        "input_ids": tokens,
        "visual_feats": torch.randn(2, 3, 8),
        "visual_pos": torch.rand(2, 3, 4),
    },
    "text about images": lambda tokens: {
        "input_ids": tokens,
        "pixel_values": torch.randn(2, 1, 3, 8, 8),
        "image_attention_mask": torch.ones(2, TOKENS, 1, dtype=torch.long),
    },
    "images": lambda _: {"pixel_values": images()},
    "square image": lambda _: {"pixel_values": torch.randn(1, 3, 20, 20)},
    "image with a prompt": lambda _: {
        "pixel_values": torch.randn(1, 3, 8, 8),
        "prompt_pixel_values": torch.randn(1, 3, 8, 8),
        "prompt_masks": torch.randn(1, 3, 8, 8),
    },
    "large square image": lambda _: {"pixel_values": torch.randn(1, 3, 16, 16)},
    "swin images": lambda _: {"pixel_values": torch.randn(2, 3, 20, 28)},
    "spectra of sounds": lambda _: {
        "input_features": torch.randn(2, 1, 60, 4),
        "is_longer": torch.zeros(2, 1, dtype=torch.bool),
    },
    "patches with positions": lambda _: {
        "pixel_values": torch.rand(1, 24, 48),
        "pixel_position_ids": torch.cartesian_prod(torch.arange(4), torch.arange(6))
        .flip(-1)
        .unsqueeze(0),
    },
    "medium images": lambda _: {"pixel_values": torch.randn(2, 3, 16, 16)},
    "latents and an image": lambda _: {
        "context": torch.randn(2, 5, 24),
        "attention_mask": torch.ones(2, 5),
    },
    "rows of features": lambda _: {"inputs": torch.randn(2, 7, 16)},
    "queries and a prompt": lambda _: {
        "decoder_queries": torch.randn(2, 3, 24),
        "backbone_features": [torch.randn(2, 24, 4, 4), torch.randn(2, 24, 2, 2)],
        "encoder_hidden_states": torch.randn(2, 4, 24),
        "prompt_features": torch.randn(2, 5, 24),
    },
    "points of two images": lambda _: {"descriptors": torch.randn(2, 7, 24)},
    "patches to pool": lambda _: {
        "image_features": torch.randn(1, 6, 48),
        "pooled_patches_idx": torch.tensor([[0, 1, 3], [2, 4, 5]]),
    },
    "text with places": lambda tokens: {
        "input_ids": tokens,
        "bbox": places_of(tokens),
    },
    "text with places to text": lambda tokens: {
        "input_ids": tokens,
        "bbox": places_of(tokens) / 16,
        "decoder_input_ids": short_text(),
    },
    "patches to text": lambda _: {
        **flattened_patches(_),
        "decoder_input_ids": short_text(),
    },
    "frames of sound": lambda _: {
        "hidden_states": torch.randn(2, 20, 8),
        "mask": torch.ones(2, 20, dtype=torch.bool),
    },
    "wide image": lambda _: {"pixel_values": torch.randn(1, 3, 8, 12)},
    "patches": lambda _: {
        "hidden_states": torch.randn(24, 96),
        "grid_thw": torch.tensor([[1, 4, 6]]),
    },
    "packed patches": lambda _: {
        "pixel_values": torch.randn(24, 48),
        "grid_thw": torch.tensor([[1, 4, 6]]),
    },
    "packed pairs of patches": lambda _: {
        "pixel_values": torch.randn(24, 96),
        "grid_thw": torch.tensor([[1, 4, 6]]),
    },
    "packed patches of squares": lambda _: {
        "pixel_values": torch.randn(6, 8, 8, 3),
        "image_grid_thw": torch.tensor([[1, 2, 3]]),
    },
    "patches in a row": lambda _: {
        "pixel_values": torch.randn(1, 3, 4, 24),
        "target_sizes": torch.tensor([[2, 3]]),
    },
    "patches of images": lambda _: {"pixel_values": torch.randn(2, 4, 48)},
    "tiles": lambda _: {
        "pixel_values": torch.randn(1, 1, 2, 3, 8, 8),
        "aspect_ratio_ids": torch.tensor([[1]]),
        "aspect_ratio_mask": torch.tensor([[[1, 0]]]),
    },
    "large images": lambda _: {"pixel_values": torch.randn(1, 3, 64, 64)},
    "text with a mask, and videos": lambda tokens: {
        "input_ids": tokens,
        "attention_mask": torch.ones(2, TOKENS, dtype=torch.long),
        "pixel_values_videos": torch.randn(2, 2, 3, 8, 8),
    },
    "queries": lambda _: {
        "query_embeds": torch.randn(2, 4, 24),
        "encoder_hidden_states": torch.randn(2, 5, 16),
    },
    "frames": lambda _: {"input_features": torch.randn(2, 40, 4)},
    "hidden frames": lambda _: {"hidden_states": torch.randn(2, 20, 4)},
    "features": lambda tokens: {"input_features": torch.randn(*tokens.shape, 4)},
    "frames with a mask": lambda _: {
        "input_features": torch.randn(2, 20, 4),
        "input_features_mask": torch.ones(2, 20, dtype=torch.long),
    },
    "frames to text": lambda _: {
        "input_features": torch.randn(2, 20, 4),
        "decoder_input_ids": short_text(),
    },
    "chunks of sound": lambda _: {
        "input_features": torch.randn(2, 8, 40),
        "chunk_sample_lengths": torch.tensor([6400, 6400]),
    },
    "sound with a mask to text": lambda _: {
        "input_values": torch.randn(2, 3200),
        "attention_mask": torch.ones(2, 3200, dtype=torch.long),
        "decoder_input_ids": short_text(),
    },
    "text and wave": lambda tokens: {
        "input_ids": tokens,
        "input_values": torch.randn(2, 1, 40),
    },
    "text and a video": lambda tokens: {
        "input_ids": tokens[:1],
        "pixel_values": torch.randn(1, 1, 3, 64, 64),
        "attention_mask": torch.ones(1, TOKENS, dtype=torch.long),
    },
    "larger images to text": lambda _: {
        "pixel_values": torch.randn(2, 3, 16, 16),
        "decoder_input_ids": short_text(),
    },
    "lines of text": lambda _: {"pixel_values": torch.randn(1, 3, 96, 64)},
    "videos": lambda _: {"pixel_values": torch.randn(2, 4, 3, 8, 8)},
    "text and images": lambda tokens: {
        "input_ids": tokens,
        "pixel_values": images(),
    },
    "long sound to text": lambda _: {
        "input_values": torch.randn(2, 2431),
        "decoder_input_ids": short_text(),
    },
    "text with a mask, and images": text_with_a_mask_and_images,
    "images with objects": images_with_objects,
    "points of images": lambda _: {
        "pixel_values": torch.randn(2, 3, 16, 16),
        "input_points": 16 * torch.rand(2, 3, 2, 2),
    },
    "large points of images": lambda _: {
        "pixel_values": torch.randn(2, 3, 64, 64),
        "input_points": 64 * torch.rand(2, 3, 2, 2),
    },
    "images with a task": lambda tokens: {
        **images_with_objects(tokens),
        "task_inputs": tokens[:, :4],
    },
    "texts about images": lambda tokens: {
        **images_with_objects(tokens),
        "input_ids": tokens,
    },
    "square images": lambda _: {"pixel_values": torch.randn(2, 3, 64, 64)},
    "sound": lambda _: {"input_values": torch.randn(2, 120)},
    "sound to text": lambda _: {
        "input_values": torch.randn(2, 120),
        "decoder_input_ids": short_text(),
    },
    "spectra": lambda _: {"input_values": torch.randn(2, 16, 8)},
    "mels": lambda _: {"input_features": mels()},
    "spectra to text": lambda _: {
        "input_features": mels(),
        "decoder_input_ids": short_text(),
    },
}
