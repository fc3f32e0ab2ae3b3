// SPDX-License-Identifier: Apache-2.0
// Computes a weighted combination of adapters (hf/combine_adapters.h) module by module: checks the inputs, determines
// the rank, and builds tensors and configuration, which the caller (model or single layer) reads like a PEFT folder.
#pragma once
#include <graft/io/hf/adapter_from_tensors.h>
#include <graft/io/hf/adapters.h>
#include <graft/io/random/torch.h>
#include <graft/io/svd/truncated.h>
#include <graft/model/combination.h>
#include <graft/model/weight_update.h>

#include <cstdio>
#include <functional>

namespace graft::io::hf::detail {

// One adapter's change of one module, with the weight of the adapter.
struct weighted_module {
  const module_adapter* is = nullptr;
  double weight = 0;

  bool plain_lora() const {
    return is->of.weight == formula_of<lora<>>().weight || is->of.weight == formula_of<lora_embedding<>>().weight;
  }
  const adapter_tensor& factor(bool a) const {
    return is->tensors.at(is->table ? (a ? "lora_embedding_A" : "lora_embedding_B")
                                    : (a ? "lora_A.weight" : "lora_B.weight"));
  }
  long long rank() const { return factor(true).shape[0]; }
  double scale() const { return is->scalars.at("scaling"); }
};

// The adapters of a combination with their weights.
struct weighted_adapters {
  std::vector<shared_adapter> of;
  std::vector<double> weights;

  bool all_of_type(const char* type) const {
    return std::all_of(of.begin(), of.end(),
                       [&](const shared_adapter& a) { return same_text(origin_of(a)->config.type_name(), type); });
  }
  const adapter_config& first() const { return origin_of(of[0])->config; }
  std::vector<weighted_module> at(const std::string& module) const {
    std::vector<weighted_module> all;
    for (std::size_t i = 0; i < of.size(); ++i)
      if (const module_adapter* m = of[i]->find(module); m != nullptr && m->of.weight != nullptr)
        all.push_back({m, weights[i]});
    return all;
  }
};

// Computes W' − W on the weight of a layer, for methods other than LoRA (model/weight_update.h).
using weight_update_function = std::function<result<std::vector<float>>(const module_adapter&, const view& weight)>;

// The svd types: combines the updates ΔW_i of a module and factors the result at a given rank. A plain sum of LoRAs is
// factored without forming the updates.
class svd_combination {
 public:
  // `twice` applies each LoRA's scaling twice, as PEFT before 0.21 does.
  svd_combination(const weight_update_function& fold, const combination_settings& settings, long long rank, bool twice,
                  mersenne_twister& random)
      : fold_(fold), settings_(settings), rank_(rank), scales_twice_(twice), random_(random) {}

