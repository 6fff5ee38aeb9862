"""Small random models of Hugging Face, as `save_pretrained` writes them.

A folder for each:

  config.json                    the configuration
  model.safetensors              the weights of its attention layers
  expected.safetensors           "LAYER.input" and "LAYER.output" of each layer:
                                 hidden states (B, T, d_in) and the output of
                                 its attention (B, T, d_out)

Of the weights all that is not attention's is left out, to keep files small.
"""

from __future__ import annotations

from pathlib import Path

from ..golden_set import GoldenSet, LeftOut
from ..model_folders import difference_of, write_models
from .models import MODELS


def make(folder: Path) -> LeftOut:
    """Writes all models that can be made here."""
    return write_models(MODELS, folder)


PACKS = (
    "a au b bl bli br c co d di e eu f fi g gemma3 gemma4 gl glm_i gp gpt_n gr h i j l lf"
    " llava m me mi mis mo moo mp mu n o p pe ph pi po q qwen3 r s si sp t ti u v vit w x"
)
GOLDEN_SET = GoldenSet(
    "pretrained", "pretrained", make, difference_of, "*/*", tuple(PACKS.split())
)
