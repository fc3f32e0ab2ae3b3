// SPDX-License-Identifier: Apache-2.0
// LoRA adapters as GGUF files, as llama.cpp's convert_lora_to_gguf.py writes and llama-adapter.cpp reads them:
// general.type is "adapter", and each adapted matrix NAME has the tensors NAME.lora_a [r, in] and NAME.lora_b [out, r],
//     w' = w + adapter.lora.alpha / r · lora_b lora_a        alpha 0: the factor is 1
// The factors of Llama's Q and K have the row order of the file's model; of the token embedding, lora_a is
// [vocabulary, r]. On experts lora_a is [experts, r, in] and lora_b [experts, out, r], one pair for the gates and one
// for the ups, whose lora_a are equal where the adapter is one of both (llama.cpp's build_lora_mm_id). Reading gives
// what loading a PEFT folder of the same adapter gives, so either is saved as the other.
#pragma once
#include <graft/io/gguf/model.h>
#include <graft/io/hf/load_adapters.h>

namespace graft::io {

GRAFT_LIBRARY result<hf::loaded_adapters> gguf_adapters_from(const gguf& file, const model_config& c,
                                                             const model_weights& w);
// A module that is adapted by anything but a plain LoRA is an error that names it.
GRAFT_LIBRARY status save_gguf_adapters(const std::string& file, const hf::loaded_adapters& a, const model_config& c);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/gguf/families.h>
#include <graft/io/gguf/save_model.h>
#include <graft/io/hf/adapter_from_tensors.h>
#include <graft/io/hf/target_parameters.h>
#include <graft/io/json/writer.h>

#include <cmath>
#include <set>

namespace graft::io {

namespace detail {

inline result<const gguf_family*> gguf_family_with_adapters(const model_config& c) {
  const gguf_family* const f = gguf_family_of(*c.family);
  if (f == nullptr) return fail("GGUF files have no ", c.family->name, " models, so none has an adapter for this one");
  return f;
}

// Both matrices of one module in PEFT's layout.
struct lora_pair {
  std::string module;
  bool table = false;  // the token embedding
  std::vector<float> a, b;
  long long rank = 0, in = 0, out = 0;  // factors are transposed for the embedding, which maps a token to a vector
  long long experts = 0;                // a is [experts · r, in], b [out, r · experts] (adapter/lora.h)
  double alpha = 0;
};
// Both factors on the gates, the ups or the ways down of all experts: a [experts, r, in], b [experts, out, r].
struct expert_factors {
  std::vector<float> a, b;
  long long rank = 0, out = 0;
};
// Of a matrix with the gates and the ups of an expert: the row of gate or up `i`.
inline long long row_of_expert(bool ups, long long i, long long inner, bool alternate) {
  return alternate ? 2 * i + (ups ? 1 : 0) : i + (ups ? inner : 0);
}

class gguf_adapter_reader {
 public:
  gguf_adapter_reader(const gguf& from, const model_config& c, const model_weights& w)
      : from_(from), config_(c), weights_(w), modules_(hf::modules_of(c, w)) {}

