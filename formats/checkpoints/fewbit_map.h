#pragma once
// The "fewbit" object of a quantization_config (docs/formats/README.md): exactly how every linear is packed,
// for formats whose own keys cannot say it. Internal to formats/.
#include <initializer_list>
#include <string>

#include "formats/checkpoint_format.h"
#include "formats/config_object.h"

namespace fewbit::fewbit_map {

bool same(const LinearFormat& a, const LinearFormat& b);
// What most linears have; the first by name where several lead. The summary must not be empty.
LinearFormat most_common(const QuantizationSummary& summary);

// JSON text of the object.
std::string text(const QuantizationSummary& summary);

// Fills `out` from the object for the linears of the model. Only packings of `family` are known.
// Error{unsupported|checkpoint} names the key.
void read(const ConfigObject& fewbit, std::initializer_list<const Packing*> family,
          const std::vector<std::string>& linears, const TensorSource& tensor, QuantizationSummary& out);

// bits and group_size under either of two names; `inherited` stands in where they are absent.
int read_bits(const ConfigObject& o, const QuantSpec* inherited, const char* key = "bits");
int64_t read_group_size(const ConfigObject& o, const QuantSpec* inherited, const char* key = "group_size");

// The packing of the family with this name. Error{unsupported} naming `where`.
const Packing& packing_named(const std::string& name, std::initializer_list<const Packing*> family,
                             const std::string& where);
// Whether the tensor of a linear's codes exists; where it is called `weight`, as a dense one is, its type tells.
bool packed(const TensorSource& tensor, const std::string& linear, const LinearFormat& f);

}  // namespace fewbit::fewbit_map
