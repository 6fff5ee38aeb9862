// Writes what a model computes, for random_gguf_models.py:
//   print_logits PATH IDS OUT
// IDS are as 1,2,3. OUT gets the logits of a decoder, or the hidden states of
// an encoder.

#include <support/test.h>

#include <torch_attention/models/bert.h>
#include <torch_attention/models/language_model.h>
#include <torch_attention/weights/gguf.h>

#include <iostream>
#include <sstream>

using namespace torch_attention;

int main(int argc, char** argv) {
  try {
    TORCH_CHECK(argc == 4, "expected PATH IDS OUT");
    const torch::NoGradGuard no_gradients;
    std::vector<int64_t> ids;
    std::istringstream list(argv[2]);
    for (std::string id; std::getline(list, id, ',');) {
      ids.push_back(std::stoll(id));
    }
    const auto batch = torch::tensor(ids).unsqueeze(0);
    const std::string path = argv[1];
    const bool is_bert =
        config_from_gguf(path).find("\"bert\"") != std::string::npos;
    const auto output = is_bert
        ? models::bert_from_pretrained(path)->forward(batch)
        : models::language_model_from_pretrained(path)->forward(batch);
    torch::OrderedDict<std::string, torch::Tensor> tensors;
    tensors.insert("output", output.contiguous());
    write_weights(tensors, argv[3]);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  }
  return 0;
}
