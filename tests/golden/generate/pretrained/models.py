"""All the small models, in files named as those of src/weights/pretrained that
describe them."""

from .encoder_decoders import ENCODER_DECODERS
from .encoders import ENCODERS
from .gpt import GPT
from .hybrids import HYBRIDS
from .latent import LATENT
from .llama import LLAMA
from .multimodal import MULTIMODAL
from .own_rules import OWN_RULES
from .sounds import SOUNDS_AND_TEXT
from .vision import VISION
from .windows import WINDOWS

MODELS = (
    *LLAMA,
    *WINDOWS,
    *OWN_RULES,
    *HYBRIDS,
    *LATENT,
    *GPT,
    *ENCODERS,
    *ENCODER_DECODERS,
    *MULTIMODAL,
    *VISION,
    *SOUNDS_AND_TEXT,
)
