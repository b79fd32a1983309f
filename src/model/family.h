#pragma once
// A family of models: what the program must know of it, in one record. A file in archs/ fills it and a line in
// archs.def names it; whoever needs something of a family looks it up here, so that no other file has a list of
// families.
//
// How the blocks of a family are cut over ranks is no field: it follows from its ops and from which of their slots are
// divided (src/model/parallel/tensor_parallel.h).
#include <string>
#include <string_view>
#include <vector>

#include "src/model/gguf/family.h"
#include "src/model/model_spec.h"

namespace fewbit {

class ConfigView;

// A class name of config.json. A model around a language model (vision) has its config in text_config, and its tensors
// below `text` in place of "model." and `head` in place of "lm_head.".
struct FamilyClass {
  std::string_view name{}, text{}, head{};
};

// Linears that stay as they are stored unless a rule names them (--set), by a glob of their name in the block; or
// matrices outside of the op list, by one of their full name. The plan gives the reason.
struct FamilyKeep {
  std::string_view glob{}, reason{};
  bool outside = false;
};

// What `plan --for ENGINE` says of the family. An engine that does not have it refuses the model.
struct EngineNote {
  std::string_view engine{}, note{};
  bool refuses = false;
};

struct Family {
  FamilyClass classes[4]{};  // the first is the family's own, the others are look-alikes
  // Of config.json: beside a class above, another one is refused. The first is written.
  std::string_view model_types[4]{};
  ModelSpec (*build)(const ConfigView&) = nullptr;  // the list of ops; gets text_config where the class has `text`
  FamilyKeep keeps[6]{};
  EngineNote engines[4]{};
  std::string_view chat{};  // the built-in chat template that is usual for it, named where a checkpoint has none
  GgufFamily gguf{};

  std::string_view name() const { return classes[0].name; }
};

// All of archs.def, in its order.
const std::vector<const Family*>& families();
// By a class name; null where there is none.
const Family* find_family(std::string_view class_name);
const Family& family_of(const ModelSpec&);
// The class name of all names that begins most like `class_name`.
std::string nearest_class(std::string_view class_name);

// Why a linear stays as it is, by its name in the block, or a matrix outside of the op list, by its full name; "" where
// the family says nothing.
std::string_view kept_in_block(const Family&, std::string_view name);
std::string_view kept_outside(const Family&, std::string_view name);

#define FEWBIT_FAMILY(id) extern const Family family_##id;
#include "src/model/archs.def"
#undef FEWBIT_FAMILY

}  // namespace fewbit
