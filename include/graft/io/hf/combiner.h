// SPDX-License-Identifier: Apache-2.0
// A weighted combination of adapters, module by module: checks, the rank of the result, its tensors under the keys of a
// file and its configuration. Whoever asked for it, a model or a single layer, reads both as it reads a folder.
#pragma once
#include <graft/io/hf/combine_updates.h>

#include <cstdio>

namespace graft::io::hf::detail {

class combiner {
 public:
  combiner(std::vector<shared_adapter> of, std::vector<double> weights, const combination_settings& how,
           folded_update fold)
      : from_{std::move(of), std::move(weights)},
        how_(how),
        fold_(std::move(fold)),
        random_(static_cast<std::uint32_t>(how.seed & 0xffffffff)) {
    if (from_.of.size() == 1 && !by_svd(how_.type)) how_.type = combination::linear;
  }
  status check() {
    if (from_.of.empty() || from_.weights.size() != from_.of.size())
      return fail("there must be one weight for each adapter, and at least one adapter");
    for (const double w : from_.weights)
      if (!std::isfinite(w)) return fail("a weight is not a finite number");
    if (!(how_.density >= 0)) return fail("the density is below 0, expected 0 to 1");
    if (drops(how_.type) && how_.density == 0) return fail("with a density of 0 nothing is left");
    for (const shared_adapter& a : from_.of)
      if (origin_of(a) == nullptr) return fail("an adapter was made without a configuration");
    scales_ = from_.all_of_type("IA3");
    if (!scales_) return find_rank();
    if (how_.type == combination::linear || how_.type == combination::svd) return ok;
    return fail("IA3 combines as linear; ", combination_names[static_cast<int>(how_.type)], " is for LoRA");
  }
  // A module's share of it; nothing where none of the adapters changes the module.
  status take(const base_layer& b) {
    std::vector<weighted_module> share = from_.at(b.module);
    std::erase_if(share, [](const weighted_module& m) { return is_whole(*m.is); });
    if (share.empty()) return ok;
    targets_.push_back(b.module);
    if (scales_) return combine_factors(b, share);
    if (b.kind != "linear" && b.kind != "embedding")
      return fail(b.module.c_str(), " is a norm; only layers with a matrix can be combined");
    return combine_module(b, share);
  }
  result<adapter_config> config() const {
    const json task = from_.first().task_type.empty() ? json{} : json_word(from_.first().task_type);
    const json turned = json_flag(from_.first().fan_in_fan_out);
    if (scales_)
      return make_adapter_config("IA3", targets_,
                                 {{"feedforward_modules", inner_}, {"fan_in_fan_out", turned}, {"task_type", task}});
    const bool rs = how_.scales == scaling::peft && from_.first().on("use_rslora");
    return make_adapter_config("LORA", targets_,
                               {{"r", json_number(static_cast<double>(rank_))},
                                {"lora_alpha", json_number(static_cast<double>(rank_))},
                                {"use_rslora", json_flag(rs)},
                                {"fan_in_fan_out", turned},
                                {"task_type", task}});
  }
  const made_tensors& tensors() const { return made_; }