  status factor(const base_layer& b, const std::vector<weighted_module>& share, long long rows, long long cols,
                std::vector<float>& A, std::vector<float>& B) {
    long long together = 0;
    bool plain = true;
    for (const weighted_module& m : share) plain = plain && m.plain_lora();
    for (const weighted_module& m : share) together += plain ? m.rank() : 0;
    svd::rank_factors f;
    if (settings_.type == combination::svd && plain && together <= std::min(rows, cols)) {
      svd::matrix p(static_cast<std::size_t>(rows), static_cast<std::size_t>(together)),
          q(static_cast<std::size_t>(together), static_cast<std::size_t>(cols));
      std::size_t from = 0;
      for (const weighted_module& m : share) {
        const double times = m.weight * m.scale() * (scales_twice_ ? m.scale() : 1);
        const auto r = static_cast<std::size_t>(m.rank());
        for (std::size_t k = 0; k < r; ++k) {
          for (std::size_t i = 0; i < p.rows; ++i)
            p(i, from + k) = times * static_cast<double>((*m.factor(false).data)[i * r + k]);
          for (std::size_t j = 0; j < q.cols; ++j)
            q(from + k, j) = static_cast<double>((*m.factor(true).data)[k * q.cols + j]);
        }
        from += r;
      }
      f = svd::truncated_factors(p, q, static_cast<std::size_t>(rank_));
    } else {
      std::vector<std::vector<float>> updates;
      std::vector<double> weights;
      for (const weighted_module& m : share) {
        result<std::vector<float>> u = update(b, m, rows, cols);
        if (!u) return u.failure();
        updates.push_back(std::move(*u));
        weights.push_back(m.weight * (scales_twice_ && m.plain_lora() ? m.scale() : 1));
      }
      const std::vector<float> sum =
          combined(std::move(updates), weights, settings_, [&] { return unit_float(random_); });
      svd::matrix dense(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
      for (std::size_t i = 0; i < dense.rows; ++i)
        for (std::size_t j = 0; j < dense.cols; ++j) dense(i, j) = static_cast<double>(sum[i * dense.cols + j]);
      f = svd::truncated_factors(dense, static_cast<std::size_t>(rank_));
    }
    std::copy(f.A.begin(), f.A.end(), A.begin()), std::copy(f.B.begin(), f.B.end(), B.begin());
    return ok;
  }

 private:
  // ΔW [rows, cols]; an embedding's is transposed, like its factors.
  result<std::vector<float>> update(const base_layer& b, const weighted_module& m, long long rows, long long cols) {
    std::vector<float> out(static_cast<std::size_t>(rows * cols));
    const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(cols);
    if (m.plain_lora()) {
      const auto r = static_cast<std::size_t>(m.rank());
      const std::vector<float>&A = *m.factor(true).data, &B = *m.factor(false).data;
      for (std::size_t i = 0; i < height; ++i)
        for (std::size_t j = 0; j < width; ++j) {
          float sum = 0;
          for (std::size_t k = 0; k < r; ++k) sum += B[i * r + k] * A[k * width + j];
          out[i * width + j] = sum * static_cast<float>(m.scale());
        }
      return out;
    }
    result<std::vector<float>> folded = fold_(*m.is, b.weight);
    if (!folded || b.kind != "embedding") return folded;
    for (std::size_t i = 0; i < height; ++i)
      for (std::size_t j = 0; j < width; ++j) out[i * width + j] = (*folded)[j * height + i];
    return out;
  }

  const weight_update_function& fold_;
  const combination_settings& settings_;
  long long rank_;
  bool scales_twice_;
  mersenne_twister& random_;
};

class combiner {
 public:
  combiner(std::vector<shared_adapter> of, std::vector<double> weights, const combination_settings& settings,
           weight_update_function fold)
      : from_{std::move(of), std::move(weights)},
        settings_(settings),
        fold_(std::move(fold)),
        random_(static_cast<std::uint32_t>(settings.seed & 0xffffffff)) {
    if (from_.of.size() == 1 && !by_svd(settings_.type)) settings_.type = combination::linear;
  }
  status check() {
    if (from_.of.empty() || from_.weights.size() != from_.of.size())
      return fail("there must be one weight for each adapter, and at least one adapter");
    for (const double w : from_.weights)
      if (!std::isfinite(w)) return fail("a weight is not a finite number");
    if (!(settings_.density >= 0)) return fail("the density is below 0, expected 0 to 1");
    if (graft::detail::drops(settings_.type) && settings_.density == 0)
      return fail("with a density of 0 nothing is left");
    for (const shared_adapter& a : from_.of)
      if (origin_of(a) == nullptr) return fail("an adapter was made without a configuration");
    scales_ = from_.all_of_type("IA3");
    if (!scales_) return find_rank();
    if (settings_.type == combination::linear || settings_.type == combination::svd) return ok;
    return fail("IA3 combines as linear; ", combination_names[static_cast<int>(settings_.type)], " is for LoRA");
  }
  // Adds one module to the combination; does nothing if no adapter changes it.
  status take(const base_layer& b) {
    std::vector<weighted_module> share = from_.at(b.module);
    std::erase_if(share, [](const weighted_module& m) { return is_modules_to_save(*m.is); });
    if (share.empty()) return ok;
    targets_.push_back(b.module);
    if (scales_) return combine_factors(b, share);
    if (b.kind == "experts")
      return fail(b.module.c_str(), ": adapters of experts cannot be combined by weights; activate several at once");
    if (b.kind != "linear" && b.kind != "embedding")
      return fail(b.module.c_str(), " is a norm; only layers with a matrix can be combined");
    return combine_module(b, share);
  }
  result<adapter_config> config() const {
    const json task = from_.first().task_type.empty() ? json{} : json_string(from_.first().task_type);
    const json transposed_storage = json_bool(from_.first().fan_in_fan_out);
    if (scales_)
      return make_adapter_config(
          "IA3", targets_,
          {{"feedforward_modules", inner_}, {"fan_in_fan_out", transposed_storage}, {"task_type", task}});
    const bool rs = settings_.scales == scaling::peft && from_.first().on("use_rslora");
    return make_adapter_config("LORA", targets_,
                               {{"r", json_number(static_cast<double>(rank_))},
                                {"lora_alpha", json_number(static_cast<double>(rank_))},
                                {"use_rslora", json_bool(rs)},
                                {"fan_in_fan_out", transposed_storage},
                                {"task_type", task}});
  }
  const owned_tensors& tensors() const { return tensors_; }

