// SPDX-License-Identifier: Apache-2.0
// A new adapter from several with weights, as PEFT's add_weighted_adapter makes it. With a_i = w_i s_i:
//     cat                    A = [a_1 A_1; a_2 A_2; …], B = [B_1, B_2, …]: exact, of the rank of all together
//     linear, ties, …        on the A with the weights sgn(a_i) √|a_i|, on the B with √|a_i|: equal ranks; not Σ w_i ΔW_i
//     svd, ties_svd, …       on the updates ΔW_i with the weights w_i, and the nearest matrix of the rank asked for
// IA3 combines linearly: Σ w_i l_i. The forms that end in svd take adapters of any method that changes the weight alone:
// their updates are folded, which PEFT does not do. The result is a LoRA, or an IA3, of the modules of all of them.
#pragma once
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/made_adapters.h>
#include <graft/io/svd/factors.h>
#include <graft/io/torch_random.h>
#include <graft/model/combination.h>
#include <graft/model/update.h>

#include <cstdio>

namespace graft::io::hf {

namespace detail {

// One adapter's share of a module.
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

template <class Engine> class combiner {
 public:
  combiner(causal_lm<Engine>& model, std::vector<shared_adapter> of, std::vector<double> weights,
           const combination_settings& how)
      : model_(model),
        of_(std::move(of)),
        weights_(std::move(weights)),
        how_(how),
        random_(static_cast<std::uint32_t>(how.seed & 0xffffffff)) {
    if (of_.size() == 1 && !by_svd(how_.type)) how_.type = combination::linear;
  }
  result<loaded_adapters> combine() {
    if (of_.empty() || weights_.size() != of_.size())
      return fail("there must be one weight for each adapter, and at least one adapter");
    for (const double w : weights_)
      if (!std::isfinite(w)) return fail("a weight is not a finite number");
    if (!(how_.density >= 0)) return fail("the density is below 0, expected 0 to 1");
    if (drops(how_.type) && how_.density == 0) return fail("with a density of 0 nothing is left");
    for (const shared_adapter& a : of_)
      if (origin_of(a) == nullptr) return fail("an adapter was made without a configuration");
    if (all_of_type("IA3")) return combine_ia3();
    if (status s = find_rank(); !s) return s.failure();
    return combine_lora();
  }

 private:
  bool all_of_type(const char* type) const {
    return std::all_of(of_.begin(), of_.end(),
                       [&](const shared_adapter& a) { return same_text(origin_of(a)->config.type_name(), type); });
  }
  const adapter_config& first() const { return origin_of(of_[0])->config; }
  std::vector<weighted_module> at(const std::string& module) const {
    std::vector<weighted_module> all;
    for (std::size_t i = 0; i < of_.size(); ++i)
      if (const module_adapter* m = of_[i]->find(module); m != nullptr && m->of.weight != nullptr)
        all.push_back({m, weights_[i]});
    return all;
  }
  status find_rank() {
    long long most = 0, sum = 0;
    bool plain = true, equal = true;
    for (const shared_adapter& a : of_) {
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
    const std::string& v = first().peft_version;
    return std::sscanf(v.c_str(), "%d.%d", &major, &minor) == 2 && major == 0 && minor < 21;
  }

  result<loaded_adapters> combine_lora() {
    std::vector<std::string> targets;
    for (const base_layer& b : modules_of(model_.config(), model_.weights())) {
      std::vector<weighted_module> share = at(b.module);
      std::erase_if(share, [](const weighted_module& m) { return is_whole(*m.is); });
      if (share.empty()) continue;
      if (b.kind != "linear" && b.kind != "embedding")
        return fail(b.module.c_str(), " is a norm; only layers with a matrix can be combined");
      targets.push_back(b.module);
      if (status s = combine_module(b, share); !s) return s.failure();
    }
    const bool rs = how_.scales == scaling::peft && first().on("use_rslora");
    const result<adapter_config> config =
        make_adapter_config("LORA", targets,
                            {{"r", json_number(static_cast<double>(rank_))},
                             {"lora_alpha", json_number(static_cast<double>(rank_))},
                             {"use_rslora", json_flag(rs)},
                             {"fan_in_fan_out", json_flag(first().fan_in_fan_out)},
                             {"task_type", first().task_type.empty() ? json{} : json_word(first().task_type)}});
    if (!config) return config.failure();
    return load_made(*config, made_, model_, "a combination");
  }
  status combine_module(const base_layer& b, const std::vector<weighted_module>& share) {
    const bool table = b.kind == "embedding";
    const long long rows = table ? b.in : b.out, cols = table ? b.out : b.in;
    const std::string key = "base_model.model." + b.module + (table ? ".lora_embedding_" : ".lora_");
    std::vector<float>& A = made_.put(key + (table ? "A" : "A.weight"), {rank_, cols});
    std::vector<float>& B = made_.put(key + (table ? "B" : "B.weight"), {rows, rank_});
    if (by_svd(how_.type)) return factor(b, share, rows, cols, A, B);
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

  status factor(const base_layer& b, const std::vector<weighted_module>& share, long long rows, long long cols,
                std::vector<float>& A, std::vector<float>& B) {
    long long together = 0;
    bool plain = true;
    for (const weighted_module& m : share) plain = plain && m.plain_lora();
    for (const weighted_module& m : share) together += plain ? m.rank() : 0;
    const bool twice = counts_twice();
    svd::rank_factors f;
    if (how_.type == combination::svd && plain && together <= std::min(rows, cols)) {
      svd::matrix p(static_cast<std::size_t>(rows), static_cast<std::size_t>(together)),
          q(static_cast<std::size_t>(together), static_cast<std::size_t>(cols));
      std::size_t from = 0;
      for (const weighted_module& m : share) {
        const double times = m.weight * m.scale() * (twice ? m.scale() : 1);
        const auto r = static_cast<std::size_t>(m.rank());
        for (std::size_t k = 0; k < r; ++k) {
          for (std::size_t i = 0; i < p.rows; ++i)
            p(i, from + k) = times * static_cast<double>((*m.factor(false).data)[i * r + k]);
          for (std::size_t j = 0; j < q.cols; ++j)
            q(from + k, j) = static_cast<double>((*m.factor(true).data)[k * q.cols + j]);
        }
        from += r;
      }
      f = svd::nearest_factors(p, q, static_cast<std::size_t>(rank_));
    } else {
      std::vector<std::vector<float>> updates;
      std::vector<double> weights;
      for (const weighted_module& m : share) {
        result<std::vector<float>> u = update(b, m, rows, cols);
        if (!u) return u.failure();
        updates.push_back(std::move(*u));
        weights.push_back(m.weight * (twice && m.plain_lora() ? m.scale() : 1));
      }
      const std::vector<float> sum = combined(std::move(updates), weights, how_, [&] { return unit_float(random_); });
      svd::matrix dense(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
      for (std::size_t i = 0; i < dense.rows; ++i)
        for (std::size_t j = 0; j < dense.cols; ++j) dense(i, j) = static_cast<double>(sum[i * dense.cols + j]);
      f = svd::nearest_factors(dense, static_cast<std::size_t>(rank_));
    }
    std::copy(f.A.begin(), f.A.end(), A.begin()), std::copy(f.B.begin(), f.B.end(), B.begin());
    return ok;
  }
  // ΔW [rows, cols]; of an embedding turned, as its factors are.
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
    const auto mine = model_.alone();
    result<std::vector<float>> folded = update_of<Engine>(model_.programs().queue, *m.is, b.weight);
    if (!folded || b.kind != "embedding") return folded;
    for (std::size_t i = 0; i < height; ++i)
      for (std::size_t j = 0; j < width; ++j) out[i * width + j] = (*folded)[j * height + i];
    return out;
  }

  result<loaded_adapters> combine_ia3() {
    if (how_.type != combination::linear && how_.type != combination::svd)
      return fail("IA3 combines as linear; ", combination_names[static_cast<int>(how_.type)], " is for LoRA");
    std::vector<std::string> targets;
    json inner;
    inner.what = json::kind::list;
    for (const base_layer& b : modules_of(model_.config(), model_.weights())) {
      const std::vector<weighted_module> share = at(b.module);
      if (share.empty()) continue;
      const formula ff = formula_of<ia3_feedforward>();
      for (const weighted_module& m : share)
        if ((m.is->of.weight == ff.weight) != (share[0].is->of.weight == ff.weight))
          return fail(b.module.c_str(), " is feed-forward for one adapter and not for the other");
      targets.push_back(b.module);
      if (share[0].is->of.weight == ff.weight) inner.items.push_back(json_word(b.module));
      const adapter_tensor& like = share[0].is->tensors.at("ia3_l");
      std::vector<float>& to = made_.put("base_model.model." + b.module + ".ia3_l", like.shape);
      for (const weighted_module& m : share) {
        const std::vector<float>& from = *m.is->tensors.at("ia3_l").data;
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i] * static_cast<float>(m.weight);
      }
    }
    const result<adapter_config> config =
        make_adapter_config("IA3", targets,
                            {{"feedforward_modules", inner},
                             {"fan_in_fan_out", json_flag(first().fan_in_fan_out)},
                             {"task_type", first().task_type.empty() ? json{} : json_word(first().task_type)}});
    if (!config) return config.failure();
    return load_made(*config, made_, model_, "a combination");
  }

  causal_lm<Engine>& model_;
  std::vector<shared_adapter> of_;
  std::vector<double> weights_;
  combination_settings how_;
  mersenne_twister random_;
  long long rank_ = 0;
  made_tensors made_;
};
}  // namespace detail

// Adds it to the model under the new name; it is not active yet.
template <class Engine>
status combine(causal_lm<Engine>& model, const std::string& name, const std::vector<std::string>& names,
               const std::vector<double>& weights, const combination_settings& how = {}) {
  return guarded("a combination", [&]() -> status {
    std::vector<shared_adapter> of;
    for (const std::string& n : names) {
      of.push_back(model.find(n));
      if (of.back() == nullptr) return fail("there is no adapter '", n.c_str(), "' to combine");
    }
    result<loaded_adapters> made = detail::combiner<Engine>(model, std::move(of), weights, how).combine();
    if (!made) return made.failure();
    return model.add(name, std::move(*made).with_origin());
  });
}

}  // namespace graft::io::hf
