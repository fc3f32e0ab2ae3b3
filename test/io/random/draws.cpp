// SPDX-License-Identifier: Apache-2.0
// Random indices as PEFT draws them: the expected numbers were printed by PyTorch 2.15, numpy 2 and scikit-learn 1.9.
#include <doctest/doctest.h>
#include <graft/io/peft/kmeans.h>
#include <graft/io/random/numpy.h>
#include <graft/io/random/torch.h>
#include <graft/io/random/torch_topk.h>

using namespace graft::io;
using indices = std::vector<std::int64_t>;
using numbers = std::vector<std::uint32_t>;

TEST_CASE("draws: numpy's choice and shuffle") {
  pcg64 rng(42);
  CHECK(draw_choice(rng, 10, 4) == numbers{4, 0, 5, 6});
  numbers list{0, 1, 2, 3, 4, 5, 6, 7};
  shuffle_list(rng, list);
  CHECK(list == numbers{0, 2, 7, 1, 4, 5, 3, 6});
  pcg64 large(123456789012);
  const numbers chosen = draw_choice(large, 20000, 500);  // the tail of a shuffle
  CHECK(numbers(chosen.begin(), chosen.begin() + 5) == numbers{6906, 10768, 19989, 6618, 437});
  CHECK(chosen.back() == 19048);
}

TEST_CASE("draws: PyTorch's permutation") {
  mersenne_twister engine(777);
  CHECK(draw_permutation(engine, 1000, 6) == indices{735, 819, 201, 799, 435, 497});
  mersenne_twister again(777);
  CHECK(draw_permutation(again, 1000, 1000).size() == 1000);
}

TEST_CASE("draws: the largest and smallest numbers, equal ones in PyTorch's order") {
  const std::vector<float> few{1, 3, 2, 3, 1, 2, 3, 0, 1, 2};
  CHECK(topk_indices(few, 4, true) == indices{1, 3, 6, 9});
  CHECK(topk_indices(few, 5, false) == indices{7, 0, 4, 8, 9});
  std::vector<float> many;
  for (int i = 0; i < 400; ++i) many.push_back(static_cast<float>(i * 7919 % 13));
  CHECK(topk_indices(many, 6, true) == indices{6, 19, 32, 71, 58, 45});
  CHECK(topk_indices(many, 6, false) == indices{39, 26, 52, 65, 13, 0});
  CHECK(topk_indices(many, 9, true) == indices{344, 123, 110, 318, 97, 331, 84, 370, 45});
}

TEST_CASE("draws: groups of rows as scikit-learn's KMeans finds them") {
  svd::matrix x(20, 3);
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = 0; j < 3; ++j) x(i, j) = static_cast<double>((i * 37 + j * 11) % 17) / 17;
  CHECK(kmeans::of(x, 4, 123456789) ==
        std::vector<std::size_t>{2, 2, 1, 1, 0, 0, 2, 3, 1, 1, 0, 0, 2, 3, 1, 1, 0, 2, 2, 1});
}
