// SPDX-License-Identifier: Apache-2.0
// Where the bodies of functions stand that are no templates and cost much to compile. Header-only, they are inline in every
// file that includes them. A program that links graft::cpu_compiled (which sets GRAFT_CPU_COMPILED) sees declarations alone;
// the library's own files define GRAFT_DEFINES_LIBRARY and compile the bodies once for all.
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
