// SPDX-License-Identifier: Apache-2.0
// A model folder with an adapter merged into its weights: transformers loads it without PEFT.
//     merge_model MODEL ADAPTER OUT [codes|bf16|f32]       of weights that are codes: rounded to codes again, or as numbers
// run: merge_model test/golden/models/llama/base test/golden/models/llama/lora/adapter_init build/merged-model
#include <graft/models.h>

#include <cmath>
#include <cstdio>

using namespace graft;
using engine = cpu::engine<float>;
namespace hf = graft::io::hf;

// The largest difference between the logits of the adapted model and those of the folder that was written.
result<double> difference(causal_lm<engine>& adapted, const std::string& folder) {
  auto merged = hf::load_model<engine>(folder);
  if (!merged) return merged.failure();
  const std::vector<std::int64_t> ids{1, 5, 7, 3};
  const row_run rows[] = {{ids, 0, 0}};
  std::vector<float> a(ids.size() * static_cast<std::size_t>(adapted.config().vocabulary)), b = a;
  if (status s = adapted.logits(rows, a); !s) return s.failure();
  if (status s = merged->logits(rows, b); !s) return s.failure();
  double largest = 0, most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i])));
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most / largest;
}

status run(const std::string& base, const std::string& adapter, const std::string& out, merged_as as) {
  auto model = hf::load_model<engine>(base);
  if (!model) return model.failure();
  auto adapters = hf::load_adapters(adapter, *model);
  if (!adapters) return adapters.failure();
  if (status s = model->set_adapters(std::move(adapters->set)); !s) return s;
  auto weights = model->merged_weights(model->active(), as);
  if (!weights) return weights.failure();
  if (status s = hf::save_model(out, *weights, base); !s) return s;
  const result<double> apart = difference(*model, out);
  if (!apart) return apart.failure();
  std::printf("%zu tensors written to %s; its logits differ from the adapted model's by %.1e of the largest\n",
              weights->tensors.size(), out.c_str(), *apart);
  // bf16 weights are rounded again by a merge, float ones are not; what codes lose depends on the adapter.
  const bool coded = model->config().coded && as == merged_as::codes;
  return coded || *apart < 0.05 ? status(ok)
                                : status(fail("the merged model does not compute what the adapted one does"));
}

int main(int count, char** all) {
  const std::string as = count == 5 ? all[4] : "codes";
  if (count < 4 || count > 5 || (as != "codes" && as != "bf16" && as != "f32"))
    return std::fprintf(stderr, "usage: merge_model MODEL ADAPTER OUT [codes|bf16|f32]\n"), 2;
  const status s = run(all[1], all[2], all[3],
                       as == "codes"  ? merged_as::codes
                       : as == "bf16" ? merged_as::bf16
                                      : merged_as::f32);
  return s ? 0 : (std::fprintf(stderr, "%s\n", s.message()), 1);
}
