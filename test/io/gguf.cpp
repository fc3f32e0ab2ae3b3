// SPDX-License-Identifier: Apache-2.0
// GGUF files, written here from the golden models of Hugging Face as ggml's converter writes them, give the logits of those
// models; and files that are wrong are refused with a sentence that names what is.
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantize.h>
#include <graft/io/gguf_model.h>
#include <graft/model/on_cpu.h>

#include <fstream>

#include "support.h"

using namespace graft;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;
const std::filesystem::path golden = std::filesystem::path(GRAFT_GOLDEN_DIR) / "models";

class gguf_writer {
 public:
  template <class Number> gguf_writer& fact(const std::string& name, std::uint32_t type, Number v) {
    return text(facts_, name), put(facts_, type), put(facts_, v), ++fact_count_, *this;
  }
  gguf_writer& fact(const std::string& name, std::string_view v) {
    return text(facts_, name), put(facts_, std::uint32_t{8}), text(facts_, v), ++fact_count_, *this;
  }
  void tensor(const std::string& name, const view& v, std::uint32_t type, std::span<const std::byte> bytes) {
    text(tensors_, name), put(tensors_, static_cast<std::uint32_t>(v.rank));
    for (int k = v.rank - 1; k >= 0; --k) put(tensors_, static_cast<std::uint64_t>(v.size[k]));
    put(tensors_, type), put(tensors_, static_cast<std::uint64_t>(data_.size()));
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    data_.resize((data_.size() + 31) / 32 * 32), ++tensor_count_;
  }
  std::string whole() const {
    std::string out = "GGUF";
    put(out, std::uint32_t{3}), put(out, tensor_count_), put(out, fact_count_);
    out += facts_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  template <class Number> static void put(std::string& to, Number v) {
    to.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  static void text(std::string& to, std::string_view s) { put(to, static_cast<std::uint64_t>(s.size())), to += s; }
  std::string facts_, tensors_, data_;
  std::uint64_t fact_count_ = 0, tensor_count_ = 0;
};

// Neighbours of a pair beside each other, as ggml has the rows of Q and K of a Llama.
std::vector<float> interleaved(const std::vector<float>& v, long long rows, int heads) {
  const auto width = v.size() / static_cast<std::size_t>(rows), size = static_cast<std::size_t>(rows / heads);
  std::vector<float> out(v.size());
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    const std::size_t in_head = r % size, to = r - in_head + in_head % (size / 2) * 2 + in_head / (size / 2);
    std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(r * width), width,
                out.begin() + static_cast<std::ptrdiff_t>(to * width));
  }
  return out;
}
std::string gguf_name(std::string name) {
  static const std::pair<const char*, const char*> parts[] = {{"model.embed_tokens", "token_embd"},
                                                              {"model.norm", "output_norm"},
                                                              {"lm_head", "output"},
                                                              {"model.layers", "blk"},
                                                              {"input_layernorm", "attn_norm"},
                                                              {"post_attention_layernorm", "ffn_norm"},
                                                              {"self_attn.q_proj", "attn_q"},
                                                              {"self_attn.k_proj", "attn_k"},
                                                              {"self_attn.v_proj", "attn_v"},
                                                              {"self_attn.o_proj", "attn_output"},
                                                              {"mlp.gate_proj", "ffn_gate"},
                                                              {"mlp.up_proj", "ffn_up"},
                                                              {"mlp.down_proj", "ffn_down"}};
  for (const auto& [from, to] : parts)
    if (const std::size_t at = name.find(from); at != name.npos) name.replace(at, std::strlen(from), to);
  return name;
}