 private:
  status find_rank() {
    long long most = 0, sum = 0;
    bool plain = true, equal = true;
    for (const shared_adapter& a : from_.of) {
      long long r = 0;
      for (const module_adapter& m : a->modules) {
        if (m.of.weight == nullptr || is_modules_to_save(m)) continue;
        const bool is_plain = weighted_module{&m, 0}.plain_lora();
        plain = plain && is_plain;
        if (is_plain) r = std::max(r, weighted_module{&m, 0}.rank());
      }
      equal = equal && (most == 0 || r == most);
      most = std::max(most, r), sum += r;
    }
    if (!plain && !by_svd(settings_.type))
      return fail("only LoRA's factors can be combined as ", combination_names[static_cast<int>(settings_.type)],
                  "; the forms that end in svd take the updates of other methods, with a rank that you state");
    if (by_svd(settings_.type)) {
      rank_ = settings_.rank > 0 ? settings_.rank : most;
      return rank_ > 0 ? status(ok) : fail("state the rank of the combination: none of the adapters has one");
    }
    if (settings_.type != combination::cat && !equal)
      return fail("the adapters have different ranks, which ", combination_names[static_cast<int>(settings_.type)],
                  " cannot combine; use cat or a form that ends in svd");
    rank_ = settings_.type == combination::cat ? sum : most;
    return ok;
  }
  static bool is_modules_to_save(const module_adapter& m) {
    return !m.tensors.empty() && m.tensors.begin()->first.starts_with("modules_to_save.");
  }
  // True if PEFT, in the release that wrote the first adapter (before 0.21), applies the scaling twice.
  bool scales_twice() const {
    if (settings_.scales == scaling::exact) return false;
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
    if (share[0].is->of.weight == ff.weight) inner_.items.push_back(json_string(b.module));
    const adapter_tensor& like = share[0].is->tensors.at("ia3_l");
    std::vector<float>& to = tensors_.put("base_model.model." + b.module + ".ia3_l", like.shape);
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
    std::vector<float>& A = tensors_.put(key + (table ? "A" : "A.weight"), {rank_, cols});
    std::vector<float>& B = tensors_.put(key + (table ? "B" : "B.weight"), {rows, rank_});
    if (by_svd(settings_.type))
      return svd_combination(fold_, settings_, rank_, scales_twice(), random_).factor(b, share, rows, cols, A, B);
    if (settings_.type == combination::cat) {
      std::size_t from = 0;
      for (const weighted_module& m : share) {
        const double a = m.weight * m.scale();
        write_rows(*m.factor(true).data, a, A, from * static_cast<std::size_t>(cols));
        write_columns(*m.factor(false).data, static_cast<std::size_t>(m.rank()), B, from);
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
      const std::vector<float> made =
          combined(std::move(tensors), weights, settings_, [&] { return unit_float(random_); });
      if (a)
        write_rows(made, 1, A, 0);
      else
        write_columns(made, static_cast<std::size_t>(share[0].rank()), B, 0);
    }
    return ok;
  }
  static void write_rows(const std::vector<float>& from, double times, std::vector<float>& to, std::size_t at) {
    for (std::size_t i = 0; i < from.size(); ++i) to[at + i] = from[i] * static_cast<float>(times);
  }
  void write_columns(const std::vector<float>& from, std::size_t width, std::vector<float>& to, std::size_t at) const {
    const auto all = static_cast<std::size_t>(rank_);
    for (std::size_t i = 0; i < from.size(); ++i) to[i / width * all + at + i % width] = from[i];
  }

  weighted_adapters from_;
  combination_settings settings_;
  weight_update_function fold_;
  mersenne_twister random_;
  bool scales_ = false;  // all adapters are IA3
  long long rank_ = 0;
  std::vector<std::string> targets_;
  json inner_{};  // IA3's feed-forward modules
  owned_tensors tensors_;
};

}  // namespace graft::io::hf::detail
