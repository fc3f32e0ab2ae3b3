// SPDX-License-Identifier: Apache-2.0
// Where the bodies of functions stand that depend on no type and cost much to compile. A program that links
// graft::cpu_compiled (which sets GRAFT_CPU_COMPILED) sees declarations alone; the library's own files define
// GRAFT_DEFINES_LIBRARY and compile the bodies once for all.
//     GRAFT_LIBRARY result<json> parse_json(…);
//     #if GRAFT_BODIES  …  #endif
// Header-only, they are templates of nothing, and so is whatever else in io/ would be inline: a compiler instantiates all
// that the body of an inline function names, called or not, and what a template's body names only where it is called.
//     template <class...> bool exists(const std::string& path) { … }
#pragma once

#if !defined(GRAFT_CPU_COMPILED)
#define GRAFT_LIBRARY template <class...>
#define GRAFT_BODIES 1
#elif defined(GRAFT_DEFINES_LIBRARY)
#define GRAFT_LIBRARY
#define GRAFT_BODIES 1
#else
#define GRAFT_LIBRARY
#define GRAFT_BODIES 0
#endif
