// Fibers, blocks and who runs next; barriers, and what the lanes of a warp do together.
#pragma once

#include <stdarg.h>
#include <stdlib.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stack.h"
#include "types.h"

// Where a function was called, for messages.
#define RTF_CALLER_PARAMETER , const char *rtf_file = __builtin_FILE(), int rtf_line = __builtin_LINE()
#define RTF_CALLER rtf_file, rtf_line
#define RTF_CALLER_ONLY const char *rtf_file = __builtin_FILE(), int rtf_line = __builtin_LINE()

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace rtf {
namespace emulation {

struct Block;

// What a thread does together with the other lanes that its mask names.
struct Collective {
  const char* name = "";
  unsigned mask = 0;
  void* payload = nullptr;
  void (*combine)(void** payloads, unsigned lanes) = nullptr;
  bool orders_memory = false;  // what lanes did before it, all of them see after it
};

// A copy to shared memory that is under way.
struct Copy {
  unsigned char* to;
  unsigned char bytes[16];
  int size;
};

enum class State { ready, spins, at_barrier, in_warp, done };

struct Fiber : Stack {
  Block* block = nullptr;
  int index = 0;
  uint3 thread{};
  State state = State::ready;
  Collective collective;
  const char* waits_for = "";
  const char* file = "";
  int line = 0;
  std::vector<std::vector<Copy>> copies;  // the groups, and last those without a group yet
};

// The shared memory of a block, NaN at first, and what nobody may write behind it.
class SharedMemory {
 public:
  void allocate(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, std::max<size_t>(bytes + kBehind, 1)) != 0) abort();
    memset(memory, 0xff, bytes + kBehind);
    memory_.reset(static_cast<unsigned char*>(memory));
    bytes_ = bytes;
  }

  unsigned char* data() const { return memory_.get(); }
  bool is_whole() const {
    const unsigned char* behind = data() + bytes_;
    return std::all_of(behind, behind + kBehind, [](unsigned char byte) { return byte == 0xff; });
  }

 private:
#if defined(__SANITIZE_ADDRESS__)  // sees it when it happens
  static constexpr size_t kBehind = 0;
#else
  static constexpr size_t kBehind = 256;
#endif
  std::unique_ptr<unsigned char, void (*)(void*)> memory_{nullptr, free};
  size_t bytes_ = 0;
};

struct Block {
  uint3 index{};
  SharedMemory shared_memory;
  std::vector<Fiber> fibers;
  int alive = 0, at_barrier = 0;
  unsigned barriers = 0;   // how many have been passed
  char ordered[2] = {};    // by barriers; two, as some threads come to the next one while others leave this one
  char warps[32][2] = {};  // the same for __syncwarp
  unsigned syncwarps[32] = {};
};

// One launch after another; a function of the number of a random draw, so that a seed gives the same run again.
class Machine {
 public:
  static Machine& get() {
    static Machine machine;
    return machine;
  }

  Fiber* self() const { return self_; }
  const std::string& failure() const { return failure_; }
  std::mt19937& random() { return random_; }
  bool chance(unsigned of) {
    const Unwatched unwatched;
    return random_() % of == 0;
  }

  // Runs blocks at the same time until all are through.
  // returns: false if they wait for each other for ever, or broke a rule of CUDA; failure() says how
  bool run(const std::vector<uint3>& blocks, dim3 block_shape, size_t shared_bytes, bool cooperative,
           const std::function<void()>& body) {
    const Unwatched unwatched;
    body_ = &body;
    cooperative_ = cooperative;
    failure_.clear();
    blocks_.clear();
    ready_.clear();
    spinning_.clear();
    starved_.clear();
    strategy_ = random_() % 4;
    for (const uint3& index : blocks) add_block(index, block_shape, shared_bytes);
    if (strategy_ == 3) choose_victim();
    idle_ = 0;
    main_.introduce();
    before(&start_);
    while (failure_.empty() && pick()) {
      threadIdx = self_->thread;
      blockIdx = self_->block->index;
      Fiber* fiber = self_;
      main_.go_to(fiber);
    }
    after(&end_);
    for (const auto& block : blocks_)
      if (failure_.empty() && !block->shared_memory.is_whole())
        failure_ = place(block->fibers[0]) + " or another one of its block wrote behind its shared memory";
    if (!failure_.empty())  // some fibers did not end: nobody else can have their stacks
      for (auto& stack : stacks_) (void)stack.release();
    if (!failure_.empty()) stacks_.clear();
    if (stacks_.size() > kKeptStacks) stacks_.resize(kKeptStacks);
    self_ = nullptr;
    return failure_.empty();
  }

  void seed(unsigned value) { random_.seed(value); }

  // The calling thread waits for the others of its block.
  void barrier(const char* name, const char* file, int line) {
    const Unwatched unwatched;
    Block* block = self_->block;
    void* order = &block->ordered[block->barriers % 2];
    wait_as(State::at_barrier, name, file, line);
    ++block->at_barrier;
    before(order);
    release_barrier(block);
    leave();
    after(order);
  }

