// Runs products of a search on random sizes, for the sanitizers; any number of threads has to give the same.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"
#include "search/huge_pages.h"
#include "search/once_products.h"
#include "search/packed.h"

// Whether no page of this memory is in the memory of the machine.
static bool returned(char* memory, size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> there(bytes / page);
  if (mincore(memory, bytes, there.data())) return false;
  return std::none_of(there.begin(), there.end(), [](unsigned char in_memory) { return in_memory & 1; });
}

// What is given back is joined with what is free beside it, and serves again where it fits best; whole pages of it are
// returned to the system meanwhile.
static bool free_pages_are_returned() {
  constexpr size_t kPage = rtf::HugePages::kPage;
  rtf::HugePages pages;
  char* const first = static_cast<char*>(pages.take(kPage));
  char* const second = static_cast<char*>(pages.take(2 * kPage));
  char* const third = static_cast<char*>(pages.take(1000));
  if (second != first + kPage || third != second + 2 * kPage) return false;
  std::memset(first, 1, 3 * kPage);
  std::memset(third, 1, 1000);
  pages.give_back(second);
  if (returned(first, kPage) || !returned(second, 2 * kPage)) return false;
  if (pages.take(100) != second || pages.take(kPage) != second + 128) return false;
  pages.give_back(second);
  pages.give_back(second + 128);
  pages.give_back(first);
  if (!returned(first, 3 * kPage) || returned(third, kPage)) return false;
  if (pages.take(3 * kPage) != first) return false;
  pages.give_back(third);
  pages.give_back(first);
  return pages.mapped() == 0;
}

// Memory that is taken does not overlap, what is given back serves again, and in the end nothing is mapped.
static bool pages_are_shared() {
  constexpr size_t kMost = 40 << 20;  // more than is mapped at once
  rtf::HugePages pages;
  std::vector<std::pair<char*, size_t>> taken;
  const auto give_back = [&](size_t index) {
    const auto [memory, bytes] = taken[index];
    const bool kept = std::memcmp(memory, &memory, sizeof(memory)) == 0 &&
                      std::memcmp(memory + bytes - sizeof(memory), &memory, sizeof(memory)) == 0;
    pages.give_back(memory);
    taken.erase(taken.begin() + index);
    return kept;
  };
  for (int step = 0; step < 300; ++step) {
    if (!taken.empty() && std::rand() % 5 < 2 && !give_back(std::rand() % taken.size())) return false;
    const size_t most = std::rand() % 20 ? 1000 : kMost, bytes = 2 * sizeof(char*) + std::rand() % most;
    char* const memory = static_cast<char*>(pages.take(bytes));
    if (!memory || reinterpret_cast<uintptr_t>(memory) % rtf::HugePages::kLine) return false;
    std::memcpy(memory, &memory, sizeof(memory));
    std::memcpy(memory + bytes - sizeof(memory), &memory, sizeof(memory));
    taken.emplace_back(memory, bytes);
  }
  void* const other = pages.take(100'001);
  pages.give_back(other);
  const size_t before = pages.mapped();
  if (pages.take(100'001) != other || pages.mapped() != before) return false;
  pages.give_back(other);
  while (!taken.empty())
    if (!give_back(taken.size() - 1)) return false;
  return pages.mapped() == 0;
}

int main() {
  if (!pages_are_shared() || !free_pages_are_returned()) return std::puts("memory in large pages is wrong"), 1;
  for (int seed = 1; seed <= 60; ++seed) {
    std::srand(seed);
    const RtfOnce once = {std::rand() % 4, std::rand() % 5, std::rand() % 7, 1 + std::rand() % 3, 1 + std::rand() % 40};
    const Array frames = random_array(once.batch * once.frames * once.heads * once.size);
    const Array queries = random_array(once.batch * once.beam * once.heads * once.size);
    const int64_t depth = std::rand() % 700, columns = 1 + std::rand() % 200, n = std::rand() % 250;
    const Array inputs = random_array(n * depth), w = random_array(depth * columns), bias = random_array(columns);
    Array results[2];
    for (int n_threads : {1, 3}) {
      const RtfThreads threads = {run_threads, nullptr, n_threads};
      Array energies(once.batch * once.beam * once.heads * once.frames);
      Array sums(queries.size());
      rtf_once_energies_f32(&once, queries.data(), frames.data(), energies.data(), &threads);
      rtf_once_sums_f32(&once, energies.data(), frames.data(), sums.data(), &threads);
      Array packed(rtf_packed_size(depth, columns)), product(n * columns);
      rtf_pack_matrix_f32(depth, columns, seed % 2, w.data(), packed.data(), &threads);
      const RtfAfterProduct after{seed % 3 ? bias.data() : nullptr, seed % 5 ? product.data() : nullptr, seed % 4 == 0};
      rtf_packed_product_f32(n, depth, columns, inputs.data(), packed.data(), &after, product.data(), &threads);
      results[n_threads == 3] = joined({&energies, &sums, &packed, &product});
    }
    if (!finite(results[0]) || results[0] != results[1]) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
