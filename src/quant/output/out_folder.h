#pragma once
// The folder that a program writes: where it may not lie, and how it comes into being.
#include <filesystem>

namespace fewbit {

// Error{usage} where OUT is the model, holds it or lies in it, by whatever names and links.
void refuse_overlap(const std::filesystem::path& model, const std::filesystem::path& out);
// Error{usage} unless `out` holds a checkpoint and nothing else that --force would take away.
void refuse_to_replace(const std::filesystem::path& out);
// Error{io} where `parent`, which OUT shall lie in, is no folder.
void require_folder_of_out(const std::filesystem::path& parent);

// The folder `built`, which must be on the disk, becomes `out`. Error{io} where something is there already.
void put_in_place(const std::filesystem::path& built, const std::filesystem::path& out);
// The same, in the place of an `out` that exists. In one step where the file system can, and `built` is the old one
// then; else the old one goes to `aside` first.
void put_in_place_of(const std::filesystem::path& built, const std::filesystem::path& out,
                     const std::filesystem::path& aside);
// The second way of put_in_place_of().
void put_in_place_aside(const std::filesystem::path& built, const std::filesystem::path& out,
                        const std::filesystem::path& aside);

}  // namespace fewbit