  result<hf::loaded_adapters> read() {
    if (status s = check_kind(); !s) return s.failure();
    const result<const gguf_family*> family = gguf_family_with_adapters(config_);
    if (!family) return fail_in(from_.file, family.message());
    family_ = *family;
    if (const gguf_value* architecture = from_.find_value("general.architecture");
        architecture == nullptr || architecture->word != family_->name)
      return fail_in(from_.file, "'general.architecture' is ",
                     architecture == nullptr ? text("missing") : in_quotes(architecture->word), ", expected ",
                     family_->name, ", as which the model is stored");
    for (const auto& [name, v] : from_.tensors) {
      if (name.ends_with(".lora_b") && from_.tensors.contains(name.substr(0, name.size() - 1) + "a")) continue;
      if (!name.ends_with(".lora_a"))
        return fail_in(from_.file, "tensor ", in_quotes(name), " is neither the lora_a nor the lora_b of a pair");
      if (status s = read_pair(name.substr(0, name.size() - std::string_view(".lora_a").size())); !s)
        return fail_in(from_.file, s.message());
    }
    for (const auto& [module, parts] : experts_) add_experts(module, parts);
    if (pairs_.empty()) return fail_in(from_.file, "the adapter has no tensors");
    const result<adapter_config> config = configuration();
    if (!config) return fail_in(from_.file, config.message());
    hf::owned_tensors tensors;
    for (const lora_pair& p : pairs_) {
      const auto key = [&](const char* factor) {
        return std::string("base_model.model.")
            .append(path_in_files(p))
            .append(p.table ? ".lora_embedding_" : ".lora_")
            .append(factor)
            .append(p.table ? "" : ".weight");
      };
      const long long together = p.rank * std::max(1LL, p.experts);
      std::copy(p.a.begin(), p.a.end(), tensors.put(key("A"), {together, p.in}).begin());
      std::copy(p.b.begin(), p.b.end(), tensors.put(key("B"), {p.out, together}).begin());
    }
    return hf::load_from_tensors(*config, tensors, config_, weights_, from_.file.c_str());
  }

