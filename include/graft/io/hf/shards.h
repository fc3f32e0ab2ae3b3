// SPDX-License-Identifier: Apache-2.0
// The weights of a Hugging Face model folder: model.safetensors, or the shards that model.safetensors.index.json lists
//     {"metadata": {..}, "weight_map": {tensor: file, ..}}
// All files are mapped and form one list of tensors sorted by name. The index is downloaded and not trusted: file names
// must be plain names in this folder, each tensor must be in the file that the index names and in no other, and no file
// may hold a tensor that the index does not list (transformers, modeling_utils.py and utils/hub.py).
#pragma once
#include <graft/core/library.h>
#include <graft/io/safetensors/reader.h>

namespace graft::io::hf {

struct model_tensors {
  std::string folder;
  std::vector<safetensors> files;
  struct location {
    std::size_t file, tensor;
  };
  std::vector<location> by_name;
  std::vector<owned_bytes> copies;  // aligned copies of unaligned tensors (files written without padding)

  std::size_t size() const { return by_name.size(); }
  const tensor_view& operator[](std::size_t i) const { return files[by_name[i].file].tensors[by_name[i].tensor]; }
  const safetensors& file_of(std::size_t i) const { return files[by_name[i].file]; }
  const tensor_view* get(std::string_view name) const {
    const auto at = std::lower_bound(by_name.begin(), by_name.end(), name, [&](const location& p, std::string_view n) {
      return files[p.file].tensors[p.tensor].name < n;
    });
    if (at == by_name.end() || files[at->file].tensors[at->tensor].name != name) return nullptr;
    return &files[at->file].tensors[at->tensor];
  }
};

GRAFT_LIBRARY result<model_tensors> open_model_tensors(const std::string& folder);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/json/config_reader.h>
#include <graft/io/safetensors/bind.h>

#include <map>
#include <set>

namespace graft::io::hf {

inline status add_file(model_tensors& out, const std::string& name) {
  result<safetensors> file = map_safetensors(out.folder + "/" + name);
  if (!file) return file.failure();
  for (std::size_t i = 0; i < file->tensors.size(); ++i) {
    out.by_name.push_back({out.files.size(), i});
    tensor_view& t = file->tensors[i];
    if (is_aligned(t)) continue;
    out.copies.push_back(make_owned_bytes({t.data.begin(), t.data.end()}));
    t.data = out.copies.back().all;
  }
  out.files.push_back(std::move(*file));
  return ok;
}

inline void sort_by_name(model_tensors& out) {
  std::sort(out.by_name.begin(), out.by_name.end(),
            [&](const model_tensors::location& a, const model_tensors::location& b) {
              return out.files[a.file].tensors[a.tensor].name < out.files[b.file].tensors[b.tensor].name;
            });
}

// Returns true for a plain .safetensors file name, which cannot lead out of the folder or to the index.
inline bool is_shard_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.size() > std::string_view(".safetensors").size() && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

using shard_map = std::map<std::string_view, std::string_view>;  // tensor name to file name

inline result<shard_map> read_weight_map(const json& index, const std::string& file) {
  const json* map = index.find("weight_map");
  if (map == nullptr) return fail_in(file, "the key 'weight_map' is missing, expected {tensor: file}");
  if (!map->is_object()) return fail_in(file, "'weight_map' is ", found(*map), ", expected {tensor: file}");
  if (map->items.empty()) return fail_in(file, "'weight_map' is empty, expected {tensor: file}");
  shard_map out;
  for (std::size_t i = 0; i < map->keys.size(); ++i) {
    const json& shard = map->items[i];
    if (!shard.is_string() || !is_shard_name(shard.word))
      return fail_in(file, "'weight_map' says ", found(shard), " for tensor ", in_quotes(map->keys[i]),
                     ", expected the name of a .safetensors file in the same folder");
    out[map->keys[i]] = shard.word;
  }
  return out;
}

inline status check_against_index(const model_tensors& all, const shard_map& map, const std::string& index) {
  for (const safetensors& file : all.files) {
    const std::string_view name = std::string_view(file.file).substr(all.folder.size() + 1);
    for (const tensor_view& t : file) {
      const auto listed = map.find(t.name);
      if (listed == map.end())
        return fail_in(file.file, "holds the tensor ", in_quotes(t.name), ", which ", clipped(index), " does not name");
      if (listed->second != name)
        return fail_in(file.file, "holds the tensor ", in_quotes(t.name), ", which ", clipped(index), " says is in ",
                       in_quotes(listed->second), "; a tensor may be in one file only");
    }
  }
  for (const auto& [tensor, shard] : map)
    if (all.get(tensor) == nullptr)
      return fail_in(index, "says that the tensor ", in_quotes(tensor), " is in ", in_quotes(shard),
                     ", which does not hold it");
  return ok;
}

inline result<model_tensors> open_indexed(const std::string& folder, const std::string& index) {
  const result<json> parsed = read_json(index, 100'000'000, 8);
  if (!parsed) return parsed.failure();
  if (!parsed->is_object()) return fail_in(index, "the file holds ", found(*parsed), ", expected a JSON object");
  const result<shard_map> map = read_weight_map(*parsed, index);
  if (!map) return map.failure();
  model_tensors out{folder, {}, {}, {}};
  std::set<std::string_view> shards;
  for (const auto& [tensor, shard] : *map) shards.insert(shard);
  for (const std::string_view shard : shards)
    if (const status added = add_file(out, std::string(shard)); !added) return added.failure();
  sort_by_name(out);
  if (const status good = check_against_index(out, *map, index); !good) return good.failure();
  return out;
}

GRAFT_LIBRARY result<model_tensors> open_model_tensors(const std::string& folder) {
  return guarded(folder, [&]() -> result<model_tensors> {
    const std::string whole = folder + "/model.safetensors", index = whole + ".index.json";
    if (!is_directory(folder)) return fail_in(folder, "there is no such folder, expected one with config.json");
    if (exists(whole)) {
      model_tensors out{folder, {}, {}, {}};
      if (const status added = add_file(out, "model.safetensors"); !added) return added.failure();
      return out;
    }
    if (exists(index)) return open_indexed(folder, index);
    for (const char* pickle : {"/pytorch_model.bin", "/pytorch_model.bin.index.json"})
      if (exists(folder + pickle))
        return fail_in(folder + pickle,
                       "this is a pickle checkpoint, which can run code when it is read; save the model with "
                       "safetensors (save_pretrained writes them)");
    return fail_in(folder, "there is neither model.safetensors nor model.safetensors.index.json in this folder");
  });
}

}  // namespace graft::io::hf
#endif
