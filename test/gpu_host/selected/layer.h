// SPDX-License-Identifier: Apache-2.0
// The layer types whose object files names.sh compares with their selections; TESTED names one of them.
#pragma once
#include <graft/graft.h>

namespace tested {

struct bare : graft::linear<4096, 4096, graft::bf16, graft::none> {};
struct lora : graft::linear<4096, 4096, graft::bf16, graft::lora<16>> {};
struct oft : graft::linear<4096, 4096, graft::bf16, graft::oft<32>> {};
struct nf4_lora : graft::linear<4096, 4096, graft::nf4<64>, graft::lora<16>> {};

using layer = TESTED;

}  // namespace tested