 private:
  status check_kind() {
    const auto word = [&](const char* key) {
      const gguf_value* v = from_.find_value(key);
      return v != nullptr && v->what == gguf_value::kind::word ? v->word : std::string_view();
    };
    if (word("general.type") != "adapter")
      return fail_in(from_.file, "'general.type' is ", in_quotes(word("general.type")), ", expected an adapter");
    if (word("adapter.type") != "lora")
      return fail_in(from_.file, "'adapter.type' is ", in_quotes(word("adapter.type")), ", expected lora");
    for (const auto& [key, v] : from_.metadata)
      if (key.starts_with("adapter.") && key != "adapter.type" && key != "adapter.lora.alpha")
        return fail_in(from_.file, "the fact ", in_quotes(key), " is not a setting that is supported");
    if (const gguf_value* v = from_.find_value("adapter.lora.alpha")) {
      alpha_ = v->real;
      if (v->what != gguf_value::kind::real || !(alpha_ >= 0 && alpha_ <= 1e30))
        return fail_in(from_.file, "'adapter.lora.alpha' is no number from 0 on");
    }
    return ok;
  }
  status read_pair(const std::string& of) {
    lora_pair p;
    const std::string weight = name_in_folder(*family_, of);
    if (weight.find(".mlp.experts.") != weight.npos) return read_experts(of, weight);
    const auto base = std::find_if(modules_.begin(), modules_.end(),
                                   [&](const base_layer& m) { return m.module + ".weight" == weight; });
    if (base == modules_.end() || base->shape.size() != 2)
      return fail("tensor ", in_quotes(of + ".lora_a"), " belongs to no matrix of this ", family_->name, " model");
    const auto b = from_.tensors.find(of + ".lora_b");
    if (b == from_.tensors.end()) return fail("tensor ", in_quotes(of + ".lora_b"), " is missing");
    const view &stored_a = from_.tensors.find(of + ".lora_a")->second, &stored_b = b->second;
    if (stored_a.rank != 2 || stored_b.rank != 2) return fail("tensor ", in_quotes(of + ".lora_a"), " is no matrix");
    p.module = base->module, p.table = base->kind == "embedding", p.in = base->in, p.out = base->out;
    if (p.table) std::swap(p.in, p.out);  // the table has a row per token
    p.rank = stored_b.size[1];
    const bool fits = stored_b.size[0] == p.out && (p.table ? stored_a.size[0] == p.in && stored_a.size[1] == p.rank
                                                            : stored_a.size[0] == p.rank && stored_a.size[1] == p.in);
    if (!fits)
      return fail("tensors ", in_quotes(of + ".lora_a"), " and lora_b are ", stored_a.size[0], " x ", stored_a.size[1],
                  " and ", stored_b.size[0], " x ", stored_b.size[1], ", which is no LoRA of ", p.out, " x ", p.in);
    const view read_a = p.table ? stored_a.transposed() : stored_a;
    if (p.table && stored_a.quant != nullptr)
      return fail("tensor ", in_quotes(of + ".lora_a"), " is quantized, expected f32, f16 or bf16");
    p.a.resize(static_cast<std::size_t>(p.rank * p.in)), p.b.resize(static_cast<std::size_t>(p.out * p.rank));
    cpu::convert(read_a, p.a.data());
    const int heads = family_->interleaves_heads ? heads_of(config_, weight) : 0;
    const owned_bytes ordered = heads > 0 ? deinterleave_halves(stored_b, heads) : owned_bytes{};
    view read_b = stored_b;
    if (heads > 0) read_b.data = ordered.all.data();
    cpu::convert(read_b, p.b.data());
    p.alpha = alpha_ != 0 ? alpha_ : static_cast<double>(p.rank);
    pairs_.push_back(std::move(p));
    return ok;
  }
  // `weight` is that of gate_proj, up_proj or down_proj of experts.
  status read_experts(const std::string& of, const std::string& weight) {
    const std::string part = weight.substr(0, weight.rfind('.')),
                      module =
                          part.ends_with("down_proj") ? part : part.substr(0, part.rfind('.') + 1) + "gate_up_proj";
    const auto base = std::find_if(modules_.begin(), modules_.end(),
                                   [&](const base_layer& m) { return m.kind == "experts" && m.module == module; });
    if (base == modules_.end())
      return fail("tensor ", in_quotes(of + ".lora_a"), " belongs to no experts of this ", family_->name, " model");
    const auto b = from_.tensors.find(of + ".lora_b");
    if (b == from_.tensors.end()) return fail("tensor ", in_quotes(of + ".lora_b"), " is missing");
    const view &stored_a = from_.tensors.find(of + ".lora_a")->second, &stored_b = b->second;
    const long long experts = base->shape[0], out = module == part ? base->out : base->out / 2;
    const bool fits = stored_a.rank == 3 && stored_b.rank == 3 && stored_a.size[0] == experts &&
                      stored_b.size[0] == experts && stored_a.size[1] == stored_b.size[2] &&
                      stored_a.size[2] == base->in && stored_b.size[1] == out;
    if (!fits)
      return fail("tensors ", in_quotes(of + ".lora_a"), " and lora_b are no LoRA of ", experts, " experts of ", out,
                  " x ", base->in, ", expected three axes: experts, r, in and experts, out, r");
    expert_factors& f = experts_[module][part];
    f.rank = stored_a.size[1], f.out = out;
    f.a.resize(static_cast<std::size_t>(stored_a.count())), f.b.resize(static_cast<std::size_t>(stored_b.count()));
    cpu::convert(stored_a, f.a.data()), cpu::convert(stored_b, f.b.data());
    return ok;
  }
  // A LoRA on gates and one on ups are one on the matrix of both: of their rank where they share A, and else of both
  // ranks, with zeros where an A is of the other one.
  void add_experts(const std::string& module, const std::map<std::string, expert_factors>& parts) {
    const base_layer& base =
        *std::find_if(modules_.begin(), modules_.end(), [&](const base_layer& m) { return m.module == module; });
    const expert_factors &first = parts.begin()->second, &last = parts.rbegin()->second;
    const bool shared = first.rank == last.rank && first.a == last.a;
    lora_pair p;
    p.module = module, p.in = base.in, p.out = base.out, p.experts = base.shape[0];
    p.rank = shared ? first.rank : first.rank + last.rank;
    const double usual = alpha_ != 0 ? alpha_ : static_cast<double>(first.rank);
    p.alpha = usual * static_cast<double>(p.rank) / static_cast<double>(first.rank);
    const auto E = static_cast<std::size_t>(p.experts), r = static_cast<std::size_t>(p.rank),
               in = static_cast<std::size_t>(p.in);
    p.a.resize(E * r * in), p.b.resize(static_cast<std::size_t>(p.out) * r * E);
    std::size_t begin = 0;  // of the ranks of a part
    for (const auto& [part, f] : parts) {
      const auto own = static_cast<std::size_t>(f.rank), rows = static_cast<std::size_t>(f.out);
      const bool one_matrix = part == module, ups = part.ends_with("up_proj");
      // With an alpha, the factor of a part is alpha over its own rank.
      const double scale = alpha_ != 0 ? static_cast<double>(first.rank) / static_cast<double>(f.rank) : 1;
      for (std::size_t e = 0; e < E; ++e) {
        std::copy_n(f.a.begin() + static_cast<std::ptrdiff_t>(e * own * in), own * in,
                    p.a.begin() + static_cast<std::ptrdiff_t>((e * r + begin) * in));
        for (std::size_t i = 0; i < rows; ++i) {
          const auto row = static_cast<std::size_t>(
              one_matrix ? static_cast<long long>(i)
                         : row_of_expert(ups, static_cast<long long>(i), f.out, family_->experts_alternate));
          for (std::size_t k = 0; k < own; ++k)
            p.b[(row * r + begin + k) * E + e] =
                static_cast<float>(static_cast<double>(f.b[(e * rows + i) * own + k]) * scale);
        }
      }
      if (!shared) begin += own;
    }
    pairs_.push_back(std::move(p));
  }
  // PEFT wraps an experts module once for each of its adapted parameters.
  std::string path_in_files(const lora_pair& p) const {
    if (p.experts == 0) return p.module;
    std::vector<base_layer> adapted;
    for (const base_layer& m : modules_)
      for (const lora_pair& other : pairs_)
        if (other.module == m.module && m.kind == "experts") adapted.push_back(m);
    std::vector<base_layer*> all(adapted.size());
    for (std::size_t i = 0; i < adapted.size(); ++i) all[i] = &adapted[i];
    hf::name_parameters_in_files(all);
    return (*std::find_if(all.begin(), all.end(), [&](const base_layer* m) { return m->module == p.module; }))
        ->file_path();
  }
  // Short names of modules (or of parameters of experts) where all with such a name are adapted, else full paths.
  std::vector<std::string> targets(bool experts) const {
    const auto last = [&](const std::string& path) {
      const std::size_t dot = path.rfind('.');
      return path.substr((experts && dot != path.npos ? path.rfind('.', dot - 1) : dot) + 1);
    };
    std::set<std::string> adapted, names;
    for (const lora_pair& p : pairs_)
      if ((p.experts > 0) == experts) adapted.insert(p.module), names.insert(last(p.module));
    const bool all = std::all_of(modules_.begin(), modules_.end(), [&](const base_layer& m) {
      return (m.kind == "experts") != experts || !names.contains(last(m.module)) || adapted.contains(m.module);
    });
    const std::set<std::string>& from = all ? names : adapted;
    return {from.begin(), from.end()};
  }
  result<adapter_config> configuration() const {
    const long long rank = pairs_.front().rank;
    const double alpha = pairs_.front().alpha;
    json ranks, alphas, parameters;
    ranks.what = alphas.what = json::kind::object, parameters.what = json::kind::list;
    const auto add = [](json& to, const std::string& module, double n) {
      to.keys.push_back(module), to.items.push_back(json_number(n));
    };
    for (const lora_pair& p : pairs_) {
      if (p.rank != rank) add(ranks, p.module, static_cast<double>(p.rank));
      if (p.alpha != alpha) add(alphas, p.module, p.alpha);
    }
    for (const std::string& name : targets(true)) parameters.items.push_back(json_string(name));
    std::vector<std::pair<std::string, json>> keys{{"r", json_number(static_cast<double>(rank))},
                                                   {"lora_alpha", json_number(alpha)},
                                                   {"task_type", json_string("CAUSAL_LM")}};
    if (!ranks.keys.empty()) keys.emplace_back("rank_pattern", ranks);
    if (!alphas.keys.empty()) keys.emplace_back("alpha_pattern", alphas);
    if (!parameters.items.empty()) keys.emplace_back("target_parameters", parameters);
    return make_adapter_config("LORA", targets(false), keys);
  }

