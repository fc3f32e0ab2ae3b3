// SPDX-License-Identifier: Apache-2.0
// Reads a PEFT folder: adapter_config.json and adapter_model.safetensors (peft,
// docs/source/developer_guides/checkpoint.md). An absent key has PEFT's default (io/peft/METHOD.h); peft_type and
// target_modules have none. A key with a wrong value is an error. adapter_model.bin is a pickle, which can run code
// when it is read, and is refused.
#pragma once
#include <graft/core/library.h>
#include <graft/io/peft/adapter_fields.h>
#include <graft/io/safetensors/reader.h>
#include <graft/model/method_table.h>

namespace graft::io {

GRAFT_LIBRARY result<adapter_config> parse_adapter_config(std::string_view content, std::string_view file,
                                                          const method_table& methods = built_in_methods());
// `where` is a folder or the adapter_config.json in it.
GRAFT_LIBRARY result<adapter_config> read_adapter_config(const std::string& where,
                                                         const method_table& methods = built_in_methods());
// `where` is a folder or the adapter_model.safetensors in it.
GRAFT_LIBRARY result<safetensors> read_adapter_weights(const std::string& where);

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/io/peft/config_keys.h>

namespace graft::io {

inline constexpr std::uint64_t largest_config = std::uint64_t{16} << 20;

inline bool is_pickle_name(std::string_view path) {
  for (const char* e : {".bin", ".pt", ".pth", ".pkl", ".ckpt"})
    if (path.ends_with(e)) return true;
  return false;
}

inline error pickle_refused(const std::string& path) {
  return fail_in(path,
                 "this is a pickle checkpoint, which can run code when it is read; save it with safetensors "
                 "(save_pretrained with safe_serialization=True)");
}

GRAFT_LIBRARY result<adapter_config> parse_adapter_config(std::string_view content, std::string_view file,
                                                          const method_table& methods) {
  auto parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(file, "the file holds ", found(*parsed), ", expected a JSON object");
  return guarded(file, [&]() -> result<adapter_config> {
    adapter_config c;
    c.parsed = std::move(*parsed);
    config_reader in{c.parsed, std::string(file)};
    read_type(in, c, methods);
    if (in.problem) return *in.problem;
    refuse_unsupported(in);
    read_common(in, c);
    read_keys(in, c);
    if (in.problem) return *in.problem;
    return c;
  });
}

GRAFT_LIBRARY result<adapter_config> read_adapter_config(const std::string& where, const method_table& methods) {
  if (is_pickle_name(where)) return pickle_refused(where);
  const std::string file = is_directory(where) ? where + "/adapter_config.json" : where;
  const result<std::vector<std::byte>> bytes = read_file(file, largest_config);
  if (!bytes) return bytes.failure();
  return parse_adapter_config(as_chars(*bytes), file, methods);
}

GRAFT_LIBRARY result<safetensors> read_adapter_weights(const std::string& where) {
  if (is_pickle_name(where)) return pickle_refused(where);
  if (!is_directory(where)) return read_safetensors(where);
  const std::string file = where + "/adapter_model.safetensors", pickle = where + "/adapter_model.bin";
  if (!exists(file) && exists(pickle)) return pickle_refused(pickle);
  return read_safetensors(file);
}

}  // namespace graft::io
#endif
