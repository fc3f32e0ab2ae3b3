// SPDX-License-Identifier: Apache-2.0
// Writes the losses of a training run to its folder: loss.csv, one line per step with the evaluation loss if there is
// one, and loss.svg, a plot of it. A resumed run reads the losses of earlier steps from loss.csv.
#pragma once
#include <graft/io/file.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

struct step_losses {
  long long step = 0;
  double training = 0;
  std::optional<double> evaluation{};
};

namespace loss_files {

inline std::string number(const char* form, double v) {
  char text[48];
  static_cast<void>(std::snprintf(text, sizeof text, form, v));
  return text;
}

// Reads the losses up to step `last`; a resumed run repeats the steps after its checkpoint.
inline graft::result<std::vector<step_losses>> read(const std::string& folder, long long last) {
  const std::string name = folder + "/loss.csv";
  const auto file = graft::io::read_file(name);
  if (!file) return file.failure();
  const std::string text(graft::io::as_chars(*file));
  std::vector<step_losses> all;
  for (std::size_t at = text.find('\n') + 1; at != 0 && at < text.size(); at = text.find('\n', at) + 1) {
    step_losses l;
    double evaluation = 0;
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const int read = std::sscanf(line.c_str(), "%lld,%lf,%lf", &l.step, &l.training, &evaluation);
    if (read < 2 || l.step != static_cast<long long>(all.size()) + 1)
      return graft::io::fail_in(name, "line ", static_cast<long long>(all.size()) + 2,
                                " is not that of the next step; remove the file to begin a new one");
    if (l.step > last) break;
    if (read == 3) l.evaluation = evaluation;
    all.push_back(l);
    if (text.find('\n', at) == text.npos) break;
  }
  return all;
}

inline std::string csv(const std::vector<step_losses>& all) {
  std::string text = "step,loss,evaluation\n";
  for (const step_losses& l : all)
    text += std::to_string(l.step) + "," + number("%.9g", l.training) + "," +
            (l.evaluation ? number("%.9g", *l.evaluation) : "") + "\n";
  return text;
}

// Returns a tick distance, 1, 2 or 5 times a power of ten, so that `range` has at most six ticks.
inline double tick(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 6)));
  for (const double f : {1.0, 2.0, 5.0})
    if (range <= 6 * f * power) return f * power;
  return 10 * power;
}

inline std::string svg(const std::vector<step_losses>& all) {
  constexpr double left = 64, right = 620, top = 28, bottom = 300;
  double most = 0;
  for (const step_losses& l : all) most = std::max({most, l.training, l.evaluation.value_or(0)});
  if (!(most > 0)) most = 1;
  const auto first = static_cast<double>(all.front().step),
             last = std::max(first + 1, static_cast<double>(all.back().step));
  const auto x = [&](double step) { return left + (right - left) * (step - first) / (last - first); };
  const auto y = [&](double loss) { return bottom - (bottom - top) * loss / most; };
  const auto at = [](double v) { return number("%.1f", v); };
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 350\" font-family=\"sans-serif\" font-size=\"12\">"
      "<rect width=\"640\" height=\"350\" fill=\"white\"/>\n";
  const auto line = [&](double x1, double y1, double x2, double y2, const char* colour) {
    out += "<line x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) + "\" y2=\"" + at(y2) + "\" stroke=\"" +
           colour + "\"/>\n";
  };
  const auto text = [&](double px, double py, const char* anchor, const std::string& words, const char* more = "") {
    out += "<text x=\"" + at(px) + "\" y=\"" + at(py) + "\" text-anchor=\"" + anchor + "\"" + more + ">" + words +
           "</text>\n";
  };
  const double by_loss = tick(most), by_steps = std::max(1.0, tick(last - first));
  for (int k = 0; k * by_loss <= most * (1 + 1e-9); ++k) {
    line(left, y(k * by_loss), right, y(k * by_loss), "#dddddd");
    text(left - 8, y(k * by_loss) + 4, "end", number("%g", k * by_loss));
  }
  for (double s = std::ceil(first / by_steps) * by_steps; s <= last; s += by_steps) {
    line(x(s), bottom, x(s), bottom + 5, "black");
    text(x(s), bottom + 20, "middle", number("%g", s));
  }
  line(left, top, left, bottom, "black");
  line(left, bottom, right, bottom, "black");
  text((left + right) / 2, bottom + 40, "middle", "step");
  text(18, (top + bottom) / 2, "middle", "loss", " transform=\"rotate(-90 18 164)\"");
  std::string trained, dots;
  for (const step_losses& l : all) {
    const double px = x(static_cast<double>(l.step));
    trained += at(px) + "," + at(y(l.training)) + " ";
    if (l.evaluation)
      dots += "<circle cx=\"" + at(px) + "\" cy=\"" + at(y(*l.evaluation)) + "\" r=\"3\" fill=\"darkorange\"/>\n";
  }
  out += "<polyline fill=\"none\" stroke=\"steelblue\" points=\"" + trained + "\"/>\n" + dots;
  text(right, top - 10, "end", "training", " fill=\"steelblue\"");
  if (!dots.empty()) text(right - 70, top - 10, "end", "evaluation", " fill=\"darkorange\"");
  return out + "</svg>\n";
}

// Writes both files.
inline graft::status write(const std::string& folder, const std::vector<step_losses>& all) {
  if (all.empty()) return graft::ok;
  const std::string table = csv(all), plot = svg(all);
  if (graft::status s = graft::io::write_file(folder + "/loss.csv", std::as_bytes(std::span(table))); !s) return s;
  return graft::io::write_file(folder + "/loss.svg", std::as_bytes(std::span(plot)));
}

}  // namespace loss_files
