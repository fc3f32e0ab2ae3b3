// SPDX-License-Identifier: Apache-2.0
// One folder of a model: what transformers and PEFT computed with it, computed again. A folder NAME beside `base` is an
// adapter: logits with it and without, greedy tokens, training steps, gradients of the first, logits and tokens after
// them, logits with the adapter merged into the weights, and with the adapter that was written and read again.
#pragma once
#include <graft/core/bf16.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/adalora_layers.h>
#include <graft/model/generate.h>
#include <graft/model/training.h>

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
// The largest difference over the largest number, or over `least` where that is more.
inline double apart(std::span<const float> got, std::span<const float> wanted, double least = 0) {
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

using model_checks = std::vector<model_check>;

using model_numbers = std::map<std::string, std::vector<float>>;

// How far apart numbers may be, of the largest one of a tensor. `exact`: tokens, gradients and ranks are compared too; else
// a token may differ where the logits in float are closer to each other than what the engine is off, and what follows
// from training is compared within the run. `rounded`: the model's matrices are rounded to bf16 first; what they give in
// float is then `expected` instead of the file.
struct model_comparison {
  double logits = 2e-4, losses = 1e-4, gradients = 1e-4;
  bool exact = true, rounded = false;
  const model_numbers* expected = nullptr;
  model_numbers* seen = nullptr;

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

// `Reference`: an engine that computes in float.
template <class engine, class Reference = engine> class model_case {
 public:
  using checks = model_checks;

  // `keep`: where the adapter that was trained and written stays; empty: nowhere.
  static result<checks> run(const std::filesystem::path& folder, const std::filesystem::path& keep = {},
                            const model_comparison& within = {}) {
    const bool bare = folder.filename() == "base";
    auto model = open_base(folder.parent_path() / "base", within.rounded);
    if (!model) return model.failure();
    auto file = io::read_safetensors(folder / "expected.safetensors");
    if (!file) return file.failure();
    auto prompts = read_prompts(*file);
    if (!prompts) return prompts.failure();
    model_case c(std::move(*model), std::move(*file), std::move(*prompts));
    c.base_ = folder.parent_path() / "base", c.within_ = within;
    if (!keep.empty()) c.keep_ = keep / folder.parent_path().filename() / folder.filename();
    if (status s = bare ? c.as_it_is("") : c.adapted(folder); !s) return s.failure();
    return c.out_;
  }

  // Blocks of 4-bit weights that cross rows are read in two ways (core/encoding.h), and the files do not say which
  // processor computed a case: the way that reproduces the logits of the base is taken.
  static result<causal_lm<engine>> open_base(const std::filesystem::path& folder, bool rounded = false) {
    auto model = io::hf::load_model<engine>(folder);
    if (model && rounded) return causal_lm<engine>::make(model->config(), rounded_weights(model->weights()));
    if (!model || !model->config().coded) return model;
    auto file = io::read_safetensors(folder / "expected.safetensors");
    if (!file) return file.failure();
    auto prompts = read_prompts(*file);
    if (!prompts) return prompts.failure();
    model_case c(std::move(*model), std::move(*file), std::move(*prompts));
    if (status s = c.logits(c.model_, "logits", "logits"); !s) return s.failure();
    if (c.out_[0].error <= c.out_[0].tolerance) return std::move(c.model_);
    return io::hf::load_model<engine>(folder, {.blocks = scaled_by::row_run});
  }

 private:
  model_case(causal_lm<engine> model, io::safetensors file, std::vector<std::vector<std::int64_t>> prompts)
      : model_(std::move(model)), file_(std::move(file)), prompts_(std::move(prompts)) {}

  status logits(causal_lm<engine>& of, const char* key, const std::string& name) {
    const bool trained = std::string(key) != "logits" && std::string(key) != "logits_disabled";
    result<std::vector<float>> wanted = within_.wanted(file_, key);
    if (!wanted) return wanted.failure();
    std::vector<row_run> runs;
    for (const auto& p : prompts_) runs.push_back({p, 0, 0});
    std::vector<float> got(wanted->size());
    if (status s = of.logits(runs, got); !s) return s;
    within_.note(name, got);
    if (!within_.exact && name == "merged") return ok;  // of another training run
    if (!within_.exact && trained) {                    // what was written and read again must be what was trained
      if (trained_.empty()) trained_ = got;
      *wanted = trained_;
    }
    out_.push_back({name, apart(got, *wanted), within_.logits});
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
    generation_settings how;
    how.new_tokens = static_cast<int>(t->shape[1] - prompts_[0].size());
    auto g = generator<engine>::make(model_, how, static_cast<int>(prompts_.size()), static_cast<int>(t->shape[1]));
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
  // How many sequences leave the wanted one where its token is the largest in float by more than this engine is off.
  result<double> unfounded(const std::vector<std::int64_t>& got, const std::vector<std::int64_t>& wanted,
                           std::size_t length) {
    result<causal_lm<Reference>> exact = model_case<Reference>::open_base(base_, within_.rounded);
    if (!exact) return exact.failure();
    if (status s = exact->set_adapters(model_.adapters()); !s) return s.failure();
    const auto vocabulary = static_cast<std::size_t>(model_.config().vocabulary);
    std::vector<float> ours(length * vocabulary), theirs(ours.size());
    double wrong = 0;
    for (std::size_t first = 0; first + length <= wanted.size() && first + length <= got.size(); first += length) {
      const row_run run[] = {{std::span(wanted).subspan(first, length), 0, 0}};
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
    if (status s = take_what_peft_trained(folder / "adapter_trained"); !s) return s;
    result<model_weights> weights = model_.merged_weights();
    if (!weights) return weights.failure();
    const result<double> turned = codes_apart(*weights, folder / "merged_weights.safetensors");
    if (!turned) return turned.failure();
    result<causal_lm<engine>> merged = causal_lm<engine>::make(model_.config(), std::move(*weights));
    if (!merged) return merged.failure();
    if (*turned == 0) return logits(*merged, "logits_merged_unloaded", "merged");
    out_.push_back({"merged_codes", *turned, 1e-4});
    return ok;
  }
  // A merged weight that is rounded to codes again makes a whole step of the last digit of a training run: there the
  // adapter is merged that PEFT trained and merged.
  status take_what_peft_trained(const std::filesystem::path& folder) {
    if (!model_.config().coded || !exists(folder)) return ok;
    const result<io::hf::loaded_adapters> theirs = io::hf::load_adapters(folder, model_);
    return theirs ? model_.set_adapters(theirs->set) : theirs.failure();
  }
  // The share of merged 4-bit codes that are not PEFT's. A weight that lies between two codes, closer to the middle than
  // sums in float are to each other, is rounded either way, by PEFT as well on another processor; logits then tell nothing.
  static result<double> codes_apart(const model_weights& merged, const std::filesystem::path& expected) {
    if (!exists(expected)) return 0.0;
    auto file = io::read_safetensors(expected);
    if (!file) return file.failure();
    double apart = 0, all = 0;
    for (const auto& [name, v] : merged.tensors) {
      const io::tensor_view* const theirs = file->get(name);
      if (theirs == nullptr || v.beside == nullptr || bits_of(v.type) != 4) continue;
      if (theirs->data.size() != static_cast<std::size_t>(v.count() + 1) / 2) return 1.0;
      const auto* const ours = static_cast<const unsigned char*>(v.data);
      for (std::size_t i = 0; i < theirs->data.size(); ++i) {
        const unsigned other = ours[i] ^ std::to_integer<unsigned>(theirs->data[i]);
        apart += ((other & 15) != 0 ? 1 : 0) + (other > 15 ? 1 : 0), all += 2;
      }
    }
    return all == 0 ? 0.0 : apart / all;
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

  // Trained biases lie in PEFT's base layers and stay there while an adapter is disabled, which it warns of; here a disabled
  // adapter leaves the bare model. What PEFT computes is then the model with those biases alone.
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
  // "lora_A.default.weight" of the model in memory is "lora_A.weight" of the file.
  static std::string plain(std::string name) {
    for (const char* part : {".default", ".modules_to_save"})
      if (const std::size_t at = name.find(part); at != name.npos) name.erase(at, std::string_view(part).size());
    if (name.ends_with("magnitude_vector.weight")) name.erase(name.size() - std::string_view(".weight").size());
    for (const char* shared : {"vector_bank", "theta_d"})
      if (name.find(shared) != name.npos) return shared;
    const std::size_t of_group = name.find("tinylora_v.");
    return of_group == name.npos ? name : name.substr(of_group);
  }
  // "adamss_A.2" is a part of "adamss_A": where in it.
  std::size_t first_of_part(const std::string& key, std::string& whole) const {
    const std::size_t dot = key.rfind('.');
    whole = plain(key.substr(0, dot));
    std::size_t first = 0;
    for (int k = std::stoi(key.substr(dot + 1)); k-- > 0;)
      if (const auto before = file_.find(key.substr(0, dot + 1) + std::to_string(k)); before)
        first += static_cast<std::size_t>(before->shape[0] * before->shape[1]);
    return first;
  }
  // AdamW divides an element by its own size: one that is nothing but rounding moves its parameter by the whole rate, and
  // where to is its sign, which is rounding too (mistral/lora_all_linear has one of 2.3e-7 beside 0.29). Such elements
  // follow the stored ones in the first step; all others stay our own. `least`: what is rounding beside the largest
  // gradient of the model, as all of a key's bias is, which no softmax notices.
  static void settle(std::span<float> got, std::span<const float> wanted, double least) {
    const double rounding = std::max(1e-5 * largest_of(wanted), least);
    for (std::size_t i = 0; i < got.size(); ++i)
      if (std::abs(static_cast<double>(wanted[i])) < rounding) got[i] = wanted[i];
  }
  status gradients(training_run<engine>& t) {
    std::map<const void*, std::string> keys;
    for (const module_adapter& m : model_.adapters().modules)
      for (const auto* tensors : {&m.tensors, &m.base})
        for (const auto& [name, x] : *tensors) keys[x.data->data()] = plain(x.key);
    double worst = 0, largest = 0;
    std::size_t found = 0, wanted = 0;
    std::set<const void*> met;
    // A tenth of a millionth of the largest gradient is float's own rounding.
    for (const io::tensor_view& g : file_)
      if (const auto values = io::to_float(g); values && g.name.starts_with("grad0."))
        largest = std::max(largest, largest_of(*values));
    for (const io::tensor_view& g : file_) {
      if (!g.name.starts_with("grad0.")) continue;
      ++wanted;
      std::string name = plain(g.name.substr(6));
      const bool part = name.find("adamss_") != name.npos;
      const std::size_t first = part ? first_of_part(g.name, name) : 0;
      if (part) name.erase(0, 6);
      for (const trained_parameter& p : t.on_host()) {
        if (keys[p.value.data] != name) continue;
        met.insert(p.value.data);
        const result<std::vector<float>> values = io::to_float(g);
        const auto count = part ? values->size() : static_cast<std::size_t>(p.gradient.count());
        const std::span<float> got(static_cast<float*>(p.gradient.data) + first, count);
        worst = std::max(worst, values ? apart(got, *values, 1e-3 * largest) : 1.0);
        if (values && within_.exact && values->size() == got.size()) settle(got, *values, 1e-6 * largest);
        ++found;
      }
    }
    if (!within_.exact) return ok;
    out_.push_back({"grad0", found == wanted && met.size() == t.on_host().size() ? worst : 1, within_.gradients});
    return t.send();
  }
  status train(const io::hf::loaded_adapters& loaded) {
    const auto ids = file_.find("train_ids"), losses = file_.find("losses");
    if (!ids || !losses || ids->shape.size() != 3) return fail("there are no training steps in ", file_.file.c_str());
    const auto tokens = io::to_int64(*ids);
    const auto wanted = within_.wanted(file_, "losses");
    std::vector<float> got;
    if (!tokens || !wanted) return fail("'train_ids' or 'losses' cannot be read");
    auto t = training_run<engine>::make(model_, {.dropout = false});
    if (!t) return t.failure();
    auto optimizer = t->optimizer({5e-3, 0.9, 0.999, 1e-8, 0.01});
    if (!optimizer) return optimizer.failure();
    std::optional<rank_allocator> ranks;
    if (std::vector<adalora_layer> layers = adalora_layers(t->on_host()); !layers.empty()) {
      auto made = rank_allocator::over(std::move(layers), io::hf::adalora_settings_of(loaded.config));
      if (!made) return made.failure();
      ranks = std::move(*made);
    }
    double worst = 0, wrong_ranks = 0;
    for (std::size_t step = 0; step < ids->shape[0]; ++step) {
      std::vector<labelled_sequence> batch;
      for (std::size_t b = 0; b < ids->shape[1]; ++b)
        batch.push_back({std::span(*tokens).subspan((step * ids->shape[1] + b) * ids->shape[2], ids->shape[2])});
      t->clear();
      const result<double> loss = t->add(batch);
      if (!loss) return loss.failure();
      if (status s = t->fetch(); !s) return s;
      const double all = *loss + (ranks ? ranks->keep_orthogonal() : 0);
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
    long long left = 0;  // between two allocations the optimizer moves what was zero
    for (const adalora_layer& l : ranks.layers())
      left += std::count_if(l.E.begin(), l.E.end(), [](float e) { return e != 0; });
    return sum == left ? 0 : 1;
  }

  causal_lm<engine> model_;
  io::safetensors file_;
  std::vector<std::vector<std::int64_t>> prompts_;
  std::filesystem::path keep_, base_;
  model_comparison within_;
  std::vector<float> trained_;
  checks out_;
};

}  // namespace golden
