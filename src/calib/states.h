#pragma once
// States: what the calibration carries from one pass to the next, [tokens, features] in chunks. Each chunk lies where
// there was room when it came: on the device, in host memory, or in a scratch file. Reading gives the same bytes from
// any of the three, so the limits decide how long a run takes and nothing else.
#include <filesystem>
#include <limits>
#include <vector>

#include "kernels/exec/exec.h"
#include "src/calib/chunks.h"

namespace fewbit {

// Bytes that states may take in each place. On the CPU there is no device: only `host` counts.
struct StateRoom {
  int64_t device = std::numeric_limits<int64_t>::max();
  int64_t host = std::numeric_limits<int64_t>::max();
  bool ahead = false;  // the device has room for the next chunk of what lies in host memory, besides `device`
  std::filesystem::path scratch{};  // folder of the files; empty: the system's folder for temporary files
};

// Hands out the room and counts what was taken. Must outlive the States that it serves.
class StateStore {
 public:
  StateStore(Exec& ex, StateRoom room) : ex_(ex), room_(std::move(room)) {}
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  struct Use {
    int64_t device = 0, host = 0, file = 0;
  };
  const Use& peak() const { return peak_; }
  Exec& exec() const { return ex_; }
  bool ahead() const { return room_.ahead; }

 private:
  friend class States;
  enum class Tier : uint8_t { none, device, host, file };
  Tier take(int64_t bytes);
  void give_back(Tier, int64_t bytes, Tensor memory);  // of a piece
  int64_t& used(Tier);
  // Pinned memory of that shape, which was taken: what a piece left behind where there is some. To pin memory takes
  // longer than to fill it over the link, and to give it back waits for all that the device does. Whoever read a piece
  // or wrote it did so in front of what the Exec is given next, and copies into the next one come behind that.
  Tensor pinned(DType, const Shape&);

  Exec& ex_;
  StateRoom room_;
  Use use_{}, peak_{};
  std::vector<Tensor> kept_{};  // pinned, of no piece; they and what is used find room in room_.host
  int64_t kept_bytes_ = 0;
};

class States {
 public:
  States(StateStore&, const Chunks&, DType, int64_t features);
  States(States&&) noexcept;
  States& operator=(States&&) noexcept;
  ~States();

  const Chunks& chunks() const { return chunks_; }
  DType dtype() const { return dtype_; }
  int64_t features() const { return features_; }

  // Stores the rows of a chunk, [rows, features] on the device, in the place of those before. Who reads states on the
  // host syncs first.
  void put(int64_t chunk, ConstTensorView rows);
  // The same of memory on the device that holds these rows and nothing else: kept as it is where the chunk lies there.
  void put(int64_t chunk, Tensor&& rows);
  // Tokens [begin, end) of all, to `into` on the device; they must have been put. Error{io} where the file fails.
  void get(int64_t begin, int64_t end, TensorView into) const;
  // The chunk where it lies on the device already; data == nullptr where it must be fetched.
  ConstTensorView resident(int64_t chunk) const;
  // The chunk in pinned memory that the device can fetch while it computes; data == nullptr where it lies elsewhere.
  ConstTensorView pinned(int64_t chunk) const;
  // Where the rows of the chunk are to go in pinned memory, by a copy of the caller's in the place of put(); data ==
  // nullptr where put() is the way.
  TensorView departing(int64_t chunk, ConstTensorView rows);
  // As resident(), to be written by who will put it: what was there is lost.
  TensorView in_place(int64_t chunk);
  // Says that the chunk will be read next, so that the file's bytes are on their way.
  void expect(int64_t chunk) const;
  // Gives back the room of a chunk that nobody reads again.
  void drop(int64_t chunk);

 private:
  struct Piece {
    StateStore::Tier tier = StateStore::Tier::none;
    Tensor memory{};
  };
  Piece& room_for(int64_t chunk, ConstTensorView rows);
  int64_t bytes_of_rows(int64_t rows) const { return rows * features_ * bytes_of(dtype_); }
  void open_file();
  void write_file(int64_t chunk, ConstTensorView rows);
  void read_file(int64_t begin, int64_t end, TensorView into) const;
  void release();

  StateStore* store_;
  Chunks chunks_;
  DType dtype_;
  int64_t features_;
  std::vector<Piece> pieces_;
  int file_ = -1;
};

}  // namespace fewbit
