// Memory for the matrices of a model, in pages of 2 MB where the system has them. A step of a search reads all matrices
// once: with pages of 4 KB each page is looked up anew, and the prefetchers of a CPU stop at its end. Matrices share
// the pages, since most are smaller than one. What is given back is used again where it fits best; meanwhile its whole
// pages are returned to the system.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace rtf {

class HugePages {
 public:
  static constexpr size_t kPage = size_t{2} << 20, kLine = 64;

  // Memory that begins at a line of the cache, or null if the system has none left.
  void* take(size_t bytes) {
    const size_t size = std::max((bytes + kLine - 1) / kLine * kLine, kLine);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto free = smallest_free(size);
    if (free == free_.end()) free = map(std::max((size + kPage - 1) / kPage * kPage, kRegion));
    if (free == free_.end()) return nullptr;
    const auto [memory, room] = *free;
    free_.erase(free);
    if (room > size) free_.emplace(memory + size, room - size);
    taken_.emplace(memory, size);
    return memory;
  }

  void give_back(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = taken_.find(static_cast<char*>(memory));
    const auto free = join(free_.insert(*taken).first);
    taken_.erase(taken);
    const auto [begin, size] = *free;
    const auto region = regions_.find(begin);
    if (region != regions_.end() && region->second == size) {
      munmap(begin, size);
      regions_.erase(region);
      free_.erase(free);
    } else {
      release(begin, begin + size);
    }
  }

  // Bytes of all regions.
  size_t mapped() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (const auto& region : regions_) bytes += region.second;
    return bytes;
  }

 private:
  static constexpr size_t kRegion = 16 * kPage;  // what is not touched is no memory

  using Sizes = std::map<char*, size_t>;  // by where they begin

  Sizes::iterator smallest_free(size_t least) {
    auto found = free_.end();
    for (auto free = free_.begin(); free != free_.end(); ++free)
      if (free->second >= least && (found == free_.end() || free->second < found->second)) found = free;
    return found;
  }

  // Joins what is free with what is free beside it in its region.
  Sizes::iterator join(Sizes::iterator free) {
    const auto take_next = [&](Sizes::iterator to) {
      const auto next = std::next(to);
      if (next == free_.end() || next->first != to->first + to->second || regions_.count(next->first)) return false;
      to->second += next->second;
      free_.erase(next);
      return true;
    };
    take_next(free);
    if (free == free_.begin()) return free;
    const auto before = std::prev(free);
    return take_next(before) ? before : free;
  }

  // Returns pages that are free as a whole to the system; they stay mapped.
  static void release(char* begin, char* end) {
    begin += (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
    end -= reinterpret_cast<uintptr_t>(end) % kPage;
    if (begin < end) madvise(begin, end - begin, MADV_DONTNEED);
  }

  // A new region, all of which is free.
  Sizes::iterator map(size_t size) {
    void* memory = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return free_.end();
    char* const begin = static_cast<char*>(memory);
    const size_t before = (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
    if (before) munmap(begin, before);
    munmap(begin + before + size, kPage - before);
#if defined(MADV_HUGEPAGE)
    madvise(begin + before, size, MADV_HUGEPAGE);  // where the system can't, pages are small
#endif
    regions_.emplace(begin + before, size);
    return free_.emplace(begin + before, size).first;
  }

  std::mutex mutex_;
  Sizes regions_, free_, taken_;
};

}  // namespace rtf
