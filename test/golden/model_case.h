// SPDX-License-Identifier: Apache-2.0
// One case of a model: compares with the results of transformers and PEFT. A folder NAME next to `base` is an adapter:
// logits with and without it, greedy tokens, training steps, gradients of the first step, logits and tokens after them,
// logits with the adapter merged into the weights, and with the adapter written and read.
#pragma once
#include <graft/core/bf16.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/adalora.h>
#include <graft/model/generate.h>
#include <graft/model/training_run.h>

#include <cmath>
#include <filesystem>
#include <set>

namespace golden {

using namespace graft;

struct model_check {
  std::string name;
  double error = 0, tolerance = 0;
};

inline double largest_of(std::span<const float> all) {
  double largest = 0;
  for (const float v : all) largest = std::max(largest, std::abs(static_cast<double>(v)));
  return largest;
}
// The largest difference relative to the largest number, or to `least` if that is larger.
inline double max_difference(std::span<const float> got, std::span<const float> wanted, double least = 0) {
  double largest = least, difference = got.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    difference = d >= 0 ? std::max(difference, d) : 1e30;
  }
  return largest > 0 ? difference / largest : difference;
}
inline result<std::vector<std::vector<std::int64_t>>> read_prompts(const io::safetensors& file) {
  const result<io::tensor_view> t = file.find("ids");
  if (!t) return t.failure();
  result<std::vector<std::int64_t>> ids = io::to_int64(*t);
  if (!ids || t->shape.size() != 2) return fail("'ids' must be [batch, length]");
  const auto length = static_cast<std::ptrdiff_t>(t->shape[1]);
  std::vector<std::vector<std::int64_t>> prompts;
  for (auto at = ids->begin(); at != ids->end(); at += length) prompts.emplace_back(at, at + length);
  return prompts;
}

// ‖got - wanted‖ / ‖wanted‖; infinite if a value is NaN.
inline double relative_norm(std::span<const float> got, std::span<const float> wanted) {
  double off = got.size() == wanted.size() ? 0 : INFINITY, norm = 0;
  for (std::size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(wanted[i]);
    off += d * d, norm += static_cast<double>(wanted[i]) * static_cast<double>(wanted[i]);
  }
  return !(off >= 0) ? INFINITY : norm > 0 ? std::sqrt(off / norm) : std::sqrt(off);
}

using model_checks = std::vector<model_check>;

using model_numbers = std::map<std::string, std::vector<float>>;

// Moves every element of every matrix by a fraction of itself, up or down by a hash of its index. Moves of different
// draws are independent.
struct weight_move {
  double by = 0;
  std::uint64_t draw = 0;
};

// Tolerances, relative to the largest number of a tensor. With `exact`, tokens, elements of gradients and ranks are
// compared. Without it (bf16_model.h), a token may differ if its float logit is closer to the largest than the engine's
// error, only direction and length of every gradient tensor are compared, and the distance of logits is a norm that is
// bounded by a multiple of the distance between `expected` and `nearby`. With `rounded`, the model's matrices are
// rounded to bf16 first and then moved by `move`, and `expected` are the float results with them, which replace those
// of the file.
struct model_comparison {
  double logits = 2e-4, losses = 1e-4, gradients = 1e-4;
  double angle = 0, length = 0;               // if not exact: of gradient tensors
  double multiple = 0, multiple_trained = 0;  // if not exact: of the distance between `expected` and `nearby`
  bool exact = true, rounded = false;
  weight_move move{};
  const model_numbers* expected = nullptr;
  std::span<const model_numbers> nearby{};  // float results with weights that are moved
  model_numbers* seen = nullptr;

  model_check logits_check(const std::string& name, const std::string& key, std::span<const float> got,
                           std::span<const float> wanted) const {
    if (exact) return {name, max_difference(got, wanted), logits};
    double cost = 0;
    for (const model_numbers& one : nearby)
      if (const auto at = one.find(key); at != one.end()) cost = std::max(cost, relative_norm(at->second, wanted));
    return {name, relative_norm(got, wanted), (key.ends_with("_trained") ? multiple_trained : multiple) * cost};
  }

