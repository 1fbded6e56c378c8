// Runs the kernels of the emulator's tests on arrays of exactly their size, for the sanitizers to watch. With the
// argument "memory" one of them gets too little shared memory, with "race" one has no barrier.
#include <vector>

#include "kernels_of_the_tests.cu"

int main(int argc, char** argv) {
  const bool memory = argc > 1 && strcmp(argv[1], "memory") == 0, race = argc > 1 && strcmp(argv[1], "race") == 0;
  for (int n : {1, 5, 32, 100}) {
    const std::vector<float> x(n, 1.0f);
    std::vector<float> y(n), sums(4 * n);
    unsigned counter = 0;
    const char* errors[] = {
        test_reverse(x.data(), y.data(), n, 128, 4 * n - (memory ? 4 : 0), !race),
        test_copy(x.data(), y.data(), n, 32, 1),
        n > 32 ? nullptr : test_steps(x.data(), sums.data(), &counter, 3, n, 64, 1),
        test_endless(&(counter = 0), 0) == nullptr ? "no deadlock" : nullptr,
        test_reverse(x.data(), y.data(), n, 128, 4 * n, 1),
    };
    for (const char* error : errors)
      if (error != nullptr) return puts(error), 1;
  }
  puts("good");
}
