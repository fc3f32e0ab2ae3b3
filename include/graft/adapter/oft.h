// SPDX-License-Identifier: Apache-2.0
// OFT: rotate the input by a block-diagonal R (Qiu et al. 2023, arXiv 2306.07280; input-centric: arXiv 2506.19847).
//     y = (x R) Wᵀ,   W' = W Rᵀ,   R = blockdiag(R_1 … R_n),   Q_i = v_i spread into a skew matrix
//     Cayley           R_i = (I - Q_i)(I + Q_i)⁻¹                    orthogonal
//     Cayley–Neumann   R_i = I + 2 Q_i + 2 Q_i² + … + Q_i^(K-1)   PEFT's default; opposite sign, not exactly orthogonal
// Constrained (COFT): each v_i is first scaled back to ||Q_i||_F <= eps / sqrt(n); PEFT writes the result into the
// parameter, so its gradient passes straight through.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

enum class oft_blocks : unsigned char { separate, shared };
enum class oft_constraint : unsigned char { free, projected };

template <int Block = 32, oft_blocks Blocks = oft_blocks::separate, oft_constraint Constraint = oft_constraint::free>
struct oft {
  static constexpr bool is_shared = Blocks == oft_blocks::shared,
                        is_projected = Constraint == oft_constraint::projected;
  static constexpr const char *name = "OFT (Cayley)", *kinds = "linear";
  static constexpr bool rotates_input = true;
  static constexpr const char* method =
      is_shared ? (is_projected ? "oft_shared_projected" : "oft_shared") : (is_projected ? "oft_projected" : "oft");
  using sample = oft<32, Blocks, Constraint>;
  static constexpr ex generator(scope p, ex W) {
    auto b = p.size("b", Block, 32);
    auto n = W.cols() / b;
    auto v = p.param("oft_R.weight", is_shared ? extent(1) : n, p.triangle(b));
    if (is_projected) {
      auto limit = p.scalar("coft_limit") / row_norm(v);
      v = v + detach(min(p.constant(1), limit) * v - v);
    }
    return skew(v, b);
  }
  static constexpr ex weight(scope p, ex W) {
    auto Q = generator(p, W), I = p.eye(Q.cols());
    return unrotate(W, orthogonal((I - Q) * inverse(I + Q)));
  }
};

template <int Block = 32, int Terms = 5, oft_blocks Blocks = oft_blocks::separate,
          oft_constraint Constraint = oft_constraint::free>
struct oft_neumann {
  using exact = oft<Block, Blocks, Constraint>;
  static constexpr const char *name = "OFT (Cayley-Neumann)", *kinds = "linear";
  static constexpr bool rotates_input = true;
  static constexpr const char* method =
      exact::is_shared ? (exact::is_projected ? "oft_neumann_shared_projected" : "oft_neumann_shared")
                       : (exact::is_projected ? "oft_neumann_projected" : "oft_neumann");
  using sample = oft_neumann<32, 5, Blocks, Constraint>;
  static constexpr ex weight(scope p, ex W) {
    auto Q = exact::generator(p, W);
    return unrotate(W, neumann(Q, p.size("terms", Terms, 5)));
  }
};

template <oft_blocks Blocks, oft_constraint Constraint>
using oft_pair = adapter_list<oft<dyn, Blocks, Constraint>, oft_neumann<dyn, dyn, Blocks, Constraint>>;
using oft_forms = join_adapters<
    oft_pair<oft_blocks::separate, oft_constraint::free>, oft_pair<oft_blocks::shared, oft_constraint::free>,
    oft_pair<oft_blocks::separate, oft_constraint::projected>, oft_pair<oft_blocks::shared, oft_constraint::projected>>;

}  // namespace graft
