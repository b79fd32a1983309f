#pragma once
// Charts of the report as SVG elements. Colours are classes of the page's style sheet, so that they follow
// its theme.
#include "src/eval/report.h"

namespace fewbit {

std::string escaped(const std::string& text);  // for HTML and SVG

// Perplexity of every model with the error of its paired ratio to the baseline, whose own perplexity is a
// line.
std::string perplexity_chart(const Report&);
// KL per token on a logarithmic axis: the mean as a dot, the median to the 99th percentile as a line.
std::string divergence_chart(const Report&);
// Bits per weight against mean KL.
std::string bits_chart(const Report&);
// Relative output error of every linear: a row per layer, a column per kind; one colour scale for all models.
std::string heat_map(const ReportModel&, double largest);
double largest_error(const Report&);

}  // namespace fewbit
