// SPDX-License-Identifier: Apache-2.0
// The families that config.json may name, and how it states each: the built-in ones (config_families.h), and a
// program's own, added in one line,
//     family_table families;
//     families.add({&my_family, my_defaults, read_my_fields});
//     auto model = load_model<cpu::engine<float>>(folder, {}, families);
#pragma once
#include <graft/core/library.h>
#include <graft/io/hf/config_family.h>

#include <vector>

namespace graft::io::hf {

class family_table {
 public:
  GRAFT_LIBRARY family_table();

  // The row's family must outlive the table and the models that are loaded with it.
  status add(const config_family& row) {
    if (row.family == nullptr || row.set_defaults == nullptr || row.read == nullptr)
      return fail("a row of the table of families needs a family, its defaults and a function that reads its fields");
    if (find(row.family->name) != nullptr)
      return fail("there is a family '", row.family->name, "' already; give yours another name");
    rows_.push_back(row);
    return ok;
  }
  const config_family* find(std::string_view model_type) const {
    for (const config_family& row : rows_)
      if (row.family->name == model_type) return &row;
    return nullptr;
  }
  text names() const {
    text all;
    for (const config_family& row : rows_) all << (all.empty() ? "" : ", ") << row.family->name;
    return all;
  }

 private:
  std::vector<config_family> rows_;
};

// Returns the table for programs that add no families.
GRAFT_LIBRARY const family_table& built_in_families();

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/config_families.h>

namespace graft::io::hf {

GRAFT_LIBRARY family_table::family_table()
    : rows_(std::begin(built_in_config_families), std::end(built_in_config_families)) {}
GRAFT_LIBRARY const family_table& built_in_families() {
  static const family_table all;
  return all;
}

}  // namespace graft::io::hf
#endif
