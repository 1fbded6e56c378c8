// Memory for the matrices of a model, in pages of 2 MB where the system has them. A step of a search reads all matrices
// once: with pages of 4 KB each page is looked up anew, and the prefetchers of a CPU stop at its end. Matrices share
// the pages, since most are smaller than one.
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
    char* found = again(size);
    if (!found) found = fresh(size);
    if (!found) return nullptr;
    taken_[found] = size;
    ++region_of(found)->second.in_use;
    return found;
  }

  void give_back(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto taken = taken_.find(static_cast<char*>(memory));
    const auto region = region_of(taken->first);
    free_.emplace(taken->second, taken->first);
    taken_.erase(taken);
    if (--region->second.in_use == 0) unmap(region);
  }

  // Bytes of all pages.
  size_t mapped() {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t bytes = 0;
    for (const auto& region : regions_) bytes += region.second.size;
    return bytes;
  }

 private:
  static constexpr size_t kRegion = 16 * kPage;  // what is not touched is no memory

  struct Region {
    size_t size, used;
    int64_t in_use;
  };
  using Regions = std::map<char*, Region>;  // by where they begin

  Regions::iterator region_of(char* memory) { return std::prev(regions_.upper_bound(memory)); }

  // What was given back; of the same size, as a matrix that takes the place of another value of a parameter.
  char* again(size_t size) {
    const auto found = free_.find(size);
    if (found == free_.end()) return nullptr;
    char* memory = found->second;
    free_.erase(found);
    return memory;
  }

  char* fresh(size_t size) {
    auto region = std::find_if(regions_.begin(), regions_.end(),
                               [&](const auto& each) { return each.second.size - each.second.used >= size; });
    if (region == regions_.end()) region = map(std::max((size + kPage - 1) / kPage * kPage, kRegion));
    if (region == regions_.end()) return nullptr;
    char* memory = region->first + region->second.used;
    region->second.used += size;
    return memory;
  }

  Regions::iterator map(size_t size) {
    void* memory = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return regions_.end();
    char* const begin = static_cast<char*>(memory);
    const size_t before = (kPage - reinterpret_cast<uintptr_t>(begin) % kPage) % kPage;
    if (before) munmap(begin, before);
    munmap(begin + before + size, kPage - before);
#if defined(MADV_HUGEPAGE)
    madvise(begin + before, size, MADV_HUGEPAGE);  // where the system can't, pages are small
#endif
    return regions_.emplace(begin + before, Region{size, 0, 0}).first;
  }

  void unmap(Regions::iterator region) {
    char *const begin = region->first, *const end = begin + region->second.size;
    for (auto free = free_.begin(); free != free_.end();)
      free = free->second >= begin && free->second < end ? free_.erase(free) : std::next(free);
    munmap(begin, region->second.size);
    regions_.erase(region);
  }

  std::mutex mutex_;
  Regions regions_;
  std::multimap<size_t, char*> free_;  // by size
  std::map<char*, size_t> taken_;
};

}  // namespace rtf