struct written {
  std::string file;
  std::vector<float> expected;
};
const std::vector<std::int64_t> ids{1, 5, 7, 90, 33, 2};
std::vector<float> logits_of(causal_lm<engine>& model) {
  std::vector<float> out(ids.size() * static_cast<std::size_t>(model.config().vocabulary));
  const std::vector<row_run> runs{{ids}};
  const status s = model.logits(runs, out);
  REQUIRE_MESSAGE(s, s.message());
  return out;
}
// A golden model as a file whose matrices are of one type, and the logits of the numbers in it.
written write_as(const std::string& family, const encoding& how, const std::vector<float>& divisors = {}) {
  auto model = io::hf::load_model<engine>(golden / family / "base");
  REQUIRE_MESSAGE(model, model.message());
  model_config c = model->config();
  const auto fact = [&](const char* name) { return family + "." + name; };
  gguf_writer to;
  to.fact("general.architecture", family).fact(fact("block_count"), 4, static_cast<std::uint32_t>(c.layers));
  to.fact(fact("embedding_length"), 4, static_cast<std::uint32_t>(c.width));
  to.fact(fact("feed_forward_length"), 4, static_cast<std::uint32_t>(c.inner));
  to.fact(fact("attention.head_count"), 4, static_cast<std::uint32_t>(c.heads));
  to.fact(fact("attention.head_count_kv"), 4, static_cast<std::uint32_t>(c.key_heads));
  to.fact(fact("attention.key_length"), 4, static_cast<std::uint32_t>(c.head_size));
  to.fact(fact("context_length"), 4, static_cast<std::uint32_t>(c.positions));
  to.fact(fact("attention.layer_norm_rms_epsilon"), 6, static_cast<float>(c.norm_eps));
  to.fact(fact("rope.freq_base"), 6, static_cast<float>(c.rope.theta));
  model_weights numbers = model->weights();
  std::vector<std::vector<float>> memory;
  memory.reserve(numbers.tensors.size());
  for (auto& [name, v] : numbers.tensors) {
    std::vector<float> values(static_cast<std::size_t>(v.count()));
    cpu::read(v, 0, v.count(), values.data());
    const bool coded = v.rank == 2 && how.codes == dtype::ggml;
    auto encoded = [&, &v = v](const std::vector<float>& from) {
      auto made = cpu::quantize(from.data(), v.size[0], v.size[1], how);
      REQUIRE_MESSAGE(made, made.message());
      return std::move(*made);
    };
    if (coded) cpu::decode(encoded(values).as_view(), values.data());
    const bool query = name.find("q_proj") != name.npos, key = name.find("k_proj") != name.npos;
    const std::vector<float> stored =
        family == "llama" && (query || key) ? interleaved(values, v.size[0], query ? c.heads : c.key_heads) : values;
    if (coded) {
      const cpu::coded_weight codes = encoded(stored);
      to.tensor(gguf_name(name), v, static_cast<std::uint32_t>(how.block_type), std::as_bytes(std::span(codes.codes)));
    } else {
      to.tensor(gguf_name(name), v, 0, std::as_bytes(std::span(stored)));
    }
    memory.push_back(std::move(values));
    v.data = memory.back().data(), v.type = dtype::f32;
  }
  if (!divisors.empty()) {
    const view v = view_of(divisors.data(), 1, static_cast<long long>(divisors.size()));
    to.tensor("rope_freqs.weight", v, 0, std::as_bytes(std::span(divisors)));
    const bool fit = 2 * divisors.size() == static_cast<std::size_t>(c.head_size);
    model_config other = c;
    other.rope.divisors = divisors;
    CHECK(bool(causal_lm<engine>::make(other, numbers, {})) == fit);
    if (fit) c = other;
  }
  auto plain = causal_lm<engine>::make(c, numbers, {});
  REQUIRE_MESSAGE(plain, plain.message());
  return {to.whole(), logits_of(*plain)};
}
std::string refused(const std::string& bytes) {
  const auto parsed = io::parse_gguf(io::hold(bytes_of(bytes)), "model.gguf");
  if (!parsed) return parsed.message();
  const auto config = io::config_of(*parsed);
  if (!config) return config.message();
  const auto weights = io::weights_of(*parsed, *config);
  return weights ? "" : weights.message();
}

}  // namespace

TEST_CASE("gguf: a file gives the logits of the model it was made of") {
  const temp_folder folder;
  for (const std::string family : {"llama", "qwen2"})
    for (const encoding& how : {encoding{}, encodings::q8_0_codes::how(), encodings::q4_0_codes::how()}) {
      INFO(family, " ", name_of(how));
      const written w = write_as(family, how);
      const std::string file = folder.path / "model.gguf";
      std::ofstream(file, std::ios::binary) << w.file;
      auto model = io::load_gguf<engine>(file);
      REQUIRE_MESSAGE(model, model.message());
      const std::vector<float> found = logits_of(*model);
      double most = 0, size = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        most = std::max(most, std::abs(double(found[i]) - double(w.expected[i])));
        size = std::max(size, std::abs(double(w.expected[i])));
      }
      CHECK(most < 2e-5 * size);
    }
}
TEST_CASE("gguf: a file may divide the frequencies of positions") {
  const temp_folder folder;
  const written plain = write_as("llama", {});
  auto model = io::hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE_MESSAGE(model, model.message());
  std::vector<float> divisors(static_cast<std::size_t>(model->config().head_size / 2), 1.0F);
  divisors.front() = 3, divisors[1] = 8;
  const written w = write_as("llama", {}, divisors);
  const std::string file = folder.path / "model.gguf";
  std::ofstream(file, std::ios::binary) << w.file;
  auto read = io::load_gguf<engine>(file);
  REQUIRE_MESSAGE(read, read.message());
  const std::vector<float> found = logits_of(*read);
  double most = 0, changed = 0, size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    most = std::max(most, std::abs(double(found[i]) - double(w.expected[i])));
    changed = std::max(changed, std::abs(double(found[i]) - double(plain.expected[i])));
    size = std::max(size, std::abs(double(w.expected[i])));
  }
  CHECK(most < 2e-5 * size);
  CHECK(changed > 1e-3 * size);
  divisors.pop_back();
  CHECK(refused(write_as("llama", {}, {1.0F, 2.0F}).file).find("'rope_freqs.weight' has 2 numbers") !=
        std::string::npos);
  divisors.push_back(0);
  CHECK(refused(write_as("llama", {}, divisors).file).find("divides no frequency") != std::string::npos);
}
TEST_CASE("gguf: what is wrong with a file is said") {
  const std::string good = write_as("llama", {}).file;
  CHECK(refused(good) == "");
  CHECK(refused("GGML").find("no GGUF file") != std::string::npos);
  for (std::size_t n = 0; n < 600; n += 7) CHECK(refused(good.substr(0, n)) != "");
  CHECK(refused(good.substr(0, good.size() - 100)).find("beyond the end") != std::string::npos);
  std::string other = good;
  other[4] = 9;
  CHECK(refused(other).find("version 9") != std::string::npos);
  other = good;
  other.replace(good.find("llama"), 5, "gemma");
  CHECK(refused(other).find("expected llama or qwen2") != std::string::npos);
  other = good;
  other.replace(good.find("ffn_up"), 6, "ffn_xx");
  CHECK(refused(other).find("ffn_xx") != std::string::npos);
  other = good;
  other.replace(good.find("llama.block_count"), 17, "llama.block_kount");
  CHECK(refused(other).find("'llama.block_count' is missing") != std::string::npos);
}
