#pragma once

// All models. The finer headers compile faster.

#include <torch_attention/models/bert.h>
#include <torch_attention/models/export.h>
#include <torch_attention/models/generate.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/language_model.h>
#include <torch_attention/models/llama.h>
#include <torch_attention/models/options.h>
#include <torch_attention/models/projection.h>
#include <torch_attention/models/sentence_encoder.h>
#include <torch_attention/models/sequence_caches.h>
#include <torch_attention/models/word_piece.h>
