// SPDX-License-Identifier: Apache-2.0
// Computes a weighted combination of adapters (hf/combine_adapters.h) module by module: checks the inputs, determines
// the rank, and builds tensors and configuration, which the caller (model or single layer) reads like a PEFT folder.
#pragma once
#include <graft/io/hf/adapter_from_tensors.h>
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/target_parameters.h>
#include <graft/io/random/torch.h>
#include <graft/io/svd/truncated.h>
#include <graft/model/combination.h>
#include <graft/model/weight_update.h>

#include <cstdio>
#include <functional>

namespace graft::io::hf::detail {

// One adapter's change of one module, with the weight of the adapter. The experts of a mixture are as many matrices,
// and each has factors of its own; any other module is one matrix.
struct weighted_module {
  const module_adapter* is = nullptr;
  double weight = 0;
  long long experts = 1;

  bool plain_lora() const {
    return is->of.weight == formula_of<lora<>>().weight || is->of.weight == formula_of<lora_embedding<>>().weight ||
           interleaves_experts();
  }
  long long rank() const {
    const std::vector<long long>& shape = tensor(true).shape;
    return interleaves_experts() ? shape[0] / experts : shape[shape.size() - 2];
  }
  double scale() const { return is->scalars.at("scaling"); }
  // A [rank, in] or B [out, rank] of one expert.
  std::vector<float> factor(bool a, long long expert) const {
    const std::vector<float>& all = *tensor(a).data;
    const auto n = static_cast<std::size_t>(experts), e = static_cast<std::size_t>(expert), each = all.size() / n;
    std::vector<float> one(each);
    const bool strided = interleaves_experts() && !a;
    for (std::size_t i = 0; i < each; ++i) one[i] = strided ? all[i * n + e] : all[e * each + i];
    return one;
  }

 private:
  // PEFT's layout of B has every expert's columns in turn (adapter/lora.h).
  bool interleaves_experts() const { return is->of.weight == formula_of<lora_on_experts<>>().weight; }
  const adapter_tensor& tensor(bool a) const {
    return is->tensors.at(is->table ? (a ? "lora_embedding_A" : "lora_embedding_B")
                                    : (a ? "lora_A.weight" : "lora_B.weight"));
  }
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
  // What the adapters change in a module, except where it is trained in full.
  std::vector<weighted_module> at(const base_layer& b) const {
    std::vector<weighted_module> all;
    for (std::size_t i = 0; i < of.size(); ++i)
      if (const module_adapter* m = of[i]->find(b.module); m != nullptr && m->of.weight != nullptr)
        if (m->tensors.empty() || !m->tensors.begin()->first.starts_with("modules_to_save."))
          all.push_back({m, weights[i], b.kind == "experts" ? b.shape[0] : 1});
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
  // An object combines one module.
  svd_combination(const weight_update_function& fold, const combination_settings& settings, long long rank, bool twice,
                  mersenne_twister& random)
      : fold_(fold), settings_(settings), rank_(rank), scales_twice_(twice), random_(random) {}

  // Factors the combination of one module, or of one of its experts, into A [rank, cols] and B [rows, rank].
  status factor(const base_layer& b, const std::vector<weighted_module>& share, long long expert, long long rows,
                long long cols, std::vector<float>& A, std::vector<float>& B) {
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
        const std::vector<float> a = m.factor(true, expert), c = m.factor(false, expert);
        for (std::size_t k = 0; k < r; ++k) {
          for (std::size_t i = 0; i < p.rows; ++i) p(i, from + k) = times * static_cast<double>(c[i * r + k]);
          for (std::size_t j = 0; j < q.cols; ++j) q(from + k, j) = static_cast<double>(a[k * q.cols + j]);
        }
        from += r;
      }
      f = svd::truncated_factors(p, q, static_cast<std::size_t>(rank_));
    } else {
      std::vector<std::vector<float>> updates;
      std::vector<double> weights;
      for (const weighted_module& m : share) {
        result<std::vector<float>> u = update(b, m, expert, rows, cols);
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
    A = std::move(f.A), B = std::move(f.B);
    return ok;
  }

 private:
  // ΔW [rows, cols] of one expert; an embedding's is transposed, like its factors.
  result<std::vector<float>> update(const base_layer& b, const weighted_module& m, long long expert, long long rows,
                                    long long cols) {
    std::vector<float> out(static_cast<std::size_t>(rows * cols));
    const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(cols);
    if (m.plain_lora()) {
      const auto r = static_cast<std::size_t>(m.rank());
      const std::vector<float> A = m.factor(true, expert), B = m.factor(false, expert);
      for (std::size_t i = 0; i < height; ++i)
        for (std::size_t j = 0; j < width; ++j) {
          float sum = 0;
          for (std::size_t k = 0; k < r; ++k) sum += B[i * r + k] * A[k * width + j];
          out[i * width + j] = sum * static_cast<float>(m.scale());
        }
      return out;
    }
    auto folded = folded_.find(m.is);
    if (folded == folded_.end()) {
      result<std::vector<float>> all = fold_(*m.is, b.weight);
      if (!all) return all;
      folded = folded_.emplace(m.is, std::move(*all)).first;
    }
    const auto from = folded->second.begin() + expert * rows * cols;
    for (std::size_t i = 0; i < height; ++i)
      for (std::size_t j = 0; j < width; ++j)
        out[i * width + j] = from[static_cast<std::ptrdiff_t>(b.kind == "embedding" ? j * height + i : i * width + j)];
    return out;
  }

  const weight_update_function& fold_;
  const combination_settings& settings_;
  long long rank_;
  bool scales_twice_;
  mersenne_twister& random_;
  std::map<const module_adapter*, std::vector<float>>
      folded_{};  // updates of other methods, of all experts of a module
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
  // Combines what the adapters change in the modules of a model, or in one layer.
  status combine(std::vector<base_layer> modules) {
    if (status s = check(); !s) return s;
    std::erase_if(modules, [&](const base_layer& b) { return from_.at(b).empty(); });
    if (!scales_)
      if (status s = find_rank(modules); !s) return s;
    std::vector<base_layer*> targets;
    targets.reserve(modules.size());
    for (base_layer& b : modules) targets.push_back(&b);
    name_parameters_in_files(targets);
    for (const base_layer& b : modules)
      if (status s = take(b); !s) return s;
    return ok;
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
                               {{"target_parameters", parameters_},
                                {"r", json_number(static_cast<double>(rank_))},
                                {"lora_alpha", json_number(static_cast<double>(rank_))},
                                {"use_rslora", json_bool(rs)},
                                {"fan_in_fan_out", transposed_storage},
                                {"task_type", task}});
  }
  const owned_tensors& tensors() const { return tensors_; }

