// SPDX-License-Identifier: Apache-2.0
// A shard of a table that ranks divide by rows (vocabulary-parallel embedding and loss). Rows outside the shard read
// zeros.
#pragma once

namespace graft {

struct table_shard {
  bool is = false;      // the table is a shard
  long long first = 0;  // row of the whole table that the shard begins with
};

}  // namespace graft