  // The calling thread lets others run.
  void spin(const char* file, int line) {
    const Unwatched unwatched;
    wait_as(State::spins, "spin_pause", file, line);
    spinning_.push_back(self_);
    leave();
  }

  // The calling thread may be overtaken here.
  void stumble() {
    const Unwatched unwatched;
    if (!chance(8)) return;
    make_ready(self_);
    leave();
  }

  void together(const Collective& what, const char* file, int line) {
    const Unwatched unwatched;
    const int lane = self_->index % 32;
    if ((what.mask >> lane & 1) == 0) fail("the thread is not in the mask of its own call", what.name, file, line);
    wait_as(State::in_warp, what.name, file, line);
    self_->collective = what;
    const int warp = self_->index / 32;
    void* order = &self_->block->warps[warp][self_->block->syncwarps[warp] % 2];
    if (what.orders_memory) before(order);
    release_warp(self_->block, warp);
    leave();
    if (what.orders_memory) after(order);
  }

  // Ends the launch: the kernel did something that CUDA does not allow.
  [[noreturn]] void fail(const std::string& why, const char* name, const char* file, int line) {
    failure_ = std::string(name) + " at " + file + ":" + std::to_string(line) + ", " + place(*self_) + ": " + why;
    for (;;) leave();
  }

 private:
  static constexpr size_t kStackBytes = 256 * 1024;
  // Between launches: each takes two of the 65 530 mappings that Linux lets a process have, which loads many libraries.
  static constexpr size_t kKeptStacks = 1024;

  void add_block(uint3 index, dim3 shape, size_t shared_bytes) {
    blocks_.emplace_back(new Block);
    Block* block = blocks_.back().get();
    block->index = index;
    block->shared_memory.allocate(shared_bytes);
    block->alive = static_cast<int>(shape.x * shape.y * shape.z);
    block->fibers.resize(static_cast<size_t>(block->alive));
    const size_t earlier = (blocks_.size() - 1) * block->fibers.size();
    for (int i = 0; i < block->alive; ++i) {
      Fiber& fiber = block->fibers[static_cast<size_t>(i)];
      const unsigned u = static_cast<unsigned>(i);
      fiber.block = block;
      fiber.index = i;
      fiber.thread = {u % shape.x, u / shape.x % shape.y, u / (shape.x * shape.y)};
      fiber.copies.resize(1);
      if (stacks_.size() <= earlier + u) stacks_.emplace_back(new StackMemory(kStackBytes));
      fiber.begin(stacks_[earlier + u].get(), &Machine::enter);
      fiber.introduce();
      ready_.push_back(&fiber);
    }
  }

  // Where a fiber begins.
  static void enter() {
    Machine& machine = get();
    Stack::arrived(machine.self_, &machine.main_);
    after(&machine.start_);
    (*machine.body_)();
    machine.end();
  }

  void end() {
    {
      const Unwatched unwatched;
      Block* block = self_->block;
      self_->state = State::done;
      before(&end_);
      --block->alive;
      idle_ = 0;
      release_barrier(block);
      release_warp(block, self_->index / 32);
    }
    for (;;) leave();
  }

  void leave() {
    Fiber* fiber = self_;
    fiber->go_to(&main_);
  }

  void wait_as(State state, const char* name, const char* file, int line) {
    self_->state = state;
    self_->waits_for = name;
    self_->file = file;
    self_->line = line;
    before(&end_);
    if (state != State::spins) idle_ = 0;
  }

  void make_ready(Fiber* fiber) {
    fiber->state = State::ready;
    const bool starves = strategy_ == 3 && fiber->block == victim_ && fiber->index / victim_threads_ == victim_part_;
    (starves ? starved_ : ready_).push_back(fiber);
  }

  // A thread, a warp or a block.
  void choose_victim() {
    victim_ = blocks_[random_() % blocks_.size()].get();
    const int threads = static_cast<int>(victim_->fibers.size()), sizes[] = {1, 32, threads};
    victim_threads_ = sizes[random_() % 3];
    victim_part_ =
        static_cast<int>(random_() % static_cast<unsigned>((threads + victim_threads_ - 1) / victim_threads_));
  }

  // Threads that have ended count as if they had arrived.
  void release_barrier(Block* block) {
    if (block->at_barrier == 0 || block->at_barrier < block->alive) return;
    block->at_barrier = 0;
    ++block->barriers;
    for (Fiber& fiber : block->fibers)
      if (fiber.state == State::at_barrier) make_ready(&fiber);
  }

