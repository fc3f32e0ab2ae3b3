// SPDX-License-Identifier: Apache-2.0
// A configuration of every method in every form that a new adapter can have, for tests of all of them.
#pragma once
#include <graft/io/peft/folder.h>

#include <string>
#include <utility>
#include <vector>

namespace graft::test {

struct fresh_method {
  const char* type;
  std::vector<std::pair<std::string, io::json>> keys;
  bool neutral = true;  // a new adapter computes what the base computes
};
// `rank` is the `r` of methods that take any; the others get the nearest one that they take.
inline std::vector<fresh_method> fresh_methods(int rank = 4) {
  using namespace graft::io;
  const json r = json_number(rank), even = json_number(rank + rank % 2), four = json_number(4), yes = json_bool(true),
             no = json_bool(false), eight = json_number(8);
  return {{"LORA", {{"r", r}}},
          {"LORA", {{"r", r}, {"use_dora", yes}}},
          {"LORA", {{"r", r}, {"use_rslora", yes}, {"bias", json_string("all")}}},
          {"LORA", {{"r", r}, {"lora_bias", yes}}},
          {"LORA", {{"r", r}, {"init_lora_weights", json_string("pissa")}}},
          {"LORA", {{"r", r}, {"init_lora_weights", json_string("pissa")}, {"use_dora", yes}}},
          {"LORA", {{"r", r}, {"target_modules", json_string("all-linear")}}},
          {"LORA",
           {{"r", r},
            {"modules_to_save",
             [] {
               json list;
               list.what = json::kind::list, list.items = {json_string("lm_head")};
               return list;
             }()}}},
          {"ADALORA", {{"init_r", r}, {"target_r", json_number(2)}, {"total_step", json_number(9)}}},
          {"OFT", {{"oft_block_size", eight}}},
          {"OFT", {{"oft_block_size", eight}, {"use_cayley_neumann", no}, {"block_share", yes}}},
          {"BOFT", {{"boft_block_size", four}}},
          {"HRA", {{"r", r}}},
          {"IA3", {}},
          {"LOHA", {{"r", r}}},
          {"LOKR", {{"r", r}}},
          {"LOKR", {{"r", json_number(1)}, {"decompose_both", yes}}},
          {"VERA", {{"r", r}}},
          {"VBLORA", {{"r", r}, {"num_vectors", json_number(20)}, {"vector_length", eight}}, false},
          {"MISS", {{"r", four}}},
          {"MISS", {{"r", four}, {"init_weights", json_string("bat")}}},
          {"DELORA", {{"r", r}}},
          {"GRALORA", {{"r", even}, {"alpha", eight}}},
          {"GRALORA", {{"r", even}, {"alpha", eight}, {"hybrid_r", r}}},
          {"RANDLORA", {{"r", r}}},
          {"ROAD", {{"group_size", eight}}},
          {"C3A", {{"block_size", eight}}, false},
          {"HIRA", {{"r", r}}},
          {"PSOFT", {{"r", r}}},
          {"BEFT", {}},
          {"DEFT", {{"r", r}}},
          {"DEFT", {{"r", r}, {"alpha", eight}}},
          {"DEFT", {{"r", r}, {"para", yes}}, false},
          {"DEFT", {{"r", r}, {"alpha", eight}, {"decomposition_method", json_string("qr")}}},
          {"PEANUT", {{"r", r}}},
          {"PEANUT", {{"r", r}, {"depth", json_number(2)}, {"act_fn", json_string("gelu")}}},
          {"SHIRA", {{"r", r}}},
          {"SUPERTUNING", {}},
          {"SUPERTUNING", {{"r", r}, {"lora_alpha", eight}, {"save_precomputed_indices", no}}},
          {"FOURIERFT", {{"n_frequency", eight}}, false},
          {"FOURIERFT", {{"n_frequency", eight}, {"init_weights", yes}}},
          {"WAVEFT", {{"n_frequency", eight}, {"wavelet_family", json_string("sym3")}}},
          {"WAVEFT", {{"n_frequency", eight}, {"proportional_parameters", yes}}},
          {"UNILORA", {}, false},
          {"PVERA", {{"r", r}}},
          {"GLORA", {{"r", r}}},
          {"GLORA", {{"config_A_B", json_string("vector")}}},
          {"GLORA", {{"config_A_B", json_string("constant")}}},
          {"OSF", {}},
          {"OSF", {{"effective_rank", json_number(3)}}},
          {"TINYLORA", {}},
          {"TINYLORA", {{"r", r}, {"u", json_number(3)}, {"weight_tying", json_number(0.5)}}},
          {"TINYLORA", {{"weight_tying", json_number(1)}, {"init_weights", json_string("uniform")}}, false},
          {"ADAMSS", {{"r", eight}, {"num_subspaces", json_number(3)}, {"subspace_rank", json_number(2)}}}};
}

}  // namespace graft::test