  result<std::vector<float>> wanted(const io::safetensors& file, const std::string& key) const {
    if (expected != nullptr)
      if (const auto at = expected->find(key); at != expected->end()) return at->second;
    const result<io::tensor_view> t = file.find(key);
    if (!t) return t.failure();
    return io::to_float(*t);
  }
  void note(const std::string& key, const std::vector<float>& got) const {
    if (seen != nullptr) (*seen)[key] = got;
  }
};
inline model_weights rounded_weights(const model_weights& from) {
  model_weights out = from;
  auto memory = std::make_shared<std::deque<std::vector<bf16>>>();
  for (auto& [name, v] : out.tensors) {
    if (v.rank < 2 || v.type != dtype::f32) continue;
    auto& numbers = memory->emplace_back();
    for (long long i = 0; i < v.count(); ++i) numbers.push_back(narrow(static_cast<const float*>(v.data)[i]));
    v.data = numbers.data(), v.type = dtype::bf16;
  }
  using owner = std::shared_ptr<const void>;
  out.owner = std::make_shared<std::pair<owner, owner>>(from.owner, memory);
  return out;
}

inline model_weights moved_weights(const model_weights& from, const weight_move& move) {
  model_weights out = from;
  auto memory = std::make_shared<std::deque<std::vector<float>>>();
  std::uint64_t first = 0;
  for (auto& [name, v] : out.tensors) {
    if (v.rank < 2 || (v.type != dtype::f32 && v.type != dtype::bf16)) continue;
    auto& numbers = memory->emplace_back();
    for (long long i = 0; i < v.count(); ++i) {
      const double sign = (splitmix64(first + static_cast<std::uint64_t>(i)) & 1U) != 0 ? 1 : -1;
      const float at =
          v.type == dtype::f32 ? static_cast<const float*>(v.data)[i] : widen(static_cast<const bf16*>(v.data)[i]);
      numbers.push_back(static_cast<float>(at * (1 + sign * move.by)));
    }
    v.data = numbers.data(), v.type = dtype::f32;
    first += move.draw << 40U;
  }
  using owner = std::shared_ptr<const void>;
  out.owner = std::make_shared<std::pair<owner, owner>>(from.owner, memory);
  return out;
}

