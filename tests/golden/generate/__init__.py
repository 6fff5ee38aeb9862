"""Makes the golden files that the C++ tests read, and checks them.

    reference  the classes that the library mirrors: archives, and sample
               values beside them
    files      small weight files of every format
    layouts    weights of many attention classes, and their outputs
    pretrained attention of small models of Hugging Face
    models     whole decoders, for the example gpt
    encoders   whole encoders and tokenizers, for the example encoder
    heatmap    attention weights of whole models
    jit        traced models of Hugging Face

They are in zip files, tests/golden/SET/PACK.zip: see packs.py.

The classes and the formats themselves are shared with the exporter that users
run, so they lie in scripts/torch_attention_reference.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

sys.path.insert(0, str(ROOT / "scripts"))
