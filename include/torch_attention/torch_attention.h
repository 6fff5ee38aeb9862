#pragma once

// Everything. The finer headers compile faster.

#include <torch_attention/device.h>
#include <torch_attention/export.h>
#include <torch_attention/jit/swap_attention.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/functional/rotary.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/modules/causal_attention.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/head_norm.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>
#include <torch_attention/nn/modules/relative_bias.h>
#include <torch_attention/nn/modules/self_attention.h>
#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/cross_attention.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/head_norm.h>
#include <torch_attention/nn/options/latent_attention.h>
#include <torch_attention/nn/options/relative_bias.h>
#include <torch_attention/nn/options/rotary.h>
#include <torch_attention/nn/options/temperature.h>
#include <torch_attention/nn/utils/swap.h>
#include <torch_attention/operators/replace_sdpa.h>
#include <torch_attention/version.h>
#include <torch_attention/weights/convert.h>
#include <torch_attention/weights/dtype.h>
#include <torch_attention/weights/inspect.h>
#include <torch_attention/weights/layout.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/pretrained.h>
#include <torch_attention/weights/read.h>
#include <torch_attention/weights/save.h>
#include <torch_attention/weights/write.h>
