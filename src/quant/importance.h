#pragma once
// imatrix files (formats/gguf/imatrix.h) and the linears of a model: names and orders of columns of a .gguf file to the
// model's own, and back.
#include <map>
#include <string>
#include <vector>

#include "formats/gguf/imatrix.h"
#include "src/model/model_spec.h"

namespace fewbit {

// By a linear's full name: the mean square of each of its inputs, f32 [in].
using Importance = std::map<std::string, Tensor>;

// {} where there is none of the linear.
ConstTensorView importance_of(const Importance*, const std::string& linear);

// Of all linears and ends that the file has an entry of. An expert that no token reached counts all inputs alike.
// Error{checkpoint} naming the entry whose size is not that of its tensor, and a file without any.
Importance importance_from(const gguf::Imatrix&, const ModelSpec&, const std::string& file);

// What a run saw, as an imatrix: sums of squares and tokens by the linear's full name.
struct SeenInputs {
  Tensor squares{};  // f32 [in], host
  int64_t tokens = 0;
};
// Linears of the model that `seen` lacks have no entry; experts that it lacks have zeros.
gguf::Imatrix imatrix_of(const std::map<std::string, SeenInputs>& seen, const ModelSpec&);

}  // namespace fewbit
