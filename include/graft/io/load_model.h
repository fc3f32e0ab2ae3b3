// SPDX-License-Identifier: Apache-2.0
// Opens a stored model: a Hugging Face folder or a GGUF file, with its tokenizer, chat template and generation
// settings; and its adapters, from a PEFT folder or a GGUF file. A GGUF file is a path that ends in .gguf or names a
// file that begins as one; everything else is a folder.
//     auto model = io::load_model<engine>("SmolLM2-135M-Instruct.Q4_1.gguf");
//     auto words = io::read_tokenizer("SmolLM2-135M-Instruct.Q4_1.gguf");
#pragma once
#include <graft/io/chat_template/chat_template.h>
#include <graft/io/gguf/adapter.h>
#include <graft/io/tokenizer/tokenizer.h>
#include <graft/model/generation_settings.h>

namespace graft::io {

GRAFT_LIBRARY bool is_gguf_path(const std::string& path);

GRAFT_LIBRARY result<model_config> read_model_config(const std::string& path);
GRAFT_LIBRARY result<hf::model_files> open_model(const std::string& path,
                                                 scale_granularity blocks = scale_granularity::flat_block);
GRAFT_LIBRARY result<hf::tokenizer> read_tokenizer(const std::string& path);
GRAFT_LIBRARY result<hf::chat_template> read_chat_template(const std::string& path, bool with_tools = false,
                                                           std::string_view name = {});
// Settings of generation_config.json. GGUF files have none: defaults, with the end tokens of `otherwise`.
GRAFT_LIBRARY result<generation_settings> read_generation_settings(const std::string& path,
                                                                   const special_tokens& otherwise);

template <class Engine>
result<causal_lm<Engine>> load_model(const std::string& path, const model_options& options = {}) {
  return is_gguf_path(path) ? load_gguf<Engine>(path, options) : hf::load_model<Engine>(path, options);
}

GRAFT_LIBRARY result<hf::loaded_adapters> read_adapters(const std::string& path, const model_config& c,
                                                        const model_weights& w);
// A path that ends in .gguf becomes a file, any other one a PEFT folder.
GRAFT_LIBRARY status save_adapters(const std::string& path, const hf::loaded_adapters& a, const model_config& c);
template <class Engine>
result<hf::loaded_adapters> load_adapters(const std::string& path, const causal_lm<Engine>& model) {
  return read_adapters(path, model.config(), model.weights());
}

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/gguf/chat_template.h>
#include <graft/io/gguf/tokenizer.h>
#include <graft/io/hf/generation_config.h>
#include <graft/io/tokenizer/tokenizer_file.h>

namespace graft::io {

GRAFT_LIBRARY bool is_gguf_path(const std::string& path) {
  if (path.ends_with(".gguf")) return true;
  if (!regular_file_size(path)) return false;
  const open_file f(std::fopen(path.c_str(), "rb"));
  char begin[4]{};
  return f && std::fread(begin, 1, sizeof begin, f.get()) == sizeof begin && std::string_view(begin, 4) == "GGUF";
}

namespace detail {
// Maps a GGUF file and passes it to `read`.
template <class Read>
auto from_gguf(const std::string& path, Read read) -> decltype(read(std::declval<const gguf&>())) {
  const result<gguf> file = map_gguf(path);
  if (!file) return file.failure();
  return read(*file);
}
}  // namespace detail

GRAFT_LIBRARY result<model_config> read_model_config(const std::string& path) {
  return is_gguf_path(path) ? detail::from_gguf(path, config_of) : hf::read_config(path);
}
GRAFT_LIBRARY result<hf::model_files> open_model(const std::string& path, scale_granularity blocks) {
  return is_gguf_path(path) ? open_gguf_model(path) : hf::open_model_folder(path, blocks);
}
GRAFT_LIBRARY result<hf::tokenizer> read_tokenizer(const std::string& path) {
  return is_gguf_path(path) ? detail::from_gguf(path, tokenizer_of) : hf::read_tokenizer(path);
}
GRAFT_LIBRARY result<hf::chat_template> read_chat_template(const std::string& path, bool with_tools,
                                                           std::string_view name) {
  const result<hf::chat_template_source> all =
      is_gguf_path(path) ? detail::from_gguf(path, chat_templates_of) : hf::read_chat_templates(path);
  if (!all) return all.failure();
  return hf::choose_chat_template(*all, with_tools, name);
}
GRAFT_LIBRARY result<generation_settings> read_generation_settings(const std::string& path,
                                                                   const special_tokens& otherwise) {
  if (!is_gguf_path(path)) return hf::read_generation_config(path, otherwise);
  generation_settings g;
  g.eos_tokens = otherwise.eos_tokens, g.bos_token = otherwise.bos_token, g.pad_token = otherwise.pad_token;
  return g;
}
GRAFT_LIBRARY result<hf::loaded_adapters> read_adapters(const std::string& path, const model_config& c,
                                                        const model_weights& w) {
  if (is_gguf_path(path)) {
    // It is read and not mapped, as PEFT folders are: where a server runs, adapters are written while others are read,
    // and a mapped file that is shortened ends the program.
    result<owned_bytes> bytes = read_bytes(path);
    if (!bytes) return bytes.failure();
    const result<gguf> file = parse_gguf(std::move(*bytes), path);
    if (!file) return file.failure();
    return gguf_adapters_from(*file, c, w);
  }
  const result<peft_folder> opened = open_peft_folder(path);
  if (!opened) return opened.failure();
  return hf::adapters_from(*opened, c, w);
}
GRAFT_LIBRARY status save_adapters(const std::string& path, const hf::loaded_adapters& a, const model_config& c) {
  return path.ends_with(".gguf") ? save_gguf_adapters(path, a, c) : hf::save_adapters(path, a);
}

}  // namespace graft::io
#endif
