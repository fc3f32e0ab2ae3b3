// SPDX-License-Identifier: Apache-2.0
// GRAFT_LIBRARY and GRAFT_BODIES: whether costly non-template functions are inline or precompiled. Header-only, their
// bodies are inline in every file that includes them. A program that links graft::cpu_compiled (which defines
// GRAFT_CPU_COMPILED) sees only declarations; the library's own source files define GRAFT_DEFINES_LIBRARY and compile
// each body once.
//     GRAFT_LIBRARY result<json> parse_json(…);
//     #if GRAFT_BODIES  …  #endif
#pragma once

#if !defined(GRAFT_CPU_COMPILED)
#define GRAFT_LIBRARY inline
#define GRAFT_BODIES 1
#elif defined(GRAFT_DEFINES_LIBRARY)
#define GRAFT_LIBRARY
#define GRAFT_BODIES 1
#else
#define GRAFT_LIBRARY
#define GRAFT_BODIES 0
#endif
