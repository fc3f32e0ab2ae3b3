// SPDX-License-Identifier: Apache-2.0
// The page at /, which the build takes from page.html.
#pragma once

namespace serve {

extern const char* const page;

}  // namespace serve
