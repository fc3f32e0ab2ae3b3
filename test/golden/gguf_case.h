// SPDX-License-Identifier: Apache-2.0
// One folder with a GGUF file: model.gguf, and expected.safetensors with what transformers computed with the numbers
// that the file's blocks mean (`ids`, `logits`, `generated`). Where there is an adapter, also `logits_adapter`, the
// `loss` of ids, and the gradients of some of its tensors; its merged model is then compared as well. case.json names
// the types of the tensors, which must be those that the model holds: nothing is dequantized when it is loaded.
#pragma once
#include <graft/io/gguf/model.h>
#include <graft/io/json/json.h>

#include <cctype>

#include "model_case.h"

namespace golden {

template <class engine> class gguf_case {
 public:
  static result<model_checks> run(const std::filesystem::path& folder) {
    auto model = io::load_gguf<engine>(folder / "model.gguf");
    if (!model) return model.failure();
    auto file = io::read_safetensors(folder / "expected.safetensors");
    if (!file) return file.failure();
    auto prompts = read_prompts(*file);
    if (!prompts) return prompts.failure();
    gguf_case c(std::move(*model), std::move(*file), std::move(*prompts));
    if (status s = c.types(folder / "case.json"); !s) return s.failure();
    if (status s = c.logits(c.model_, "logits", "logits"); !s) return s.failure();
    if (status s = c.generated(); !s) return s.failure();
    if (exists(folder / "adapter"))
      if (status s = c.adapted(folder / "adapter"); !s) return s.failure();
    return c.out_;
  }

 private:
  gguf_case(causal_lm<engine> model, io::safetensors file, std::vector<std::vector<std::int64_t>> prompts)
      : model_(std::move(model)), file_(std::move(file)), prompts_(std::move(prompts)) {}

  status types(const std::filesystem::path& file) {
    const auto bytes = io::read_file(file, 1 << 20);
    if (!bytes) return bytes.failure();
    const auto parsed = io::parse_json(io::as_chars(*bytes), file.string());
    if (!parsed) return parsed.failure();
    const io::json* const said = parsed->find("tensor_types");
    if (said == nullptr || !said->is_list()) return fail(file.c_str(), " has no list 'tensor_types'");
    std::set<std::string> wanted, found;
    for (const io::json& t : said->items) wanted.insert(t.word);
    for (const auto& [name, v] : model_.weights().tensors) {
      std::string type = v.quant != nullptr ? name_of(v.quant->format) : name_of(v.type);
      for (char& c : type) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      found.insert(type);
    }
    out_.push_back({"types", wanted == found ? 0.0 : 1.0, 0});
    return ok;
  }
  status logits(causal_lm<engine>& of, const char* key, const char* name) {
    const auto t = file_.find(key);
    if (!t) return t.failure();
    const result<std::vector<float>> wanted = io::to_float(*t);
    if (!wanted) return wanted.failure();
    std::vector<sequence_chunk> runs;
    for (const auto& p : prompts_) runs.push_back({p, 0, 0});
    std::vector<float> got(wanted->size());
    if (status s = of.logits(runs, got); !s) return s;
    out_.push_back({name, max_difference(got, *wanted), within_.logits});
    return ok;
  }
  // The stored tokens are greedy ones of a text that must not end (transformers' min_new_tokens). Generation here stops
  // at an end token: its tokens must be the stored ones up to there, and each stored token the most likely one.
  status generated() {
    const auto t = file_.find("generated");
    if (!t) return t.failure();
    const result<std::vector<std::int64_t>> wanted = io::to_int64(*t);
    if (!wanted || t->shape.size() != 2) return fail("'generated' must be [batch, length]");
    const auto length = static_cast<std::size_t>(t->shape[1]);
    generation_settings settings;
    settings.max_new_tokens = static_cast<int>(length - prompts_[0].size());
    auto g = generator<engine>::make(model_, settings, static_cast<int>(prompts_.size()), static_cast<int>(length));
    if (!g) return g.failure();
    const auto made = g->run(prompts_);
    if (!made) return made.failure();
    double wrong = wanted->size() == prompts_.size() * length ? 0 : 1;
    for (std::size_t b = 0; b < prompts_.size() && wrong == 0; ++b) {
      const auto row = std::span(*wanted).subspan(b * length, length);
      const std::vector<std::int64_t>& tokens = (*made)[b].tokens;
      std::size_t same = 0;
      while (same < tokens.size() && same < length && tokens[same] == row[same]) ++same;
      const bool ended = same + 1 >= tokens.size() && (same == tokens.size() || is_end(tokens[same]));
      wrong += ended ? 0 : 1;
      const result<double> greedy = not_greedy(row);
      if (!greedy) return greedy.failure();
      wrong += *greedy;
    }
    out_.push_back({"generated", wrong, 0});
    return ok;
  }
  bool is_end(std::int64_t token) const {
    const std::vector<int>& ends = model_.config().tokens.eos_tokens;
    return std::find(ends.begin(), ends.end(), static_cast<int>(token)) != ends.end();
  }
  // How many tokens of a row are not the most likely ones after those before them, end tokens left out.
  result<double> not_greedy(std::span<const std::int64_t> row) {
    const auto vocabulary = static_cast<std::size_t>(model_.config().vocabulary);
    const sequence_chunk run[] = {{row, 0, 0}};
    std::vector<float> all(row.size() * vocabulary);
    if (status s = model_.logits(run, all); !s) return s.failure();
    double wrong = 0;
    for (std::size_t i = prompts_[0].size(); i < row.size(); ++i) {
      const float* const here = all.data() + (i - 1) * vocabulary;
      std::int64_t best = -1;
      for (std::int64_t v = 0; v < static_cast<std::int64_t>(vocabulary); ++v)
        if (!is_end(v) && (best < 0 || here[v] > here[best])) best = v;
      wrong += best == row[i] ? 0 : 1;
    }
    return wrong;
  }
  status adapted(const std::filesystem::path& folder) {
    result<io::hf::loaded_adapters> loaded = io::hf::load_adapters(folder, model_);
    if (!loaded) return loaded.failure();
    if (status s = model_.set_adapters(loaded->set); !s) return s;
    if (status s = logits(model_, "logits_adapter", "logits_adapter"); !s) return s;
    if (status s = gradients(); !s) return s;
    auto weights = model_.merged_weights(model_.active(), merged_format::f32);
    if (!weights) return weights.failure();
    auto merged = causal_lm<engine>::make(model_.config(), std::move(*weights));
    if (!merged) return merged.failure();
    return logits(*merged, "logits_adapter", "merged");
  }
  status gradients() {
    const auto stored = file_.find("loss");
    if (!stored) return stored.failure();
    const auto loss = io::to_float(*stored);
    if (!loss || loss->size() != 1) return fail("'loss' must be one number");
    auto t = training_run<engine>::make(model_, {.dropout = false});
    if (!t) return t.failure();
    std::vector<labeled_sequence> batch;
    for (const auto& p : prompts_) batch.push_back({p});
    t->clear();
    const result<double> got = t->add(batch);
    if (!got) return got.failure();
    if (status s = t->fetch(); !s) return s;
    const auto wanted_loss = static_cast<double>((*loss)[0]);
    out_.push_back({"loss", std::abs(*got - wanted_loss) / wanted_loss, within_.losses});
    std::map<std::string, view> ours;  // by the file's key
    std::map<const void*, std::string> keys;
    for (const module_adapter& m : model_.adapters().modules)
      for (const auto& [name, x] : m.tensors) keys[x.data->data()] = x.key;
    for (const trained_parameter& p : t->on_host()) {
      view v{p.gradient.data, p.gradient.type};
      v.rank = p.gradient.rank;
      std::copy_n(p.gradient.size, 4, v.size);
      ours[keys[p.value.data]] = v;
    }
    double worst = 0;
    int compared = 0;
    for (const io::tensor_view& g : file_) {
      if (!g.name.starts_with("grad.")) continue;
      std::string key = g.name.substr(5);
      if (const std::size_t at = key.find(".default"); at != key.npos) key.erase(at, 8);
      const auto wanted = io::to_float(g);
      if (!wanted) return wanted.failure();
      const auto found = ours.find(key);
      if (found == ours.end()) return fail("there is no gradient of '", key.c_str(), "'");
      const std::span<const float> values(static_cast<const float*>(found->second.data),
                                          static_cast<std::size_t>(found->second.count()));
      worst = std::max(worst, max_difference(values, *wanted)), ++compared;
    }
    if (compared == 0) return fail("there are no gradients in ", file_.file.c_str());
    out_.push_back({"gradients", worst, within_.gradients});
    return ok;
  }

  causal_lm<engine> model_;
  io::safetensors file_;
  std::vector<std::vector<std::int64_t>> prompts_;
  model_comparison within_;
  model_checks out_;
};

}  // namespace golden
