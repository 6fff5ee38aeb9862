#include <distributed/support.h>

#include <torch_attention/distributed/group.h>

#include <string>

namespace torch_attention::testing {

namespace group_test {

TEST_CASE("Groups of some processes find each other in torchrun's store") {
  const auto rank = group()->getRank();
  const auto parity = rank % 2;
  const auto size = (processes() + 1 - parity) / 2;
  const auto options = distributed::GroupOptions()
                           .timeout(std::chrono::seconds(60))
                           .name("parity" + std::to_string(parity));
  const auto store = distributed::store_from_environment(options);
  const auto same = distributed::gloo_group(store, rank / 2, size, options);
  CHECK(same->getSize() == size);
  CHECK(same->getRank() == rank / 2);

  std::vector<torch::Tensor> ranks = {torch::tensor({rank})};
  same->allreduce(ranks)->wait();
  int64_t sum = 0;
  for (auto other = parity; other < processes(); other += 2) {
    sum += other;
  }
  CHECK(ranks[0].item<int64_t>() == sum);
}

} // namespace group_test

} // namespace torch_attention::testing