 private:
  status find_rank() {
    long long most = 0, sum = 0;
    bool plain = true, equal = true;
    for (const shared_adapter& a : from_.of) {
      long long r = 0;
      for (const module_adapter& m : a->modules) {
        if (m.of.weight == nullptr || is_whole(m)) continue;
        const bool is_plain = weighted_module{&m, 0}.plain_lora();
        plain = plain && is_plain;
        if (is_plain) r = std::max(r, weighted_module{&m, 0}.rank());
      }
      equal = equal && (most == 0 || r == most);
      most = std::max(most, r), sum += r;
    }
    if (!plain && !by_svd(how_.type))
      return fail("only LoRA's factors can be combined as ", combination_names[static_cast<int>(how_.type)],
                  "; the forms that end in svd take the updates of other methods, with a rank that you state");
    if (by_svd(how_.type)) {
      rank_ = how_.rank > 0 ? how_.rank : most;
      return rank_ > 0 ? status(ok) : fail("state the rank of the combination: none of the adapters has one");
    }
    if (how_.type != combination::cat && !equal)
      return fail("the adapters have different ranks, which ", combination_names[static_cast<int>(how_.type)],
                  " cannot combine; use cat or a form that ends in svd");
    rank_ = how_.type == combination::cat ? sum : most;
    return ok;
  }
  static bool is_whole(const module_adapter& m) {
    return !m.tensors.empty() && m.tensors.begin()->first.starts_with("modules_to_save.");
  }
  // PEFT's releases before 0.21 count the scaling twice.
  bool counts_twice() const {
    if (how_.scales == scaling::exact) return false;
    int major = 0, minor = 0;
    const std::string& v = from_.first().peft_version;
    return std::sscanf(v.c_str(), "%d.%d", &major, &minor) == 2 && major == 0 && minor < 21;
  }
  // IA3: l = Σ w_i l_i.
  status combine_factors(const base_layer& b, const std::vector<weighted_module>& share) {
    const formula ff = formula_of<ia3_feedforward>();
    for (const weighted_module& m : share)
      if ((m.is->of.weight == ff.weight) != (share[0].is->of.weight == ff.weight))
        return fail(b.module.c_str(), " is feed-forward for one adapter and not for the other");
    inner_.what = json::kind::list;
    if (share[0].is->of.weight == ff.weight) inner_.items.push_back(json_word(b.module));
    const adapter_tensor& like = share[0].is->tensors.at("ia3_l");
    std::vector<float>& to = made_.put("base_model.model." + b.module + ".ia3_l", like.shape);
    for (const weighted_module& m : share) {
      const std::vector<float>& from = *m.is->tensors.at("ia3_l").data;
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i] * static_cast<float>(m.weight);
    }
    return ok;
  }
  status combine_module(const base_layer& b, const std::vector<weighted_module>& share) {
    const bool table = b.kind == "embedding";
    const long long rows = table ? b.in : b.out, cols = table ? b.out : b.in;
    const std::string key = "base_model.model." + b.module + (table ? ".lora_embedding_" : ".lora_");
    std::vector<float>& A = made_.put(key + (table ? "A" : "A.weight"), {rank_, cols});
    std::vector<float>& B = made_.put(key + (table ? "B" : "B.weight"), {rows, rank_});
    if (by_svd(how_.type))
      return combined_updates(fold_, how_, rank_, counts_twice(), random_).factor(b, share, rows, cols, A, B);
    if (how_.type == combination::cat) {
      std::size_t from = 0;
      for (const weighted_module& m : share) {
        const double a = m.weight * m.scale();
        place(*m.factor(true).data, a, A, from * static_cast<std::size_t>(cols));
        place_columns(*m.factor(false).data, static_cast<std::size_t>(m.rank()), B, from);
        from += static_cast<std::size_t>(m.rank());
      }
      return ok;
    }
    for (const bool a : {true, false}) {
      std::vector<std::vector<float>> tensors;
      std::vector<double> weights;
      for (const weighted_module& m : share) {
        if (m.rank() != share[0].rank())
          return fail(b.module.c_str(), ": the adapters have different ranks here; use cat or a form that ends in svd");
        const double scaled = m.weight * m.scale(), root = std::sqrt(std::abs(scaled));
        weights.push_back(a && scaled < 0 ? -root : root);
        tensors.push_back(*m.factor(a).data);
      }
      const std::vector<float> made = combined(std::move(tensors), weights, how_, [&] { return unit_float(random_); });
      if (a)
        place(made, 1, A, 0);
      else
        place_columns(made, static_cast<std::size_t>(share[0].rank()), B, 0);
    }
    return ok;
  }
  static void place(const std::vector<float>& from, double times, std::vector<float>& to, std::size_t at) {
    for (std::size_t i = 0; i < from.size(); ++i) to[at + i] = from[i] * static_cast<float>(times);
  }
  void place_columns(const std::vector<float>& from, std::size_t width, std::vector<float>& to, std::size_t at) const {
    const auto all = static_cast<std::size_t>(rank_);
    for (std::size_t i = 0; i < from.size(); ++i) to[i / width * all + at + i % width] = from[i];
  }

  weighted_adapters from_;
  combination_settings how_;
  folded_update fold_;
  mersenne_twister random_;
  bool scales_ = false;  // IA3
  long long rank_ = 0;
  std::vector<std::string> targets_;
  json inner_{};  // IA3's feed-forward modules
  made_tensors made_;
};

}  // namespace graft::io::hf::detail