// `Reference` is an engine that computes in float.
template <class engine, class Reference = engine> class model_case {
 public:
  using checks = model_checks;

  // `keep` is a folder for the adapter that was trained and written; empty: it is deleted.
  //
  // ReLU's derivative jumps at 0. A ReLU input that is zero up to rounding has either derivative, so its gradient and
  // the training results have either of two values: in models/opt_wide an input is 7e-7 in the fourth step while others
  // are of order one, and PEFT's trained logits in double differ by 9e-3 from those that PEFT stored in float. Such a
  // case is detected by training on weights that are moved up and down by two millionths.
  static result<checks> run(const std::filesystem::path& folder, const std::filesystem::path& keep = {},
                            const model_comparison& within = {}) {
    activation_kind activation{};
    model_numbers at, moved_to;
    result<checks> all = run_moved(folder, keep, within, at, 0, activation);
    if (within.seen != nullptr) *within.seen = at;
    if (!all || passed(*all) || !within.exact || within.rounded || activation != activation_kind::relu) return all;
    double moved_gradient = INFINITY;
    std::map<std::string, double> moves;
    for (const double by : {2e-6, -2e-6}) {
      const result<checks> moved = run_moved(folder, {}, within, moved_to, by, activation);
      if (!moved) return moved;
      for (const model_check& c : *moved)
        if (c.name == "grad0") moved_gradient = std::min(moved_gradient, c.error);
      for (const auto& [name, values] : moved_to) moves[name] = std::max(moves[name], max_difference(values, at[name]));
    }
    judge_at_kinks(*all, moved_gradient, moves);
    return all;
  }
  // The gradient is correct if it equals the stored one on one of the moved weights; results after training may differ
  // from the stored ones by four times their change under the moves. Tokens whose logits change are not compared.
  static void judge_at_kinks(checks& all, double moved_gradient, std::map<std::string, double>& moves) {
    bool kink = false;
    for (model_check& c : all) {
      if (c.error <= c.tolerance) continue;
      if (c.name == "grad0") c.error = std::min(c.error, moved_gradient);
      if (moves[c.name] < 1e-4) continue;
      c.tolerance = std::max(c.tolerance, 4 * moves[c.name]), c.name += "_at_a_kink", kink = true;
    }
    if (kink) std::erase_if(all, [](const model_check& c) { return c.name == "generated_trained"; });
  }
  static bool passed(const checks& all) {
    return std::all_of(all.begin(), all.end(), [](const model_check& c) { return c.error <= c.tolerance; });
  }

  // Blocks of 4-bit weights that cross rows have two layouts (core/quant_format.h), and the files do not say which one
  // bitsandbytes used: the one that reproduces the logits of the base is taken.
  static result<causal_lm<engine>> open_base(const std::filesystem::path& folder, const model_comparison& within = {}) {
    auto model = io::hf::load_model<engine>(folder);
    if (model && within.rounded) {
      model_weights weights = rounded_weights(model->weights());
      if (within.move.by != 0) weights = moved_weights(weights, within.move);
      return causal_lm<engine>::make(model->config(), std::move(weights));
    }
    if (!model || !model->config().quantized) return model;
    auto file = io::read_safetensors(folder / "expected.safetensors");
    if (!file) return file.failure();
    auto prompts = read_prompts(*file);
    if (!prompts) return prompts.failure();
    model_case c(std::move(*model), std::move(*file), std::move(*prompts));
    if (status s = c.logits(c.model_, "logits", "logits"); !s) return s.failure();
    if (c.out_[0].error <= c.out_[0].tolerance) return std::move(c.model_);
    return io::hf::load_model<engine>(folder, {.blocks = scale_granularity::row_flat_block});
  }

 private:
  static result<checks> run_moved(const std::filesystem::path& folder, const std::filesystem::path& keep,
                                  model_comparison within, model_numbers& seen, double moved_by,
                                  activation_kind& activation) {
    within.seen = &seen;
    const bool bare = folder.filename() == "base";
    auto model = open_base(folder.parent_path() / "base", within);
    if (!model) return model.failure();
    activation = model->config().activation;
    auto file = io::read_safetensors(folder / "expected.safetensors");
    if (!file) return file.failure();
    auto prompts = read_prompts(*file);
    if (!prompts) return prompts.failure();
    model_case c(std::move(*model), std::move(*file), std::move(*prompts));
    c.base_ = folder.parent_path() / "base", c.within_ = within, c.moved_by_ = moved_by;
    if (!keep.empty()) c.keep_ = keep / folder.parent_path().filename() / folder.filename();
    if (status s = bare ? c.as_it_is("") : c.adapted(folder); !s) return s.failure();
    return c.out_;
  }
  model_case(causal_lm<engine> model, io::safetensors file, std::vector<std::vector<std::int64_t>> prompts)
      : model_(std::move(model)), file_(std::move(file)), prompts_(std::move(prompts)) {}

  status logits(causal_lm<engine>& of, const char* key, const std::string& name) {
    result<std::vector<float>> wanted = within_.wanted(file_, key);
    if (!wanted) return wanted.failure();
    std::vector<sequence_chunk> runs;
    for (const auto& p : prompts_) runs.push_back({p, 0, 0});
    std::vector<float> got(wanted->size());
    if (status s = of.logits(runs, got); !s) return s;
    within_.note(name, got);
    if (!within_.exact && name == "merged") return ok;  // belongs to another training run
    if (!within_.exact && name == "written") {          // writing and reading must not change the adapter
      out_.push_back({name, max_difference(got, trained_), 0});
      return ok;
    }
    if (name == "logits_trained") trained_ = got;
    out_.push_back(within_.logits_check(name, key, got, *wanted));
    return ok;
  }
  status generated(const char* key) {
    const result<io::tensor_view> t = file_.find(key);
    if (!t) return t.failure();
    result<std::vector<std::int64_t>> wanted = io::to_int64(*t);
    if (!wanted || t->shape.size() != 2) return fail("'", key, "' must be [batch, length]");
    if (within_.expected != nullptr)
      if (const auto at = within_.expected->find(key); at != within_.expected->end())
        *wanted = {at->second.begin(), at->second.end()};
    generation_settings settings;
    settings.max_new_tokens = static_cast<int>(t->shape[1] - prompts_[0].size()), settings.eos_tokens = no_eos_tokens;
    auto g =
        generator<engine>::make(model_, settings, static_cast<int>(prompts_.size()), static_cast<int>(t->shape[1]));
    if (!g) return g.failure();
    const auto made = g->run(prompts_);
    if (!made) return made.failure();
    std::vector<std::int64_t> all;
    for (const generated_sequence& s : *made) all.insert(all.end(), s.tokens.begin(), s.tokens.end());
    within_.note(key, {all.begin(), all.end()});
    if (!within_.exact && !trained_.empty()) return ok;
    double wrong = all.size() == wanted->size() ? 0 : 1;
    for (std::size_t i = 0; i < all.size() && i < wanted->size(); ++i) wrong += all[i] != (*wanted)[i] ? 1 : 0;
    if (!within_.exact && wrong > 0) {
      const auto found = unfounded(all, *wanted, static_cast<std::size_t>(t->shape[1]));
      if (!found) return found.failure();
      wrong = *found;
    }
    out_.push_back({key, wrong, 0});
    return ok;
  }
  // The number of sequences that deviate where the expected token is the largest float logit by more than the engine's
  // error.
  result<double> unfounded(const std::vector<std::int64_t>& got, const std::vector<std::int64_t>& wanted,
                           std::size_t length) {
    model_comparison still = within_;
    still.move = {};
    result<causal_lm<Reference>> exact = model_case<Reference>::open_base(base_, still);
    if (!exact) return exact.failure();
    if (status s = exact->set_adapters(model_.adapters()); !s) return s.failure();
    const auto vocabulary = static_cast<std::size_t>(model_.config().vocabulary);
    std::vector<float> ours(length * vocabulary), theirs(ours.size());
    double wrong = 0;
    for (std::size_t first = 0; first + length <= wanted.size() && first + length <= got.size(); first += length) {
      const sequence_chunk run[] = {{std::span(wanted).subspan(first, length), 0, 0}};
      if (status s = model_.logits(run, ours); !s) return s.failure();
      if (status s = exact->logits(run, theirs); !s) return s.failure();
      for (std::size_t i = 1; i < length; ++i) {
        if (got[first + i] == wanted[first + i]) continue;
        float off = 0, best = -INFINITY, next = -INFINITY;
        for (std::size_t v = (i - 1) * vocabulary; v < i * vocabulary; ++v) {
          off = std::max(off, std::abs(ours[v] - theirs[v]));
          next = std::max(next, std::min(best, theirs[v])), best = std::max(best, theirs[v]);
        }
        wrong += best - next > 2 * off ? 1 : 0;
        break;
      }
    }
    return wrong;
  }
  status as_it_is(const std::string& after) {
    if (status s = logits(model_, ("logits" + after).c_str(), "logits" + after); !s) return s;
    return generated(("generated" + after).c_str());
  }

  status adapted(const std::filesystem::path& folder) {
    result<io::hf::loaded_adapters> loaded = io::hf::load_adapters(folder / "adapter_init", model_);
    if (!loaded) return loaded.failure();
    if (status s = model_.set_adapters(loaded->set); !s) return s;
    if (status s = as_it_is(""); !s) return s;
    if (status s = disabled(loaded->set); !s) return s;
    if (status s = train(*loaded); !s) return s;
    if (status s = model_.set_adapters(model_.adapters()); !s) return s;
    if (status s = as_it_is("_trained"); !s) return s;
    if (status s = written(*loaded, folder); !s) return s;
    if (file_.get("logits_merged_unloaded") == nullptr) return ok;  // PEFT cannot merge every method
    if (status s = use_adapter_of_peft(folder / "adapter_trained"); !s) return s;
    const auto& quantized = model_.config().quantized;
    const bool requantizes = quantized && quantized->stored_as == quantized_storage::bitsandbytes;
    result<model_weights> weights =
        model_.merged_weights(model_.active(), requantizes ? merged_format::quantized : merged_format::f32);
    if (!weights) return weights.failure();
    const result<double> differing = differing_values(*weights, folder / "merged_weights.safetensors");
    if (!differing) return differing.failure();
    result<causal_lm<engine>> merged = causal_lm<engine>::make(model_.config(), std::move(*weights));
    if (!merged) return merged.failure();
    if (*differing == 0) return logits(*merged, "logits_merged_unloaded", "merged");
    out_.push_back({"merged_quantized", *differing, 1e-4});
    return ok;
  }
  // Requantizing a merged weight turns the last digit of a training run into a whole step, so the comparison merges the
  // adapter that PEFT trained.
  status use_adapter_of_peft(const std::filesystem::path& folder) {
    if (!model_.config().quantized || !exists(folder)) return ok;
    const result<io::hf::loaded_adapters> theirs = io::hf::load_adapters(folder, model_);
    return theirs ? model_.set_adapters(theirs->set) : theirs.failure();
  }
  // The fraction of merged 4-bit values that differ from PEFT's. A weight near the midpoint of two values may be
  // rounded either way, also by PEFT on another CPU, so logits are no measure of correctness then.
  static result<double> differing_values(const model_weights& merged, const std::filesystem::path& expected) {
    if (!exists(expected)) return 0.0;
    auto file = io::read_safetensors(expected);
    if (!file) return file.failure();
    double differing = 0, all = 0;
    for (const auto& [name, v] : merged.tensors) {
      const io::tensor_view* const theirs = file->get(name);
      if (theirs == nullptr || v.quant == nullptr || bits_of(v.type) != 4) continue;
      if (theirs->data.size() != static_cast<std::size_t>(v.count() + 1) / 2) return 1.0;
      const auto* const ours = static_cast<const unsigned char*>(v.data);
      for (std::size_t i = 0; i < theirs->data.size(); ++i) {
        const unsigned other = ours[i] ^ std::to_integer<unsigned>(theirs->data[i]);
        differing += ((other & 15) != 0 ? 1 : 0) + (other > 15 ? 1 : 0), all += 2;
      }
    }
    return all == 0 ? 0.0 : differing / all;
  }
  status written(const io::hf::loaded_adapters& loaded, const std::filesystem::path& folder) {
    const auto copy = std::filesystem::temp_directory_path() /
                      ("graft-golden-" + std::to_string(::getpid()) + "-" + folder.filename().string());
    const struct removed {
      const std::filesystem::path& path;
      ~removed() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
      }
    } at_the_end{copy};
    if (!keep_.empty()) {
      std::filesystem::create_directories(keep_.parent_path());
      if (status s = io::hf::save_adapters(keep_, loaded); !s) return s;
    }
    if (status s = io::hf::save_adapters(copy, loaded); !s) return s;
    result<io::hf::loaded_adapters> again = io::hf::load_adapters(copy, model_);
    if (!again) return again.failure();
    result<causal_lm<engine>> other = causal_lm<engine>::make(model_.config(), model_.weights());
    if (!other) return other.failure();
    if (status s = other->set_adapters(again->set); !s) return s;
    return logits(*other, "logits_trained", "written");
  }

  // PEFT stores trained biases in its base layers, where they stay while an adapter is disabled; here a disabled
  // adapter leaves the bare model. PEFT's result is therefore compared with the model with those biases alone.
  status disabled(const adapter_set& all) {
    adapter_set biases;
    for (module_adapter m : all.modules) {
      if (!m.base.contains("bias")) continue;
      m.of = {}, m.tensors.clear(), m.scalars.clear(), m.sizes.clear();
      biases.modules.push_back(std::move(m));
    }
    if (!biases.modules.empty()) {
      if (status s = model_.set_adapters(biases); !s) return s;
      if (status s = logits(model_, "logits_disabled", "logits_disabled"); !s) return s;
      return model_.set_adapters(all);
    }
    model_.enable(false);
    const status made = logits(model_, "logits_disabled", "logits_disabled");
    model_.enable(true);
    return made;
  }
  // Maps "lora_A.default.weight" of the model in memory to "lora_A.weight" of the file.
  static std::string plain(std::string name) {
    for (const char* part : {".default", ".modules_to_save"})
      if (const std::size_t at = name.find(part); at != name.npos) name.erase(at, std::string_view(part).size());
    if (name.ends_with("magnitude_vector.weight")) name.erase(name.size() - std::string_view(".weight").size());
    for (const char* shared : {"vector_bank", "theta_d"})
      if (name.find(shared) != name.npos) return shared;
    const std::size_t of_group = name.find("tinylora_v.");
    return of_group == name.npos ? name : name.substr(of_group);
  }
  // "adamss_A.2" is a slice of "adamss_A": returns the index of its first element.
  std::size_t slice_begin(const std::string& key, std::string& whole) const {
    const std::size_t dot = key.rfind('.');
    whole = plain(key.substr(0, dot));
    std::size_t first = 0;
    for (int k = std::stoi(key.substr(dot + 1)); k-- > 0;)
      if (const auto before = file_.find(key.substr(0, dot + 1) + std::to_string(k)); before)
        first += static_cast<std::size_t>(before->shape[0] * before->shape[1]);
    return first;
  }
  // AdamW divides an element by its own size: an element that is only rounding error moves its parameter by the whole
  // rate in a random direction (mistral/lora_all_linear has one of 2.3e-7 next to one of 0.29). In the first step such
  // elements are replaced by the stored ones. `least` is the rounding error relative to the largest gradient of the
  // model; the bias of the keys has only such elements, because a softmax does not depend on it.
  static void settle(std::span<float> got, std::span<const float> wanted, double least) {
    const double rounding = std::max(1e-5 * largest_of(wanted), least);
    for (std::size_t i = 0; i < got.size(); ++i)
      if (std::abs(static_cast<double>(wanted[i])) < rounding) got[i] = wanted[i];
  }
  // Compares the gradients of the first step with the stored ones, or with those of the same weights in float.
  // `settles` replaces elements that are only rounding error.
  struct gradient_distance {
    double element = 0, angle = 0,
           length = 0;      // of the worst tensor: its elements, 1 - cosine, |length / length - 1|
    bool complete = false;  // the set of gradients equals the stored one
  };
  gradient_distance distance_of_gradients(training_run<engine>& t, bool settles) {
    std::map<const void*, std::string> keys;
    for (const module_adapter& m : model_.adapters().modules)
      for (const auto* tensors : {&m.tensors, &m.base})
        for (const auto& [name, x] : *tensors) keys[x.data->data()] = plain(x.key);
    gradient_distance out;
    double largest = 0;
    std::size_t found = 0, stored = 0;
    std::set<const void*> met;
    // A millionth of the largest gradient is float's rounding error.
    for (const io::tensor_view& g : file_)
      if (const auto values = io::to_float(g); values && g.name.starts_with("grad0."))
        largest = std::max(largest, largest_of(*values));
    for (const io::tensor_view& g : file_) {
      if (!g.name.starts_with("grad0.")) continue;
      ++stored;
      std::string name = plain(g.name.substr(6));
      const bool part = name.find("adamss_") != name.npos;
      const std::size_t first = part ? slice_begin(g.name, name) : 0;
      if (part) name.erase(0, 6);
      for (const trained_parameter& p : t.on_host()) {
        if (keys[p.value.data] != name) continue;
        met.insert(p.value.data);
        ++found;
        const result<std::vector<float>> wanted = within_.wanted(file_, g.name);
        const auto count = part && wanted ? wanted->size() : static_cast<std::size_t>(p.gradient.count());
        const std::span<float> got(static_cast<float*>(p.gradient.data) + first, count);
        within_.note(g.name, {got.begin(), got.end()});
        if (!wanted || wanted->size() != got.size()) {
          out.element = out.angle = out.length = 1;
          continue;
        }
        out.element = std::max(out.element, max_difference(got, *wanted, 1e-3 * largest));
        if (largest_of(*wanted) >= 1e-3 * largest) compare_direction(got, *wanted, out);
        if (settles) settle(got, *wanted, 1e-6 * largest);
      }
    }
    out.complete = found == stored && met.size() == t.on_host().size();
    return out;
  }
  static void compare_direction(std::span<const float> got, std::span<const float> wanted, gradient_distance& out) {
    double dot = 0, ours = 0, theirs = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      dot += static_cast<double>(got[i]) * wanted[i];
      ours += static_cast<double>(got[i]) * got[i], theirs += static_cast<double>(wanted[i]) * wanted[i];
    }
    const double angle = 1 - dot / std::sqrt(ours * theirs), length = std::abs(std::sqrt(ours / theirs) - 1);
    out.angle = angle <= out.angle ? out.angle : angle, out.length = length <= out.length ? out.length : length;
  }
  status gradients(training_run<engine>& t) {
    const gradient_distance d = distance_of_gradients(t, within_.exact);
    if (!d.complete) return fail("the gradients in ", file_.file.c_str(), " are not those of what is trained here");
    if (within_.exact) {
      out_.push_back({"grad0", d.element, within_.gradients});
      return t.send();
    }
    out_.push_back({"grad0_angle", d.angle, within_.angle});
    out_.push_back({"grad0_length", d.length, within_.length});
    return ok;
  }
  status train(const io::hf::loaded_adapters& loaded) {
    const auto ids = file_.find("train_ids"), losses = file_.find("losses");
    if (!ids || !losses || ids->shape.size() != 3) return fail("there are no training steps in ", file_.file.c_str());
    const auto tokens = io::to_int64(*ids);
    const auto wanted = within_.wanted(file_, "losses");
    std::vector<float> got;
    if (!tokens || !wanted) return fail("'train_ids' or 'losses' cannot be read");
    std::optional<causal_lm<engine>> moved;
    if (moved_by_ != 0) {
      auto made = causal_lm<engine>::make(model_.config(), moved_weights(model_.weights(), {moved_by_}));
      if (!made) return made.failure();
      moved = std::move(*made);
      if (status s = moved->set_adapters(model_.adapters()); !s) return s;
    }
    auto t = training_run<engine>::make(moved ? *moved : model_, {.dropout = false});
    if (!t) return t.failure();
    auto optimizer = t->optimizer({5e-3, 0.9, 0.999, 1e-8, 0.01});
    if (!optimizer) return optimizer.failure();
    std::optional<rank_allocator> ranks;
    if (std::vector<adalora_layer> layers = adalora_layers(t->on_host()); !layers.empty()) {
      auto made = rank_allocator::make(std::move(layers), io::hf::adalora_settings_of(loaded.config));
      if (!made) return made.failure();
      ranks = std::move(*made);
    }
    double worst = 0, wrong_ranks = 0;
    for (std::size_t step = 0; step < ids->shape[0]; ++step) {
      std::vector<labeled_sequence> batch;
      for (std::size_t b = 0; b < ids->shape[1]; ++b)
        batch.push_back({std::span(*tokens).subspan((step * ids->shape[1] + b) * ids->shape[2], ids->shape[2])});
      t->clear();
      const result<double> loss = t->add(batch);
      if (!loss) return loss.failure();
      if (status s = t->fetch(); !s) return s;
      const double all = *loss + (ranks ? ranks->orthogonal_regularization() : 0);
      if (ranks)
        if (status s = t->send(); !s) return s;
      got.push_back(static_cast<float>(all));
      worst =
          std::max(worst, std::abs(all - static_cast<double>((*wanted)[step])) / static_cast<double>((*wanted)[step]));
      if (step == 0)
        if (status s = gradients(*t); !s) return s;
      if (status s = optimizer->step(); !s) return s;
      if (ranks) {
        if (status s = t->fetch(); !s) return s;
        ranks->allocate(static_cast<long long>(step)), wrong_ranks += wrong_rank(*ranks, step);
        if (status s = t->send(); !s) return s;
      }
      if (status s = t->parameters_changed(); !s) return s;
    }
    if (status s = t->fetch(); !s) return s;
    within_.note("losses", got);
    out_.push_back({"losses", worst, within_.losses});
    if (ranks && within_.exact) out_.push_back({"ranks", wrong_ranks, 0});
    return ok;
  }
  double wrong_rank(const rank_allocator& ranks, std::size_t step) const {
    const auto t = file_.find("ranks_after_step");
    const auto wanted = t ? io::to_int64(*t) : result<std::vector<std::int64_t>>(fail("no ranks"));
    if (!wanted || wanted->size() % t->shape[0] != 0) return 1;
    const std::size_t each = wanted->size() / t->shape[0];
    long long sum = 0;
    for (std::size_t k = 0; k < each; ++k) sum += (*wanted)[step * each + k];
    long long left = 0;  // between two allocations the optimizer changes zeros
    for (const adalora_layer& l : ranks.layers())
      left += std::count_if(l.E.begin(), l.E.end(), [](float e) { return e != 0; });
    return sum == left ? 0 : 1;
  }

  causal_lm<engine> model_;
  io::safetensors file_;
  std::vector<std::vector<std::int64_t>> prompts_;
  std::filesystem::path keep_, base_;
  double moved_by_ = 0;  // relative move of the weights used in training
  model_comparison within_;
  std::vector<float> trained_;
  checks out_;
};

}  // namespace golden
