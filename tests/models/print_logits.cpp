// Writes what a model computes, for random_gguf_models.py and
// random_models.py:
//   print_logits PATH CALL... OUT
// A CALL is `1,2,3`, a text, or several as `1,2,3;4,5`, with what is computed
// before it:
//   forward:    logits of a decoder (the default), or hidden states of an
//               encoder, for which texts are padded on the right
//   hidden:     hidden states of a decoder
//   weights:    the attention weights of all layers
//   packed:     hidden states of an encoder, of texts without padding
//   vectors:    those of a sentence encoder, one for each text
//   decode:     logits after each step, as in `1,2;3|4;5|6;7`, with KVCache
//   sequences:  the same with SequenceCaches
// A decoder's texts are padded on the left. OUT gets the tensors `output`,
// `output.1`, ...; of calls that are refused only the messages are printed.

#include <support/test.h>

#include <torch_attention/models/models.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

using namespace torch_attention;

namespace {

using Ids = std::vector<int64_t>;
using Texts = std::vector<Ids>;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

Ids ids_of(const std::string& text) {
  Ids ids;
  for (const auto& id : split(text, ',')) {
    ids.push_back(std::stoll(id));
  }
  return ids;
}

Texts texts_of(const std::string& text) {
  Texts texts;
  for (const auto& each : split(text, ';')) {
    texts.push_back(ids_of(each));
  }
  return texts;
}

/// Texts as rows of zeros and tokens, and their lengths if these differ.
struct Batch {
  torch::Tensor ids;
  torch::Tensor lengths;
};

Batch batch_of(const Texts& texts, bool left_padded) {
  TORCH_CHECK(!texts.empty(), "expected a text");
  std::vector<torch::Tensor> rows;
  Ids lengths;
  for (const auto& text : texts) {
    lengths.push_back(static_cast<int64_t>(text.size()));
  }
  const auto [least, most] =
      std::minmax_element(lengths.begin(), lengths.end());
  for (const auto& text : texts) {
    auto row = torch::zeros({*most}, torch::kLong);
    const auto length = static_cast<int64_t>(text.size());
    const auto first = left_padded ? *most - length : 0;
    row.slice(0, first, first + length)
        .copy_(torch::tensor(text, torch::kLong));
    rows.push_back(row);
  }
  return {
      torch::stack(rows),
      *least == *most ? torch::Tensor() : torch::tensor(lengths, torch::kLong)};
}

Ids numbers_to(int64_t count) {
  Ids numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

torch::Tensor encoded(
    models::Bert& model,
    const std::string& kind,
    const Texts& texts) {
  if (kind == "packed") {
    Ids all;
    Ids ends = {0};
    for (const auto& text : texts) {
      all.insert(all.end(), text.begin(), text.end());
      ends.push_back(static_cast<int64_t>(all.size()));
    }
    return model->forward_packed(
        torch::tensor(all, torch::kLong), torch::tensor(ends, torch::kLong));
  }
  const auto batch = batch_of(texts, /*left_padded=*/false);
  if (kind == "weights") {
    const auto count = static_cast<int64_t>(model->options.attention().size());
    return torch::stack(model->attention_weights(batch.ids, numbers_to(count)));
  }
  TORCH_CHECK(kind == "forward", "encoders have no ", kind);
  return model->forward(batch.ids, batch.lengths);
}

/// Calls decode(ids, options) for each step -> (B, steps, V).
template <typename Decode>
torch::Tensor decoded(const std::string& steps, const Decode& decode) {
  std::vector<torch::Tensor> logits;
  for (const auto& step : split(steps, '|')) {
    const auto batch = batch_of(texts_of(step), /*left_padded=*/true);
    DecodeOptions options(batch.lengths);
    logits.push_back(
        decode(batch.ids, options.left_padded(batch.lengths.defined())));
  }
  return torch::stack(logits, 1);
}

torch::Tensor computed(
    models::LanguageModel& model,
    const std::string& kind,
    const std::string& steps) {
  const auto texts = texts_of(split(steps, '|').at(0));
  const auto count = static_cast<int64_t>(texts.size());
  if (kind == "decode") {
    auto caches = model.make_caches(count);
    return decoded(steps, [&](const auto& ids, const auto& options) {
      return model.decode(ids, caches, options);
    });
  }
  if (kind == "sequences") {
    auto caches = model.make_sequence_caches();
    Ids sequences;
    for (int64_t i = 0; i < count; ++i) {
      sequences.push_back(caches.admit());
    }
    return decoded(steps, [&](const auto& ids, const auto& options) {
      return model.decode(ids, caches, sequences, options);
    });
  }
  const auto batch = batch_of(texts, /*left_padded=*/true);
  TORCH_CHECK(
      !batch.lengths.defined(), "expected texts of one length for ", kind);
  if (kind == "weights") {
    const auto layers = static_cast<int64_t>(model.make_caches(1).size());
    return torch::stack(model.attention_weights(batch.ids, numbers_to(layers)));
  }
  if (kind == "hidden") {
    return model.hidden_states(batch.ids);
  }
  TORCH_CHECK(kind == "forward", "decoders have no ", kind);
  return model.forward(batch.ids);
}

/// The texts of a sentence encoder are ids, too, and so is its prompt.
torch::Tensor vectors_of(const std::string& path, const std::string& texts) {
  const auto tokenize = [](const std::string& text, int64_t max_length) {
    auto ids = ids_of(text);
    const auto most = static_cast<size_t>(max_length);
    ids.resize(std::min(ids.size(), most));
    return ids;
  };
  return models::sentence_encoder_from_pretrained(path, tokenize)
      .encode(split(texts, ';'));
}

/// A decoder or an encoder.
class Model {
 public:
  explicit Model(const std::string& path) : path_(path) {
    const auto layers = inspect_pretrained(path).layers;
    TORCH_CHECK(!layers.empty(), "expected a model with layers");
    const auto encoders = models::bert_types();
    if (std::binary_search(
            encoders.begin(), encoders.end(), layers.front().model_type)) {
      encoder_ = models::bert_from_pretrained(path);
    } else {
      decoder_ = models::language_model_from_pretrained(path);
    }
  }

  torch::Tensor compute(const std::string& call) {
    const auto colon = call.find(':');
    const auto kind =
        colon == std::string::npos ? "forward" : call.substr(0, colon);
    const auto steps =
        colon == std::string::npos ? call : call.substr(colon + 1);
    if (kind == "vectors") {
      return vectors_of(path_, steps);
    }
    return decoder_ == nullptr ? encoded(encoder_, kind, texts_of(steps))
                               : computed(*decoder_, kind, steps);
  }

 private:
  std::string path_;
  std::shared_ptr<models::LanguageModel> decoder_;
  models::Bert encoder_ = nullptr;
};

} // namespace

int main(int argc, char** argv) {
  int result = 0;
  try {
    TORCH_CHECK(argc >= 4, "expected PATH CALL... OUT");
    const torch::NoGradGuard no_gradients;
    Model model(argv[1]);
    torch::OrderedDict<std::string, torch::Tensor> tensors;
    for (int i = 2; i < argc - 1; ++i) {
      const auto number = std::to_string(i - 2);
      try {
        tensors.insert(
            i == 2 ? "output" : "output." + number,
            model.compute(argv[i]).contiguous());
      } catch (const c10::Error& error) {
        std::cerr << "call " << number << ": " << error.what_without_backtrace()
                  << "\n";
        result = 1;
      }
    }
    write_weights(tensors, argv[argc - 1]);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  }
  return result;
}
