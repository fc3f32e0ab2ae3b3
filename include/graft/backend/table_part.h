// SPDX-License-Identifier: Apache-2.0
// Where a table is a part of a larger one, because ranks share it: the row that it begins with. Other rows are zeros.
#pragma once

namespace graft {

struct table_part {
  bool is = false;
  long long first = 0;
};

}  // namespace graft
