"""All the small models, in files named as those of src/weights/pretrained that
describe them."""

from .contexts import CONTEXTS
from .detr import DETR
from .disentangled import DISENTANGLED
from .encoder_decoders import ENCODER_DECODERS
from .encoders import ENCODERS
from .gpt import GPT
from .hybrids import HYBRIDS
from .images import IMAGES_IN_WINDOWS
from .latent import LATENT
from .llama import LLAMA
from .longformer import LONGFORMER
from .multimodal import MULTIMODAL
from .own_rules import OWN_RULES
from .relative import RELATIVE
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
    *DETR,
    *MULTIMODAL,
    *VISION,
    *IMAGES_IN_WINDOWS,
    *SOUNDS_AND_TEXT,
    *RELATIVE,
    *DISENTANGLED,
    *LONGFORMER,
    *CONTEXTS,
)
