// The picture of a coordinate check: for each site a small panel of size against width (or depth), both
// logarithmic, with a line for every step. All panels of a check span the same factor, so that slopes can be
// compared by eye.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "run/scaling.h"

namespace wobble {

namespace {

// In pixels.
constexpr int columns = 4;
constexpr double panel_width = 250, panel_height = 200, left = 46, right = 12, top = 54, bottom = 26;
constexpr double inner_width = panel_width - left - right, inner_height = panel_height - top - bottom;
constexpr double check_heading = 30, margin = 14;

template <class... Values>
std::string format(const char* how, Values... values) {
    char text[400];
    std::snprintf(text, sizeof text, how, values...);
    return text;
}

std::string escaped(const std::string& text) {
    std::string out;
    for (char c : text) {
        if (c == '&') out += "&amp;";
        else if (c == '<') out += "&lt;";
        else if (c == '>') out += "&gt;";
        else out += c;
    }
    return out;
}

std::string words(double x, double y, const char* style, const std::string& text) {
    return format("<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style) + escaped(text) + "</text>\n";
}

/// A colour between two, `share` of the way.
std::string between(const int (&from)[3], const int (&to)[3], double share) {
    int c[3];
    for (int i = 0; i < 3; ++i) c[i] = int(std::lround(from[i] + share * (to[i] - from[i])));
    return format("#%02x%02x%02x", c[0], c[1], c[2]);
}
/// Sizes go from light to dark blue as steps go on, changes from light to dark orange.
std::string size_colour(size_t t, size_t last) {
    return between({190, 212, 238}, {16, 66, 130}, last ? double(t) / double(last) : 1);
}
std::string change_colour(size_t t, size_t last) {
    return between({250, 214, 176}, {200, 84, 10}, last ? double(t) / double(last) : 1);
}

/// The smallest and the largest of a site's curves, as logarithms.
std::pair<double, double> range(const SiteScaling& s) {
    double low = INFINITY, high = -INFINITY;
    for (const auto* curves : {&s.log_size, &s.log_change}) {
        for (const auto& curve : *curves) {
            for (double y : curve) {
                if (std::isfinite(y)) low = std::min(low, y), high = std::max(high, y);
            }
        }
    }
    return low <= high ? std::pair(low, high) : std::pair(0.0, 0.0);
}

std::string slope_words(const char* what, const Estimate& e) {
    if (!std::isfinite(e.mean)) return std::string(what) + " -";
    const double mean = std::abs(e.mean) < 0.005 ? 0 : e.mean;  // not -0.00
    return what + format(std::isfinite(e.half_width) ? " %.2f±%.2f" : " %.2f", mean, e.half_width);
}

/// Lines of at most so many characters, broken at spaces.
std::vector<std::string> wrapped(const std::string& text, size_t most) {
    std::vector<std::string> lines = {""};
    std::istringstream in(text);
    for (std::string word; in >> word;) {
        if (!lines.back().empty() && lines.back().size() + 1 + word.size() > most) lines.emplace_back();
        lines.back() += (lines.back().empty() ? "" : " ") + word;
    }
    return lines;
}

class Panel {
  public:
    /// At (x, y); `span`: of the logarithms from bottom to top.
    Panel(double x, double y, const Scaling& check, const SiteScaling& site, double span)
        : x_(x + left), y_(y + top), check_(check), site_(site), span_(span) {
        const auto [low, high] = range(site);
        low_ = (low + high - span) / 2;
    }

    std::string draw() const {
        std::string out = words(x_, y_ - 38, "class=\"site\"", site_.site);
        out += words(x_, y_ - 23, "class=\"slope\"",
                     slope_words("slope at start", site_.at_start) + slope_words(", after", site_.after));
        if (std::isfinite(site_.change.mean))
            out += words(x_, y_ - 9, "class=\"slope\"", slope_words("of the change", site_.change));
        out += format(
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#999\"/>\n",
            x_, y_, inner_width, inner_height);
        const std::vector<double> marks = decades();
        for (double mark : marks) {
            out += format("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x_,
                          x_ + inner_width, up(mark), up(mark));
            out += words(x_ - 5, up(mark) + 4, "class=\"axis\" text-anchor=\"end\"",
                         format("%g", std::exp(mark)));
        }
        for (size_t i = 0; i < check_.sizes.size(); ++i)
            out += words(along(i), y_ + inner_height + 15, "class=\"axis\" text-anchor=\"middle\"",
                         std::to_string(check_.sizes[i]));
        const size_t last = site_.log_size.size() - 1;
        for (size_t t = 1; t <= last; ++t)
            out += curve(site_.log_change[t], change_colour(t, last), t == last, "stroke-dasharray=\"5 3\"");
        for (size_t t = 0; t <= last; ++t)
            out += curve(site_.log_size[t], size_colour(t, last), t == last, "");
        return out;
    }

  private:
    double along(size_t i) const {
        const double first = std::log(double(check_.sizes.front())),
                     end = std::log(double(check_.sizes.back()));
        return x_ + inner_width * (0.06 + 0.88 * (std::log(double(check_.sizes[i])) - first) / (end - first));
    }
    double up(double log_size) const { return y_ + inner_height * (1 - (log_size - low_) / span_); }

    /// Logarithms of the powers of ten in the panel, or, when there is one at most, of 1, 2 and 5 times them.
    std::vector<double> decades() const {
        std::vector<double> tens, more;
        for (int power = int(std::floor(low_ / std::log(10.0)));; ++power) {
            if (power * std::log(10.0) > low_ + span_) break;
            for (double digit : {1.0, 2.0, 5.0}) {
                const double mark = power * std::log(10.0) + std::log(digit);
                if (mark < low_ || mark > low_ + span_) continue;
                more.push_back(mark);
                if (digit == 1) tens.push_back(mark);
            }
        }
        return tens.size() > 1 ? tens : more;
    }

    std::string curve(const std::vector<double>& values, const std::string& colour, bool last,
                      const char* dashes) const {
        std::string points, dots;
        for (size_t i = 0; i < values.size(); ++i) {
            if (!std::isfinite(values[i])) continue;
            points += format("%.1f,%.1f ", along(i), up(values[i]));
            if (last)
                dots += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.4\" fill=\"%s\"/>\n", along(i),
                               up(values[i]), colour.c_str());
        }
        if (points.empty()) return "";
        points.pop_back();
        return "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"" + (last ? "2" : "1.3") +
               "\" " + dashes + " points=\"" + points + "\"/>\n" + dots;
    }

    double x_, y_;  // of the inner rectangle
    const Scaling& check_;
    const SiteScaling& site_;
    double low_ = 0, span_;
};

/// What the lines are, from `x` on.
std::string legend(double x, double y, size_t steps) {
    std::string out;
    const auto entry = [&](const std::string& colour, const char* dashes, const std::string& text) {
        out += format(
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke-width=\"2\" stroke=\"%s\" %s/>\n",
            x, x + 26, y - 4, y - 4, colour.c_str(), dashes);
        out += words(x + 32, y, "class=\"axis\"", text);
        x += 46 + 6.2 * double(text.size());
    };
    const std::string after = std::to_string(steps);
    entry(size_colour(0, steps), "", "RMS at the start");
    entry(size_colour(steps, steps), "", "after step " + after);
    entry(change_colour(1, steps), "stroke-dasharray=\"5 3\"", "RMS of the change by step 1");
    entry(change_colour(steps, steps), "stroke-dasharray=\"5 3\"", "by step " + after);
    return out;
}

}  // namespace

std::string to_svg(const std::string& title, const std::vector<Scaling>& checks) {
    std::string body;
    double y = 6;
    for (const std::string& line : wrapped(title, 110))
        body += words(margin, y += 18, "class=\"title\"", line);
    size_t steps = 0;
    for (const Scaling& check : checks) steps = std::max(steps, size_t(check.steps()));
    body += legend(margin, y += 24, steps);
    y += 10;
    for (const Scaling& check : checks) {
        body += words(margin, y + 22, "class=\"check\"",
                      "size against " + check.axis + ", at " + check.at +
                          " (slopes of the logarithms; ± half a 95 % interval over seeds)");
        y += check_heading;
        double span = std::log(4.0);
        for (const SiteScaling& s : check.sites)
            span = std::max(span, 1.1 * (range(s).second - range(s).first));
        for (size_t i = 0; i < check.sites.size(); ++i)
            body += Panel(margin + double(i % columns) * panel_width, y + double(i / columns) * panel_height,
                          check, check.sites[i], span)
                        .draw();
        y += double((check.sites.size() + columns - 1) / columns) * panel_height;
    }
    const double width = 2 * margin + columns * panel_width + 40, height = y + margin;
    return format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
               "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\">\n",
               width, height, width, height) +
           "<style>.title{font-size:14px;font-weight:bold}.check{font-size:13px;font-weight:bold}"
           ".site{font-size:13px}.slope{font-size:10.5px;fill:#333}.axis{font-size:11px;fill:#555}</style>\n"
           "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" +
           body + "</svg>\n";
}

}  // namespace wobble