  const gguf& from_;
  const model_config& config_;
  const model_weights& weights_;
  const std::vector<base_layer> modules_;
  const gguf_family* family_ = nullptr;
  double alpha_ = 0;
  std::vector<lora_pair> pairs_;
  std::map<std::string, std::map<std::string, expert_factors>> experts_;  // by the matrix, and by what is adapted of it
};

// The factors of a plain LoRA; an error says what else the module has.
inline result<std::pair<const adapter_tensor*, const adapter_tensor*>> plain_factors(const module_adapter& m) {
  const char* const names[2][2] = {{"lora_A.weight", "lora_B.weight"}, {"lora_embedding_A", "lora_embedding_B"}};
  for (const auto& [a, b] : names) {
    const auto first = m.tensors.find(a), second = m.tensors.find(b);
    if (first != m.tensors.end() && second != m.tensors.end() && m.tensors.size() == 2 && m.base.empty() &&
        m.scalars.contains("scaling"))
      return std::pair{&first->second, &second->second};
  }
  return fail("module ", in_quotes(m.module),
              " is not adapted by a plain LoRA, and GGUF adapters hold nothing else; merge the adapter into its model");
}

// The factors of a LoRA on experts, for the gates, the ups or all rows.
inline expert_factors factors_on_experts(const module_adapter& m, const adapter_tensor& a, const adapter_tensor& b,
                                         long long experts, bool alternate, const char* part) {
  // PEFT's layout of b has every expert's columns in turn (adapter/lora.h).
  const bool in_turns = m.of.weight == formula_of<lora_on_experts<>>().weight;
  const long long rank = in_turns ? a.shape[0] / experts : a.shape[1], in = a.shape.back(),
                  all_rows = in_turns ? b.shape[0] : b.shape[1];
  const bool all = part == nullptr, ups = !all && part[0] == 'u';
  expert_factors f;
  f.rank = rank, f.out = all ? all_rows : all_rows / 2;
  f.a.assign(a.data->begin(), a.data->begin() + static_cast<std::ptrdiff_t>(experts * rank * in));
  for (long long e = 0; e < experts; ++e)
    for (long long i = 0; i < f.out; ++i)
      for (long long k = 0; k < rank; ++k) {
        const long long row = all ? i : row_of_expert(ups, i, f.out, alternate),
                        at = in_turns ? (row * rank + k) * experts + e : (e * all_rows + row) * rank + k;
        f.b.push_back((*b.data)[static_cast<std::size_t>(at)]);
      }
  return f;
}

}  // namespace detail

GRAFT_LIBRARY result<hf::loaded_adapters> gguf_adapters_from(const gguf& file, const model_config& c,
                                                             const model_weights& w) {
  return guarded(file.file, [&] { return detail::gguf_adapter_reader(file, c, w).read(); });
}

GRAFT_LIBRARY status save_gguf_adapters(const std::string& file, const hf::loaded_adapters& a, const model_config& c) {
  return guarded(file, [&]() -> status {
    const result<const detail::gguf_family*> family = detail::gguf_family_with_adapters(c);
    if (!family) return fail_in(file, family.message());
    gguf_writer to;
    to.put("general.architecture", (*family)->name);
    to.put("general.type", "adapter"), to.put("adapter.type", "lora");
    // A file has one alpha. A module with another product of scaling and rank has the quotient in its B.
    const std::vector<module_adapter>& modules = a.set.modules;
    if (modules.empty()) return fail_in(file, "the adapter changes no module");
    if (a.config.type != nullptr && std::string_view(a.config.type_name()) != "LORA")
      return fail_in(file, "the adapter is of type ", a.config.type_name(),
                     ", and GGUF adapters hold LoRA alone; merge it into its model");
    double alpha = 0;
    std::vector<owned_bytes> copies;
    for (const module_adapter& m : modules) {
      const auto factors = detail::plain_factors(m);
      if (!factors) return fail_in(file, factors.message());
      const auto [first, second] = *factors;
      const std::size_t experts =
          m.module.find(".mlp.experts.") != m.module.npos ? static_cast<std::size_t>(c.experts) : 0;
      const bool both = experts > 0 && m.module.ends_with("gate_up_proj");
      const std::string path = both ? m.module.substr(0, m.module.rfind('.') + 1) : m.module,
                        name = detail::name_in_gguf(**family, path + (both ? "gate_proj.weight" : ".weight"));
      if (name.empty() || !m.tied_to.empty())
        return fail_in(file, "module ", in_quotes(m.module), " has no name in GGUF files");
      const long long rank = experts == 0               ? first->shape[0]
                             : first->shape.size() == 3 ? first->shape[1]
                                                        : first->shape[0] / c.experts;
      const double own = m.scalars.find("scaling")->second * static_cast<double>(rank);
      if (alpha == 0) alpha = own;
      if (!(alpha > 0)) return fail_in(file, "module ", in_quotes(m.module), " is scaled by 0, which GGUF reads as 1");
      if (experts > 0) {
        for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
          if (!both && part[0] == 'u') continue;
          detail::expert_factors f = detail::factors_on_experts(m, *first, *second, c.experts,
                                                                (*family)->experts_alternate, both ? part : nullptr);
          if (own != alpha)
            for (float& v : f.b) v = static_cast<float>(static_cast<double>(v) * (own / alpha));
          const std::string of = both ? detail::name_in_gguf(**family, path + part) : name;
          const long long in = first->shape.back(), sizes[2][3] = {{c.experts, f.rank, in}, {c.experts, f.out, f.rank}};
          for (int k = 0; k < 2; ++k) {
            const auto bytes = std::as_bytes(std::span(k == 0 ? f.a : f.b));
            const view v{copies.emplace_back(make_owned_bytes({bytes.begin(), bytes.end()})).all.data(),
                         dtype::f32,
                         {sizes[k][0], sizes[k][1], sizes[k][2], 1},
                         3};
            if (status s = to.add(of + (k == 0 ? ".lora_a" : ".lora_b"), v); !s) return fail_in(file, s.message());
          }
        }
        continue;
      }
      view va = first->value(), vb = second->value();
      std::vector<float> scaled(second->data->begin(), second->data->end());
      if (own != alpha)
        for (float& v : scaled) v = static_cast<float>(v * (own / alpha));
      vb.data = scaled.data();
      const int heads = (*family)->interleaves_heads ? detail::heads_of(c, m.module + ".weight") : 0;
      const auto bytes = std::as_bytes(std::span(scaled));
      vb.data = copies
                    .emplace_back(heads > 0 ? detail::interleave_halves(vb, heads)
                                            : make_owned_bytes({bytes.begin(), bytes.end()}))
                    .all.data();
      if (m.table) {
        std::vector<float> transposed_values(first->data->size());
        cpu::convert(va.transposed(), transposed_values.data());
        const auto all = std::as_bytes(std::span(transposed_values));
        va = {copies.emplace_back(make_owned_bytes({all.begin(), all.end()})).all.data(),
              dtype::f32,
              {va.size[1], va.size[0], 1, 1},
              2};
      }
      for (const auto& [end, v] : {std::pair{".lora_a", va}, {".lora_b", vb}})
        if (status s = to.add(name + end, v); !s) return fail_in(file, s.message());
    }
    to.put("adapter.lora.alpha", static_cast<float>(alpha));
    return to.save(file);
  });
}

}  // namespace graft::io
#endif