 private:
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
    if (!scales_ || settings_.type == combination::linear || settings_.type == combination::svd) return ok;
    return fail("IA3 combines as linear; ", combination_names[static_cast<int>(settings_.type)], " is for LoRA");
  }
  status find_rank(const std::vector<base_layer>& modules) {
    std::vector<long long> ranks(from_.of.size());
    bool plain = true;
    for (const base_layer& b : modules)
      for (const weighted_module& m : from_.at(b)) {
        plain = plain && m.plain_lora();
        for (std::size_t i = 0; i < ranks.size() && m.plain_lora(); ++i)
          if (from_.of[i]->find(b.module) == m.is) ranks[i] = std::max(ranks[i], m.rank());
      }
    if (!plain && !by_svd(settings_.type))
      return fail("only LoRA's factors can be combined as ", combination_names[static_cast<int>(settings_.type)],
                  "; the forms that end in svd take the updates of other methods, with a rank that you state");
    const long long most = *std::max_element(ranks.begin(), ranks.end());
    if (by_svd(settings_.type)) {
      rank_ = settings_.rank > 0 ? settings_.rank : most;
      return rank_ > 0 ? status(ok) : fail("state the rank of the combination: none of the adapters has one");
    }
    const auto other = [&](long long r) { return r != 0 && r != most; };
    if (settings_.type != combination::cat && std::any_of(ranks.begin(), ranks.end(), other))
      return fail("the adapters have different ranks, which ", combination_names[static_cast<int>(settings_.type)],
                  " cannot combine; use cat or a form that ends in svd");
    rank_ = settings_.type == combination::cat ? std::accumulate(ranks.begin(), ranks.end(), 0LL) : most;
    return ok;
  }
  // Adds one module to the combination.
  status take(const base_layer& b) {
    const std::vector<weighted_module> share = from_.at(b);
    if (b.kind == "experts")
      parameters_.what = json::kind::list, parameters_.items.push_back(json_string(b.module));
    else
      targets_.push_back(b.module);
    if (scales_ && b.kind == "experts") return fail(b.module.c_str(), ": PEFT has no files for IA3 on experts");
    if (scales_) return combine_factors(b, share);
    if (b.kind != "linear" && b.kind != "embedding" && b.kind != "experts")
      return fail(b.module.c_str(), " is a norm; only layers with a matrix can be combined");
    return combine_module(b, share);
  }
  // Returns true if PEFT, in the release that wrote the first adapter (before 0.21), applies the scaling twice.
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
    const long long rows = table ? b.in : b.out, cols = table ? b.out : b.in, experts = share[0].experts;
    const std::string key = "base_model.model." + b.file_path() + (table ? ".lora_embedding_" : ".lora_");
    std::vector<float>& A = tensors_.put(key + (table ? "A" : "A.weight"), {rank_ * experts, cols});
    std::vector<float>& B = tensors_.put(key + (table ? "B" : "B.weight"), {rows, rank_ * experts});
    svd_combination by_updates(fold_, settings_, rank_, scales_twice(), random_);
    const auto n = static_cast<std::size_t>(experts);
    for (std::size_t e = 0; e < n; ++e) {
      std::vector<float> a(A.size() / n), c(B.size() / n);
      const auto expert = static_cast<long long>(e);
      if (status s = by_svd(settings_.type)
                         ? by_updates.factor(b, share, expert, rows, cols, a, c)
                         : combine_factors_of(b, share, expert, static_cast<std::size_t>(cols), a, c);
          !s)
        return s;
      std::copy(a.begin(), a.end(), A.begin() + static_cast<std::ptrdiff_t>(e * a.size()));
      for (std::size_t i = 0; i < c.size(); ++i) B[i * n + e] = c[i];  // PEFT's layout (adapter/lora.h)
    }
    return ok;
  }
  // cat, linear and the types that combine factors element by element: A [rank, cols] and B [rows, rank] of one expert.
  status combine_factors_of(const base_layer& b, const std::vector<weighted_module>& share, long long expert,
                            std::size_t cols, std::vector<float>& A, std::vector<float>& B) {
    if (settings_.type == combination::cat) {
      std::size_t from = 0;
      for (const weighted_module& m : share) {
        write_rows(m.factor(true, expert), m.weight * m.scale(), A, from * cols);
        write_columns(m.factor(false, expert), static_cast<std::size_t>(m.rank()), B, from);
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
        tensors.push_back(m.factor(a, expert));
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
  json inner_{};       // IA3's feed-forward modules
  json parameters_{};  // target_parameters: the weights of experts
  owned_tensors tensors_;
};

}  // namespace graft::io::hf::detail
