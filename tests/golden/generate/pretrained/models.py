"""All the small models."""

from .decoders import DECODERS
from .encoder_decoders import ENCODER_DECODERS
from .encoders import ENCODERS

MODELS = (*DECODERS, *ENCODERS, *ENCODER_DECODERS)