  // Does what a group of lanes waits for if all that its mask names are there, except those that have ended.
  void release_warp(Block* block, int warp) {
    const int first = 32 * warp, count = std::min<int>(32, static_cast<int>(block->fibers.size()) - first);
    Fiber* lanes = &block->fibers[static_cast<size_t>(first)];
    for (int one = 0; one < count; ++one) {
      if (lanes[one].state != State::in_warp) continue;
      const Collective what = lanes[one].collective;
      unsigned alive = 0, here = 0;
      void* payloads[32] = {};
      for (int lane = 0; lane < count; ++lane) {
        if (lanes[lane].state != State::done) alive |= 1u << lane;
        if (lanes[lane].state == State::in_warp && lanes[lane].collective.mask == what.mask) {
          here |= 1u << lane;
          payloads[lane] = lanes[lane].collective.payload;
        }
      }
      if ((here & what.mask) != (alive & what.mask)) continue;
      for (int lane = 0; lane < count; ++lane)
        if ((here >> lane & 1) != 0 && lanes[lane].collective.combine != what.combine) {
          failure_ = "lanes of a warp do different things together: " + place(lanes[one]) + " " + waiting(lanes[one]) +
                     ", " + place(lanes[lane]) + " " + waiting(lanes[lane]);
          return;
        }
      what.combine(payloads, here);
      if (what.orders_memory) ++block->syncwarps[warp];
      for (int lane = 0; lane < count; ++lane)
        if ((here >> lane & 1) != 0) make_ready(&lanes[lane]);
    }
  }

  // Chooses who runs next. Four ways, drawn for each launch: anybody; mostly who became ready last, such that some run
  // far ahead; mostly who waits longest; all others before a victim, which so finds overwritten what it has not read in
  // time.
  bool pick() {
    const bool starved = ready_.empty() && !starved_.empty();
    const bool spins = !spinning_.empty() && (starved ? !chance(32) : ready_.empty() || chance(16));
    std::deque<Fiber*>& from = spins ? spinning_ : starved ? starved_ : ready_;
    if (from.empty()) {
      for (const auto& block : blocks_)
        if (block->alive > 0) failure_ = stuck("all threads that are left wait for others");
      return false;
    }
    if (spins && ready_.empty() && !starved && ++idle_ > 64 * (spinning_.size() + 64)) {
      failure_ =
          stuck(cooperative_ ? "the threads that are left spin or wait for others"
                             : "threads spin for others, which an ordinary launch need not run at the same time");
      return false;
    }
    size_t index = random_() % from.size();
    if (!spins && strategy_ == 1 && !chance(8)) index = from.size() - 1;
    if (!spins && strategy_ == 2 && !chance(8)) index = 0;
    self_ = from[index];
    if (starved && !spins && chance(4)) choose_victim();
    if (index == 0) {
      from.pop_front();
    } else {
      from[index] = from.back();
      from.pop_back();
    }
    return true;
  }

  static std::string place(const Fiber& fiber) {
    const uint3 b = fiber.block->index, t = fiber.thread;
    char text[120];
    snprintf(text, sizeof text, "block (%u, %u, %u) thread (%u, %u, %u)", b.x, b.y, b.z, t.x, t.y, t.z);
    return text;
  }

  static std::string waiting(const Fiber& fiber) {
    return std::string("waits in ") + fiber.waits_for + " at " + fiber.file + ":" + std::to_string(fiber.line);
  }

  // Where everybody is, one line for each place of a block.
  std::string stuck(const char* why) const {
    std::string text = std::string("deadlock: ") + why;
    for (const auto& block : blocks_) {
      std::vector<std::pair<std::string, int>> places;
      std::vector<const Fiber*> first;
      for (const Fiber& fiber : block->fibers) {
        const std::string where = fiber.state == State::done ? "has ended" : waiting(fiber);
        size_t i = 0;
        while (i < places.size() && places[i].first != where) ++i;
        if (i == places.size()) {
          places.emplace_back(where, 0);
          first.push_back(&fiber);
        }
        ++places[i].second;
      }
      for (size_t i = 0; i < places.size(); ++i)
        text += "\n  " + place(*first[i]) + " " + places[i].first +
                (places[i].second > 1 ? " (and " + std::to_string(places[i].second - 1) + " more)" : "");
    }
    return text;
  }

  Stack main_;
  char start_ = 0, end_ = 0;  // what comes before all threads, and after them
  Fiber* self_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  std::string failure_;
  std::mt19937 random_;
  unsigned strategy_ = 0;
  bool cooperative_ = false;
  size_t idle_ = 0;  // how often in a row nobody but those that spin could go on
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<StackMemory>> stacks_;
  std::deque<Fiber*> ready_, spinning_, starved_;
  Block* victim_ = nullptr;
  int victim_threads_ = 1, victim_part_ = 0;  // how many of its threads starve together, and which
};

}  // namespace emulation

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::Machine::get().self()->block->shared_memory.data());
}

inline void spin_pause(RTF_CALLER_ONLY) { emulation::Machine::get().spin(RTF_CALLER); }

}  // namespace rtf

inline void __syncthreads(RTF_CALLER_ONLY) { rtf::emulation::Machine::get().barrier("__syncthreads", RTF_CALLER); }
